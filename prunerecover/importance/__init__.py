"""Importances: scores of units in depth and in width, higher means keep; one registry, one file a family of formulas.

Every importance leaves the model bit for bit as it was (parameters, buffers, random state, train or eval mode).
"""
