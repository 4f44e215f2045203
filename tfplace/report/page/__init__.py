"""A placement as one self-contained HTML file, drawn with Bokeh."""

from tfplace.report.page.save import check_installed, check_suffix, save_report

__all__ = ["check_installed", "check_suffix", "save_report"]
