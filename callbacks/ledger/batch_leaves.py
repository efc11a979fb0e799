"""Leaves of nested batches in Lightning 2.6, made by a class of torch that warns whenever it is called.

Lightning's loaders make one for each loader of each epoch; users can do nothing about the warnings (`LeafSpec` is
deprecated), which torch's own function for leaves does not give.
"""

from __future__ import annotations

from lightning.pytorch.utilities import _pytree as lightning_tree
from torch.utils import _pytree as torch_tree


def make_leaves_quietly() -> None:
    """Have Lightning make leaves by torch's function, where torch has one (from the version on that warns)."""
    make = getattr(torch_tree, "treespec_leaf", None)
    if make is not None and hasattr(lightning_tree, "LeafSpec"):
        object.__setattr__(lightning_tree, "LeafSpec", make)
