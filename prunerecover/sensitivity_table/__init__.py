"""The table of units before any decision: the cost and the sensitivity of each."""
