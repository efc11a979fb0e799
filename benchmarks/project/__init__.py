"""Facts about the project as a whole."""
