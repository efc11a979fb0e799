"""Where a network may be smaller: units of depth and groups of width, found by one function."""
