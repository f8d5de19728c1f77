"""Symbols in which a network on a box is written: where they lie, and bounds on linear functions and forms of them."""

import numpy as np

from howsmooth.check.balls import UNIT, Array, BallArray, ball, largest_eigenvalue, product_by_lengths, raised

Pair = tuple[Array, Array]  # F and G, symbols first, of a quadratic form Σ_r⟨F_r, s⟩⟨G_r, s⟩
FLOOR = 1e-8  # the least weight of a symbol, of the mean of all


class Symbols:
    """Where symbols lie: y = Uξ, in blocks of rows that share no ξ, and η within half-widths.

    Attributes:
        blocks: Rows of U, what they are in these columns that they read, and its products with itself.
        moved: How many symbols y there are.
        half: The half-widths of η.
        reach: The largest absolute value of every symbol.
    """

    def __init__(self, U: Array, tokens: Array) -> None:
        """Take U, and the token that each row belongs to: rows of one token are a block if tokens read no common ξ."""
        read = np.array([(U[tokens == i] != 0).any(0) for i in np.unique(tokens)]).reshape(-1, U.shape[1])
        parts = np.split(U, np.flatnonzero(np.diff(tokens)) + 1) if (read.sum(0) <= 1).all() else [U]
        parts = [part[:, (part != 0).any(0)] for part in parts]
        ends = np.cumsum([0, *map(len, parts)])
        self.blocks = [(slice(a, b), part, part @ part.T) for a, b, part in zip(ends, ends[1:], parts, strict=False)]
        self.moved, self.inputs, self.half = len(U), U.shape[1], np.zeros(0)
        self.reach = raised(np.abs(U).sum(-1), self.inputs)

    def add(self, half: Array) -> None:
        """Append symbols of the given half-widths."""
        self.half, self.reach = np.concatenate([self.half, half]), np.concatenate([self.reach, half])

    def sums(self, sizes: Array) -> Array:
        """Bound linear functions of the symbols by the absolute values of their coefficients, symbols first."""
        return raised(np.tensordot(self.reach[: len(sizes)], sizes, 1), len(sizes))

    def ranges(self, x: BallArray) -> Array:
        """Bound linear functions of the symbols, symbols first."""
        flat = x.mid.reshape(len(x.mid), -1)
        found = self.half[: len(flat) - self.moved] @ np.abs(flat[self.moved :])
        for rows, U, _gram in self.blocks:
            found = found + np.abs(U.T @ flat[rows]).sum(0)
        found = raised(found, self.inputs + len(flat)).reshape(x.shape[1:])
        return raised(found + self.sums(x.rad + 2 * len(flat) * UNIT * np.abs(x.mid)), 2)

    def form_ranges(self, pairs: list[Pair]) -> tuple[float, float]:
        r"""Bound a quadratic form H of the symbols from above, and -H.

        Any weights w will do, and any C with :math:`CC^\top\succeq U\,\mathrm{diag}(w)^{-1}U^\top`: every s of the box
        is Cv with :math:`|v|^2\le\sum w`, and the form at most :math:`\lambda_{\max}(C^\top HC)\sum w` (docs,
        :ref:`box-forms`). Of what H does not see nothing needs to be known.
        """
        size, rows = max(len(F) for F, _G in pairs), sum(F.shape[1] for F, _G in pairs)
        H, most = np.zeros((size, size)), 0.0
        for F, G in pairs:
            H[: len(F), : len(F)] += F @ G.T
            most += float(self.sums(np.abs(F)) @ self.sums(np.abs(G)))
        H, most = (H + H.T) / 2, float(raised(np.float64(most), rows))
        lost = 4 * (rows + len(pairs) + 2) * UNIT * most  # rounding errors of H
        seen = [(part, U, gram) for part, U, gram in self.blocks if H[part].any()]
        bent = self.moved + np.flatnonzero(H[self.moved :].any(1))
        half = self.half[bent - self.moved]
        # weights are guesses: the row norms of the form in ξ and η/g
        changed = np.zeros((size, size))
        for part, _U, gram in seen:
            changed[part] = gram @ H[part]
        changed[bent] = half[:, None] ** 2 * H[bent]
        squares = [(U * (H[part] @ changed[:, part] @ U)).sum(0) for part, U, _gram in seen]
        squares.append(half**2 * (H[bent] * changed[:, bent].T).sum(1))
        weights = [np.sqrt(np.maximum(x, 0)) for x in squares]
        mean = float(np.mean(np.concatenate(weights))) if seen or len(bent) else 0.0
        if not 0 < mean < np.inf:
            return most, most
        weights = [np.maximum(w / mean, FLOOR) for w in weights]
        C = np.zeros((size, size))
        for (part, U, _gram), w in zip(seen, weights, strict=False):
            scaled = U / np.sqrt(w)
            S = scaled @ scaled.T
            if not 2.0**-900 < (trace := np.trace(S)) < np.inf:
                return most, most
            # by more than S, a sum of products, and its factor are off; both by shares of the trace
            room = 4 * (U.shape[1] + 2 * len(S) + 16) * UNIT * trace
            C[part, part] = np.linalg.cholesky(S + room * np.eye(len(S)))
        C[bent, bent] = half / np.sqrt(weights[-1]) * (1 + 8 * UNIT)
        N = product_by_lengths(product_by_lengths(ball(C.T), ball(H)), ball(C))
        total = float(raised(np.concatenate(weights).sum(), size + self.inputs))
        above, below = (float(raised(np.float64(largest_eigenvalue(x) * total + lost), 4)) for x in (N, -N))
        return above, below
