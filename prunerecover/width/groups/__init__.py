"""Groups of coupled entries, with single removable units."""
