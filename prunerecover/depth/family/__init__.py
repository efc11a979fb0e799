"""Units of the supported families, which are known by their parts, what they leave, and the edits that do it."""
