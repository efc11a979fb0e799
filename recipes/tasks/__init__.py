"""LightningModules for image classification, segmentation and language modelling."""
