"""Norms and largest eigenvalues from above, rounding included: what the theorems are computed with."""
