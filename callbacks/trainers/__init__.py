"""Trainers of other libraries, with the same callbacks for pruning and recovery."""
