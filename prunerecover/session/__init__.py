"""The session of a surgery: what planning, fitting and judging read."""
