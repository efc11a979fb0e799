"""Files on disk: atomic writes, hashes, and reads within limits."""
