"""Sites: places where a network may be smaller, units of depth and groups of width alike."""
