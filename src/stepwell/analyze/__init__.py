"""Measurements of a model and its data before or after training; they return data and draw nothing."""
