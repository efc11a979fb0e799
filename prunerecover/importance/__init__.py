"""Importance scores of units in depth and in width, higher means keep: one registry, one file per family of formulas.

Every importance leaves the model bit for bit as before: parameters, buffers, random state, train or eval mode.
"""
