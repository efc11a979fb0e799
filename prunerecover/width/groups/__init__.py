"""Turn what is tied together into groups of units that can be removed alone."""
