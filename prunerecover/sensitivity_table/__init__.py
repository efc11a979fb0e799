"""What each unit of a network costs and what it matters, before anything is decided."""
