"""Language models without blocks, and what a search for them costs."""
