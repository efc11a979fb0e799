"""Variants of sites: what may stand there in place of what there is, and how it is fitted."""
