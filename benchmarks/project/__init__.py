"""What holds of the project as a whole."""
