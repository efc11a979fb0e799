"""Progress bars, and the look that all figures share."""
