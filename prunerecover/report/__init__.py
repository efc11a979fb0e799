"""Compare a network before and after pruning, and write down what was found."""
