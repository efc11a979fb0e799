"""Detectors of torchvision, transformers and ultralytics with a common interface."""
