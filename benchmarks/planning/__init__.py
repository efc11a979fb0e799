"""Planning itself: its time on several ranks, and what its parts gain."""
