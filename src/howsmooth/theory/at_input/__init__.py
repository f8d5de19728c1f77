"""Theorems 3 and 4: bounds on the local constant at one input."""
