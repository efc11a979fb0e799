"""Costs of a network: MACs, parameters, latency and memory, with intervals and environments of measurement."""
