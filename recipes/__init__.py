"""LightningModules, DataModules, the command line and the quickstart, built on the engine and the callbacks.

This package imports nothing, for a fast `prunerecover --help`: import from the submodules, for example `from
prunerecover.recipes.tasks.image_classifier import ImageClassifier`.
"""
