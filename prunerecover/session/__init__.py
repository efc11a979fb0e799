"""Session of a surgery: shared state of planning, fitting and judging."""
