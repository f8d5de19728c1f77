"""Schemes that round numbers, one file for each family."""
