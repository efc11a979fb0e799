"""Choose how many units of every group go for a budget or a tolerance."""
