"""Tables, pictures and the head of the JSON of `run_host.py`."""

import pathlib
from importlib import metadata
from typing import Any

from matplotlib.figure import Figure
from rich import console, table
from rich.text import Text
from scipy import stats

from tfplace.core import Cluster
from tfplace.core.units import format_bytes, format_us


def about(cluster: Cluster) -> dict[str, Any]:
  """The devices and links, and no models yet."""
  return {
    "cluster": cluster.name,
    "tensorflow": metadata.version("tensorflow"),
    "devices": [
      {
        "name": device.name,
        "kind": device.kind,
        "product": device.extra.get("product"),
        "memory_bytes": device.memory_bytes,
      }
      for device in cluster.devices
    ],
    "links": [
      {
        "src": link.src,
        "dst": link.dst,
        "bandwidth_bytes_per_us": link.bandwidth_bytes_per_us,
        "latency_us": link.latency_us,
        "gap_us": link.gap_us,
        "channel": link.channel,
      }
      for link in cluster.links
    ],
    "models": {},
  }


def pairs(model: dict[str, Any]) -> dict[str, tuple[float, float]]:
  """Placer -> (predicted, measured) microseconds, each placement once."""
  return {
    name: (row["predicted"]["step_time_us"], row["measured"]["step_time_us"])
    for name, row in model["rows"].items()
    if "measured" in row
    and "error" not in row["measured"]
    and not row["same_as"]
  }


def summary(model: dict[str, Any]) -> dict[str, float]:
  """Fidelity over the placements that ran; ranks need three of them."""
  found = list(pairs(model).values())
  errors = sorted(abs(p / m - 1) for p, m in found)
  if not errors:
    return {}
  half = len(errors) // 2
  result = {"median_error": (errors[half] + errors[-1 - half]) / 2}
  if len(found) > 2 and all(len(set(c)) > 1 for c in zip(*found, strict=True)):
    result["rank_correlation"] = float(
      stats.spearmanr(*zip(*found, strict=True)).statistic
    )
  return result


def print_model(name: str, model: dict[str, Any]) -> None:
  """One table: a row per placer.

  "error" is that of the predicted step, "speed-up" is over `single`, "peak"
  is the fullest device's memory as predicted, then as the device saw it; "="
  marks a placement that another placer found first.
  """
  screen = console.Console()
  if "error" in model:
    screen.print(Text(f"{name}: {model['error']}"))
  if not model["rows"]:
    return
  shown = table.Table(title=f"{name}: {model['ops']} ops")
  shown.add_column("placer")
  for column in (
    *("predicted", "measured", "error", "speed-up"),
    *("peak", "on device", "placing"),
  ):
    shown.add_column(column, justify="right")
  single = model["rows"].get("single", {}).get("measured", {})
  for strategy, row in model["rows"].items():
    cells = _cells(row, single.get("step_time_us"))
    shown.add_row(strategy, *map(Text, cells))
  screen.print(shown)
  for strategy, row in model["rows"].items():
    error = row.get("error") or row["measured"].get("error")
    if error:
      screen.print(Text(f"{strategy}: {error}"))
  for key, value in summary(model).items():
    print(f"{key.replace('_', ' ')}: {value:.3f}")


def _cells(row: dict[str, Any], single_us: float | None) -> list[str]:
  if "error" in row:
    return ["-"] * 7
  predicted, measured = row["predicted"], row["measured"]
  before = [format_us(predicted["step_time_us"])]
  peak = format_bytes(max(predicted["peak_memory_bytes"].values()))
  seconds = f"{row['placing_s']:.1f} s"
  if "error" in measured:
    return [*before, measured["error_kind"], "-", "-", peak, "-", seconds]
  step = measured["step_time_us"]
  return [
    *before,
    format_us(step) + (" =" if row["same_as"] else ""),
    f"{100 * (predicted['step_time_us'] / step - 1):+.0f}%",
    f"{single_us / step:.2f}x" if single_us else "-",
    peak,
    format_bytes(max(_device_peaks(measured).values())),
    seconds,
  ]


def _device_peaks(measured: dict[str, Any]) -> dict[str, float]:
  """Peak memory by the allocators, or by traces where they do not count."""
  return {
    **measured["peak_memory_bytes"],
    **measured.get("high_water_bytes", {}),
  }


def draw(found: dict[str, Any], out: pathlib.Path) -> None:
  """Measured over predicted, and bars of both; files beside `out`."""
  models = {n: m for n, m in found["models"].items() if pairs(m)}
  if not models:
    return
  scatter = Figure(figsize=(6, 5), layout="constrained")
  _scatter(scatter, models, found)
  scatter.savefig(out.with_suffix(".png"), dpi=150)
  bars = Figure(figsize=(8, 3.2 * len(models)), layout="constrained")
  panels = bars.subplots(len(models), 1, squeeze=False)[:, 0]
  for panel, (name, model) in zip(panels, models.items(), strict=True):
    _bars(panel, name, pairs(model))
  bars.savefig(out.with_suffix(".bars.png"), dpi=150)


def _scatter(
  figure: Figure, models: dict[str, Any], found: dict[str, Any]
) -> None:
  axes = figure.subplots()
  for name, model in models.items():
    predicted, measured = zip(*pairs(model).values(), strict=True)
    label = f"{name} ({100 * summary(model)['median_error']:.0f}% off)"
    axes.plot(
      [p / 1e3 for p in predicted],
      [m / 1e3 for m in measured],
      "o",
      label=label,
    )
  axes.set_xscale("log")
  axes.set_yscale("log")
  ends = [*axes.get_xlim(), *axes.get_ylim()]
  axes.plot([min(ends), max(ends)], [min(ends), max(ends)], "k", lw=0.8)
  axes.set_xlabel("predicted step time (ms)")
  axes.set_ylabel("measured step time (ms)")
  devices = [d["product"] or d["name"] for d in found["devices"]]
  axes.set_title(" + ".join(dict.fromkeys(devices)), fontsize=9)
  axes.legend(fontsize=8)


def _bars(axes: Any, name: str, found: dict[str, tuple[float, float]]) -> None:
  places = range(len(found))
  for offset, label, column in ((-0.2, "predicted", 0), (0.2, "measured", 1)):
    heights = [times[column] / 1e3 for times in found.values()]
    axes.bar([p + offset for p in places], heights, 0.4, label=label)
  axes.set_xticks(list(places), list(found), rotation=30, ha="right")
  axes.set_ylabel("step time (ms)")
  axes.set_title(name)
  axes.legend(fontsize=8)
