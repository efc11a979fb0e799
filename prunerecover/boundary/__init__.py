"""BoundaryDPT: find the split of a depth budget between attentions and activations by short recoveries."""
