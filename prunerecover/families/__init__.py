"""Descriptions of model families: blocks, branches and feed-forward linears by path."""
