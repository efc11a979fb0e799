"""Files on disk: written as a whole or not at all, hashed, and read within limits."""
