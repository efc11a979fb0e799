"""The store of a search: its results on disk, from which it goes on once it was interrupted."""
