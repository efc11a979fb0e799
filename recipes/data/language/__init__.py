"""Text, questions and instructions for language models."""
