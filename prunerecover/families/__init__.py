"""Descriptions of model families: their blocks, branches and feed-forward linears by path."""
