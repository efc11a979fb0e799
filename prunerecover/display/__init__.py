"""Progress bars, and the common look of all figures."""
