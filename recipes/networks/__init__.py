"""Networks by name, and names of networks."""
