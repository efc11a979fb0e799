"""The computation graph of a network, as one forward pass shows it, and the units of depth in it."""
