"""From a placement to the running Keras model, and to a placed GraphDef."""

from tfplace.apply.applied import AppliedPlacement
from tfplace.apply.decorator import placed
from tfplace.apply.graph_def import (
  placed_graph_def,
  write_graph_def,
  write_placed_graph_def,
)
from tfplace.apply.keras_model import place_model, plan_model
from tfplace.apply.local_cluster import local_cluster
from tfplace.apply.saved_model import write_placed_saved_model
