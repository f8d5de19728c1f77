"""Allowances for rounding errors: every number that bounds are raised by, and where it comes from.

The rules they follow, and which of them are proven, are on the page on rounding. *Units* are multiples of the spacing
of floats at one, for each summand of a sum of products; *shares* stand for whole chains of operations, which are not
followed one by one: they are far above the rounding errors of as many operations as occur there.
"""

# Norms from the largest eigenvalue of a Gram matrix, for each row and column: its product, and a stable solver.
NORM_UNITS = 8
# Formulas of a few dozen operations on numbers of one sign; products of weights in the coordinates of a metric.
FORMULA_UNITS = 64
# Solvers see an operator that is off by a few units.
SOLVER_UNITS = 8
# A weight enters each term of the derivative of attention twice, from both sides.
FORWARD_FACTOR = 4.0
# Sums of products of heads that cancel, of their terms.
PRODUCT_UNITS = 32.0
# Tokens stay inside a ball.
DOMAIN_UNITS = 8

# Derivatives on a ball: a product, matrices under scales, a whole term; the logarithm of a weight, where the other
# weights of its row are never taken below 1e-12 of the row.
PRODUCT, SCALED, TERM, LOG_WEIGHT = 1e-12, 1e-11, 1e-9, 2e-12
# A root that bisection finds.
ROOT_ERROR = 1e-12

# Certificates: norms and remainders, and of the largest of a stage; sums of up to a million products whose terms cancel
# by a factor of ten, and of a thousand.
CHAIN_FACTOR, CHAIN_FLOOR = 1 + 1e-9, 1e-12
# Eigenvalues under a square root, of the largest.
ROOT_SHARE = 1e-13
# Lines for ReLUs: of a bound, and of the terms of it.
LINE_SHARE, LINE_TERMS = 1e-12, 1e-15
# A peak of a derivative between two points of a grid: h²/8 times two more derivatives, at most, and rounding.
GRID_ERROR = 1e-5
# Tables in single precision: a share of each norm, and a multiple of the errors of so many random sums of its columns.
# The probability that all of these are so much below the error of the columns is 4e-9.
SINGLE_SHARE, ERROR_FACTOR, PROBES = 1e-3, 100.0, 4

# Verdicts: ranges, of the sum of absolute values; margins, of all magnitudes that enter them; ends of a box.
RANGE_SHARE, MARGIN_SHARE, BOX_UNITS = 1e-10, 1e-9, 4
# Sums of products of matrices in verdicts, of the sum of their absolute values: below 64 units for up to 4,000 of them.
SUM_SHARE = 2.0**-46

# Proof files claim less than results, and their norms are larger: room for the rounding errors of whoever checks them.
PROOF_ROOM, NORM_ROOM = 1e-8, 1e-9
# The same for every stage of a chain, since the radii of balls grow from layer to layer, and for margins on a box.
CHAIN_ROOM, MARGIN_ROOM = 3e-4, 1e-6
