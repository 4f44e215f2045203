"""Placement of Keras models, graphs and SavedModels by a plan."""

from tfplace.keras.callback import PlacementCallback
from tfplace.keras.custom_step import split_gradients
from tfplace.keras.model import place_model, placed, plan_model
from tfplace.keras.placed_files import (
  placed_graph_def,
  write_placed_graph_def,
  write_placed_saved_model,
)

__all__ = [
  "PlacementCallback",
  "place_model",
  "placed",
  "placed_graph_def",
  "plan_model",
  "split_gradients",
  "write_placed_graph_def",
  "write_placed_saved_model",
]
