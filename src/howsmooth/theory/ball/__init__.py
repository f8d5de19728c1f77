"""Theorems 1 and 12: bounds on sequences of n tokens in a ball."""
