"""Store of a search: results on disk, from which an interrupted search continues."""
