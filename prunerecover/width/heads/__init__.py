"""Sizes of heads: where dimensions of heads lie, and whether an attention can do with fewer of them."""
