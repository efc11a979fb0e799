"""What each supported model family calls its parts: the only place that knows architectures."""
