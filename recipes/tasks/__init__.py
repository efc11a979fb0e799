"""LightningModules for image classification and segmentation."""
