"""Modules of PyTorch and torchvision in forms with removable units: the same calls, with the same weights."""
