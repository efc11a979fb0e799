"""The computation graph of a network from a single forward pass, and the units of depth in the graph."""
