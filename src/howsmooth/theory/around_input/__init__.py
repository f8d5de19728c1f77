"""Theorem 5: bounds on a ball around one input."""
