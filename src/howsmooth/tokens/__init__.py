"""WHICH words do it: tokens found again and swapped; attacks that a reader could type."""
