"""Costs of a network: MACs, parameters, latency and memory, with intervals and where they were measured."""
