"""Table of units before a decision: the cost and the sensitivity of each unit."""
