"""Theorem 12: attention of other kinds than softmax, each with its bounds in a ball and at one input."""
