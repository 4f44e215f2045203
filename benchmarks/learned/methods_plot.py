"""Curves of what `run_methods.py` found, a pair of panels for each graph."""

import pathlib
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

COLUMNS = 5  # graphs side by side
Runs = Mapping[tuple[str, str], Sequence[dict]]


def draw(graphs: Mapping[str, dict], runs: Runs, path: pathlib.Path) -> None:
  """Best step time over the bound against evaluations, and against seconds.

  Args:
    graphs: by label, with their bounds.
    runs: by label and strategy.
    path: picture to write.
  """
  columns = min(len(graphs), COLUMNS)
  bands = -(-len(graphs) // columns)  # each of two rows of panels
  figure = Figure(figsize=(3.6 * columns, 6 * bands), layout="constrained")
  axes = figure.subplots(2 * bands, columns, squeeze=False)
  for panel in axes.flat:
    panel.set_visible(False)
  for number, (label, graph) in enumerate(graphs.items()):
    band, column = divmod(number, columns)
    pair = axes[2 * band : 2 * band + 2, column]
    mine = {name: found for (of, name), found in runs.items() if of == label}
    draw_graph(label, graph["lower_bound_us"], mine, pair)
  axes[0, 0].legend()
  figure.savefig(path, dpi=100)


def draw_graph(
  label: str,
  bound_us: float,
  runs: Mapping[str, Sequence[dict]],
  pair: Sequence[Axes],
) -> None:
  """One graph's two panels: against evaluations, and against seconds."""
  for at, (panel, name) in enumerate(
    zip(pair, ("evaluations", "seconds"), strict=True)
  ):
    for color, (strategy, found) in enumerate(runs.items()):
      for number, run in enumerate(found):
        points = [p for p in run["curve"] if p[2] is not None]
        panel.step(
          [point[at] for point in points],
          [point[2] / bound_us for point in points],
          where="post",
          color=f"C{color}",
          label=None if number else strategy,
        )
    panel.set(title=label, xlabel=name, ylabel="best step time / bound")
    panel.set_xscale("log")
    panel.set_yscale("log")
    panel.set_visible(True)
