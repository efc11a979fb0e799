"""Surgery, the only code that changes the structure of a network, and its undo."""
