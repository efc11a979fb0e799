"""Trainers of other libraries, in which the same callbacks prune and recover."""
