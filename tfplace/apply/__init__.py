"""Placements applied to Keras models, GraphDefs and SavedModels."""
