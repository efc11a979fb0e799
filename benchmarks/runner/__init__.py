"""Runner of all benchmarks: rows, their figures, the command line, and the page."""
