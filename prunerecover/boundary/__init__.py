"""BoundaryDPT: the best split of a depth budget between attentions and activations, found by short recoveries."""
