"""What a network costs: MACs, parameters, latency and memory, with intervals and where they were measured."""
