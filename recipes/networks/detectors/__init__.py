"""Detectors of torchvision, transformers and ultralytics behind one interface."""
