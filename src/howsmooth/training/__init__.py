"""WHILE it learns: the constant as a penalty, and as something to watch."""
