"""Modules of PyTorch and torchvision in forms whose units can go: they answer the same calls, by the same weights."""
