"""LightningModules for image classification, segmentation, detection and language modelling."""
