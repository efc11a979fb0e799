"""LightningModules, DataModules, the command line and the quickstart, built on the engine and the callbacks.

Imports nothing itself, so that `prunerecover --help` stays fast: import from the submodules, for example
`from prunerecover.recipes.tasks.image_classifier import ImageClassifier`.
"""
