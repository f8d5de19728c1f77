"""A real task to train on: whether a film review is good or bad."""
