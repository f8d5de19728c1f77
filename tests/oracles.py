"""Slow and certain answers."""

import math

import torch
from torch import Tensor


def dense_jacobian(f, X: Tensor) -> Tensor:
    """The whole Jacobian of one input, by reverse-mode autograd."""
    J = torch.func.jacrev(f)(X)
    return J.reshape(math.prod(J.shape[: J.ndim - X.ndim]), X.numel())


def dense_by_rows(f, X: Tensor) -> Tensor:
    """The same, one row at a time: some modules hold what torch.func does not take."""
    return torch.autograd.functional.jacobian(f, X).reshape(-1, X.numel())


def constant(f, X: Tensor) -> Tensor:
    """The local Lipschitz constant of one input, by a dense SVD."""
    return torch.linalg.matrix_norm(dense_jacobian(f, X), 2)


def attention_by_loops(f, X: Tensor) -> Tensor:
    """Attention of one sequence from its definition: one query, one head, one visible token at a time."""
    n, heads, groups = X.shape[0], f.layout.heads, f.layout.groups
    rows = []
    for i in range(n):
        row = []
        for h in range(heads):
            g = h // (heads // groups)
            q = _vector(f, f.query, f.query_bias, h, f.query_norm, X[i], i)
            scores, values = [], []
            for j in range(n):
                bias = _score_bias(f, h, i, j)
                if bias == -math.inf:
                    continue
                k = _vector(f, f.key, f.key_bias, g, f.key_norm, X[j], j)
                score = f.score_scale * (q @ k + _met(f.positions.distances, q, k, h, j - i))
                if f.softcap is not None:
                    score = f.softcap * torch.tanh(score / f.softcap)
                scores.append(score + bias)
                value = f.value[g] @ X[j]
                values.append(value if f.value_bias is None else value + f.value_bias[g])
            weights = torch.softmax(torch.stack(scores), dim=0)
            row.append(weights @ torch.stack(values))
        if f.output is None:
            rows.append(torch.cat(row))
        else:
            mixed = sum(f.output[h] @ row[h] for h in range(heads))
            rows.append(mixed if f.output_bias is None else mixed + f.output_bias)
    return torch.stack(rows)


def _met(distances, q, k, h, offset):
    if distances is None:
        return 0.0
    row = distances.reach - 1 + offset
    return q @ distances.keys[h, row] + distances.queries[h, row] @ k


def _vector(f, W, bias, index, norm, x, position):
    rows = W @ x if bias is None else W @ x + bias
    if norm is not None:  # over each head, or over all in one row
        rows = norm(rows.reshape(-1, len(norm.gain))).reshape(rows.shape)
    y = rows[index]
    rotary = f.positions.rotary
    return y if rotary is None else _rotate(rotary, y, position)


def _rotate(rotary, y, index):
    dim = y.shape[0] if rotary.dim is None else rotary.dim
    position = float(index if rotary.positions is None else rotary.positions[index])
    out = y.clone()
    for m in range(dim // 2):
        omega = rotary.base ** (-2 * m / dim) if rotary.frequencies is None else float(rotary.frequencies[m])
        c, s = math.cos(position * omega), math.sin(position * omega)
        a, b = (2 * m, 2 * m + 1) if rotary.interleaved else (m, m + dim // 2)
        out[a], out[b] = c * y[a] - s * y[b], s * y[a] + c * y[b]
    return out


def _score_bias(f, h, i, j) -> float:
    p, bias = f.positions, 0.0
    if (p.causal and j > i) or (p.window is not None and abs(i - j) >= p.window):
        return -math.inf
    if p.padding is not None and not p.padding[j]:
        return -math.inf
    if p.mask is not None:
        mask = p.mask if p.mask.ndim == 2 else p.mask[h if p.mask.shape[0] > 1 else 0]
        if mask.dtype == torch.bool:
            bias += 0.0 if mask[i, j] else -math.inf
        else:
            bias += float(mask[i, j])
    if p.relative_bias is not None:
        table = p.relative_bias[h if p.relative_bias.shape[0] > 1 else 0]
        bias += float(table[(table.shape[0] - 1) // 2 + j - i])
    if p.position_bias is not None:
        bias += float(p.position_bias[h if p.position_bias.shape[0] > 1 else 0, j])
    if f.weights is not None:
        bias += math.log(float(f.weights[j])) if f.weights[j] > 0 else -math.inf
    return bias


class Diagonal:
    """Diagonal operators: known singular values at any size. A random start makes every basis as good as this one."""

    def __init__(self, entries: Tensor, count: int | None = None) -> None:
        self.entries = entries
        self.batch = () if count is None else (count,)
        self.domain = self.codomain = (entries.shape[-1],)
        self.dtype, self.device = entries.dtype, entries.device

    def jvp(self, E: Tensor) -> Tensor:
        return self.entries * E

    vjp = jvp


def worst_case_ratio(steps: int, dimension: int, confidence: float) -> float:
    """Kuczyński and Woźniakowski (1992): σ_max over the Ritz value after so many steps, for the worst spectrum."""
    excess = (math.log(1.648 * math.sqrt(dimension) / (1 - confidence)) / (2 * steps - 1)) ** 2
    return math.inf if excess >= 1 else (1 - excess) ** -0.5


def top(matrix):
    return torch.linalg.matrix_norm(matrix.double(), ord=2)
