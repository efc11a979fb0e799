"""The networks of the zoo, a file per suite."""
