"""Margins of Theorem 5: what float64 may lose, and what keeps quotients and powers in the range of floats."""

# A norm, or a sum of a few products; matrices that were divided by scales; a whole term, sums of thousands of products.
PRODUCT, SCALED, TERM = 1e-12, 1e-11, 1e-9
# The logarithm of a weight: sums of exponentials of thousands.
LOG_WEIGHT = 2e-12
# What no denominator is below, and what the growth of a standard deviation is not taken above: distances are less.
TINY, HUGE = 1e-300, 1e75
