"""Calibration inputs and losses from the user's own training data and training step."""
