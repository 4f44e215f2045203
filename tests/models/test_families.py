import numpy as np
import pytest

from tfplace import extract, models
from tfplace.errors import ExtractionError
from tfplace.models import families, ptb

MEMBERS = range(families.MEMBERS)
SMALL = {
  "cifar10": {"batch_size": 2, "cells": 1, "filters": 4},
  "ptb": {"units": 8, "vocabulary": 20},
  "nmt_family": {"batch_size": 2, "length": 2, "units": 8, "vocabulary": 20},
}


def test_every_member_of_a_family_is_another_graph():
  assert len({families.draw_cells(i)[0] for i in MEMBERS}) == 32
  assert len({ptb.draw_nodes(i, 12) for i in MEMBERS}) == 32
  sizes = [families.sizes(i) for i in MEMBERS]
  assert len({(s["length"], s["batch_size"]) for s in sizes}) == 32


def test_draws_are_those_of_every_run():
  """Trained policies know these graphs: a change here loses the split."""
  assert ptb.draw_nodes(3, 12)[:3] == (
    (-1, "sigmoid"),
    (0, "tanh"),
    (0, "identity"),
  )
  assert families.sizes(3) == {"length": 10, "batch_size": 32}
  assert families.draw_cells(3)[0].sums[0] == (
    (1, "separable_5x5"),
    (0, "average_pool_3x3"),
  )


def test_families_together_use_every_choice():
  drawn = [cell for i in MEMBERS for cell in families.draw_cells(i)]
  edges = [edge for cell in drawn for pair in cell.sums for edge in pair]
  assert {edge.operation for edge in edges} == set(families.CELL_OPERATIONS)
  nodes = [node for i in MEMBERS for node in ptb.draw_nodes(i, 12)]
  assert {node.activation for node in nodes} == set(ptb.ACTIVATIONS)


def test_a_member_trains_and_extracts():
  zoo = models.build("nmt_family", index=31, **SMALL["nmt_family"])
  x, y = zoo.sample(0)
  losses = [float(zoo.model.train_on_batch(x, y)) for _ in range(20)]
  assert np.isfinite(losses).all()
  assert losses[-1] < losses[0]
  graph = extract(zoo.model, "p100x2", batch_size=zoo.batch_size)
  assert graph.num_ops > 200
  assert all(np.nansum(times) > 0 for times in graph.time_us.values())


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("index", [-1, 32])
def test_an_index_out_of_range_is_named(name, index):
  message = rf"family '{name}' has members 0 to 31, not {index}"
  with pytest.raises(ExtractionError, match=message):
    models.build(name, index=index)
