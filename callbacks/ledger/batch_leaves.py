"""Leaves of nested batches in Lightning 2.6, made by a class of torch that warns at every call.

Lightning's loaders make one leaf per loader and epoch; users can do nothing about the warnings (`LeafSpec` is
deprecated). torch's own function for leaves gives no warning.
"""

from __future__ import annotations

from lightning.pytorch.utilities import _pytree as lightning_tree
from torch.utils import _pytree as torch_tree


def make_leaves_quietly() -> None:
    """Make Lightning create leaves by torch's function, in versions of torch with the function (and the warning)."""
    make = getattr(torch_tree, "treespec_leaf", None)
    if make is not None and hasattr(lightning_tree, "LeafSpec"):
        object.__setattr__(lightning_tree, "LeafSpec", make)
