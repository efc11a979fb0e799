"""Plans as data: removed units, replacements, and pictures of both."""
