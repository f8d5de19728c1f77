"""WHICH words do it: tokens found again, swapped and doubled; attacks that a reader could type."""
