"""Plans as data: what goes, what is left in its place, and how that is drawn."""
