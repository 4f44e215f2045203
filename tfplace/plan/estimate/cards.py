"""The cards of an estimate, and the costs of a step on all of them at once.

Costs of all cards come from one pass over one trace: the step gets a time per
card, and the graph of one card takes its own column. So a graph equals the one
that `tfplace.extract` gives for that card.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tfplace import cost, formats
from tfplace.errors import ExtractionError, ProblemError, shown
from tfplace.graph import phases
from tfplace.graph.argument_checks import whole_number
from tfplace.graph.cluster import Cluster, Device
from tfplace.graph.microbatches import VariantConfig
from tfplace.graph.op_graph import OpGraph
from tfplace.graph.problem import Problem
from tfplace.graph.progress import Progress, silent
from tfplace.hardware.hardware import GPUS
from tfplace.hardware.presets import cluster_preset
from tfplace.plan.clusters import ClusterLike, find_cluster
from tfplace.plan.config import PlanConfig
from tfplace.plan.source import GRAPH, ModelSource, check_variant
from tfplace.plan.steps import compiles

if TYPE_CHECKING:
  from tfplace.extraction.traced import TracedStep

MAX_DEVICES = 8  # As many as a preset has in one host.


@dataclasses.dataclass(frozen=True)
class Card:
  """One kind of device, alone or several of them in a host.

  Attributes:
    name: GPU of a preset, or the name of a cluster.
    cluster: all of its devices; those of other kinds serve ops that a card
      cannot run.
    is_preset: whether smaller presets replace a part of the cluster.
    kind: kind of the devices that count; None for all but CPUs, of which the
      fastest kind is the one device.
  """

  name: str
  cluster: Cluster
  is_preset: bool
  kind: str | None = None

  def kinds(self) -> tuple[str, ...]:
    """Returns the kinds that count where several devices do."""
    return (self.kind,) if self.kind else _kinds(self.cluster)

  def with_devices(self, count: int, kind: str) -> Cluster:
    """Returns the cluster with `count` devices of a kind, and all others."""
    if self.is_preset:
      return cluster_preset(f"{self.name}x{count}")
    devices = [d for d in self.cluster.devices if d.kind == kind]
    left_out = {device.name for device in devices[count:]}
    return dataclasses.replace(
      self.cluster,
      devices=tuple(d for d in self.cluster.devices if d.name not in left_out),
      links=tuple(
        link
        for link in self.cluster.links
        if not {link.src, link.dst} & left_out
      ),
    )


def cluster_card(cluster: Cluster) -> Card:
  """Returns the card of a given cluster as a whole."""
  return Card(cluster.name, cluster, False)


def cards_of(cluster: ClusterLike | None) -> list[Card]:
  """Returns the rows of an estimate, or a card per preset GPU for None.

  A cluster has a card per kind of its devices; CPUs serve the others.
  """
  if cluster is None:
    presets = ((gpu, cluster_preset(f"{gpu}x{MAX_DEVICES}")) for gpu in GPUS)
    return [Card(gpu, preset, True) for gpu, preset in presets]
  cluster = find_cluster(cluster)
  kinds = _kinds(cluster)
  if len(kinds) < 2:
    return [cluster_card(cluster)]
  return [
    Card(f"{cluster.name}: {kind}", cluster, False, kind) for kind in kinds
  ]


def _kinds(cluster: Cluster) -> tuple[str, ...]:
  """Returns the kinds but CPUs, or CPUs if there is nothing else."""
  kinds = dict.fromkeys(d.kind for d in cluster.devices if not d.is_cpu)
  return tuple(kinds or dict.fromkeys(d.kind for d in cluster.devices))


@dataclasses.dataclass(frozen=True)
class GivenStep:
  """Step of a graph file, with the attributes of a traced step that it says."""

  graph: OpGraph
  variables: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  weights: None = None

  @property
  def name(self) -> str:
    return self.graph.name

  @property
  def training(self) -> bool:
    says = self.graph.extra.get("training")
    if isinstance(says, bool):
      return says
    return not phases.is_forward(self.graph).all()

  @property
  def batch_size(self) -> int:
    return max(0, whole_number(self.graph.extra.get("batch_size")) or 0)

  def on(self, card: Card) -> OpGraph:
    """Returns the graph; raises ProblemError if it has no times for a card."""
    if card.is_preset:
      raise ProblemError(
        f"graph {self.name!r} has times for the devices of one cluster, and"
        " none is given: name it (--cluster), or estimate the model itself"
      )
    if not set(card.kinds()) & set(self.graph.kinds):
      raise ProblemError(
        f"graph {self.name!r} has no times for {' or '.join(card.kinds())}, the"
        f" devices of cluster {card.cluster.name!r}, only for"
        f" {', '.join(self.graph.kinds)}: name such a cluster, or extract the"
        " model for this one"
      )
    return self.graph


@dataclasses.dataclass(frozen=True)
class Traces:
  """Traces of a source in one precision, and their costs on cards.

  Attributes:
    source: the model.
    config: the request.
    precision: dtype policy; None is the model's own.
    on_stage: called at the start of each stage.
  """

  source: ModelSource
  config: PlanConfig
  precision: str | None = None
  on_stage: Progress = silent

  def trace(
    self, variant: VariantConfig, batch_size: int | None = None
  ) -> "TracedStep | GivenStep":
    """Traces a step variant, or loads the step of a graph file."""
    if self.source.kind == GRAPH:
      return self._given_step(batch_size or self.source.batch_size)
    return self.source.trace(
      variant,
      batch_size=batch_size,
      precision=self.precision,
      on_stage=self.on_stage,
    )

  def _given_step(self, batch_size: int | None) -> GivenStep:
    name = self.source.name
    check_variant(self.config.variant, GRAPH, name, self.source.training)
    asked = {"batch_size": batch_size, "precision": self.precision}
    for option, value in asked.items():
      if value is not None:
        raise ExtractionError(
          f"{option} is {shown(value)}, and {name!r} is a graph with costs of"
          f" its own {option}: leave it out, or name the model"
        )
    return GivenStep(formats.load_graph(name))

  def graphs(
    self, traced: "TracedStep | GivenStep", cards: Sequence[Card]
  ) -> list[OpGraph]:
    """Returns the op graph of a step for each card, from one pass of costs."""
    if isinstance(traced, GivenStep):
      return [traced.on(card) for card in cards]
    first = cards[0].cluster
    costs_on = functools.partial(
      cost.op_graph,
      traced,
      on_stage=self.on_stage,
      cost_model=self.config.costs,
      compile_units=compiles(self.source, first, self.config),
    )
    if len(cards) == 1:
      return [costs_on(first)]
    # Equal hardware, such as the host of several presets, is one kind here.
    kinds: dict[str, str] = {}
    devices: list[Device] = []
    columns: list[dict[str, str]] = []
    for card in cards:
      columns.append({})
      for device in card.cluster.devices:
        if device.kind in columns[-1]:
          continue
        hardware = repr((device.kind, device.extra.get("hardware")))
        if hardware not in kinds:
          kinds[hardware] = f"{card.name} {device.kind}"
          name = f"/device:{device.kind}:{len(devices)}"
          devices.append(
            dataclasses.replace(device, name=name, kind=kinds[hardware])
          )
        columns[-1][device.kind] = kinds[hardware]
    everything = Cluster("all cards", tuple(devices))
    graph = costs_on(everything)
    return [_columns(graph, kinds_of) for kinds_of in columns]


def _columns(graph: OpGraph, kinds: dict[str, str]) -> OpGraph:
  """Returns the graph with the times of some kinds under other names."""
  return dataclasses.replace(
    graph,
    time_us={kind: graph.time_us[name] for kind, name in kinds.items()},
    peak_us={
      kind: graph.peak_us[name]
      for kind, name in kinds.items()
      if name in graph.peak_us
    },
  )


def main_kind(graph: OpGraph, cluster: Cluster) -> str:
  """Returns the device kind that would finish the step first.

  A CPU counts only in a cluster without other devices.
  """
  problem = Problem(graph, cluster)
  first = {d.kind: i for i, d in reversed([*enumerate(cluster.devices)])}
  fastest = problem.fastest_us

  def work_us(kind: str) -> float:
    us = problem.time_us[:, first[kind]]
    return float(np.where(np.isnan(us), fastest, us).sum())

  return min(_kinds(cluster), key=work_us)
