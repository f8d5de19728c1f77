"""Theorem 2 and its relatives: explicit inputs that attain the lower bounds."""
