"""Importances of units: higher means keep.

Every importance leaves the model bit for bit as it was (parameters, buffers, random state, train or eval mode).
"""
