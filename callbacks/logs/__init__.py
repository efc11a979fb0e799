"""What a fit logged, and what loggers show of its report."""
