"""Score units of width: by activations, gradients, weights or routing."""
