"""Attack every bound with random maps: features × dtypes × scales × saturated rows, against an independent derivative.

The truth is a Jacobian in extended precision, written from the definition and sharing no code with the library.
A few seconds of it run in the suite (``test_fuzz.py``); by hand it takes as long as it is given:
``python tests/theory/fuzz.py --minutes 30``, and ``--seed`` to begin elsewhere.
"""

import argparse
import dataclasses
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np
import torch

import howsmooth as hs
from howsmooth.errors import AssumptionError, HowsmoothError
from howsmooth.theory.assumptions import refuse_norms
from howsmooth.theory.at_input.head_at_input import heads_at_input
from howsmooth.theory.at_input.row_certificate import rows_upper
from howsmooth.theory.ball.layer import layer_bound
from howsmooth.theory.ball.rotary_forms import RotaryDistances
from howsmooth.theory.heads import heads_of

WIDE = np.longdouble
# Two floats are compared: the truth is rounded once, and its norm is computed in float64.
ROUNDING = 1 + 1e-13


@dataclasses.dataclass(frozen=True)
class Violation:
    """A bound on the wrong side of the truth, and how to draw it again."""

    seed: int
    name: str
    said: float
    true: float
    f: str

    def __str__(self) -> str:
        return f"seed {self.seed}: {self.name} says {self.said:.17g}, true is {self.true:.17g} ({self.f})"


def draw(seed: int) -> tuple[hs.Attention, torch.Tensor]:
    """Draw a map and an input; the same for the same seed."""
    rng = np.random.default_rng(seed)
    dtype = torch.float32 if rng.random() < 0.4 else torch.float64
    n, d, k, v = (int(x) for x in rng.integers(1, 6, size=4))
    heads = int(rng.choice([1, 1, 2, 4]))
    heads = 3 if heads == 2 and seed % 2 == 0 else heads
    groups = int(rng.choice([g for g in (1, 2, 3, 4) if heads % g == 0]))
    scale = _scales(rng, dtype)

    def gauss(*shape: int, size: float = 1.0) -> torch.Tensor:
        return torch.as_tensor(size * rng.standard_normal(shape)).to(dtype)

    options = {}
    if rng.random() < 0.3:
        size = float(rng.choice([0.1, 1.0, 1000.0]))
        options |= {"query_bias": gauss(heads, k, size=size), "key_bias": gauss(groups, k, size=size)}
    if rng.random() < 0.1:
        options["softcap"] = float(rng.choice([0.5, 5.0, 50.0]))
    if rng.random() < 0.1:
        norm = hs.maps.RMSNorm if rng.random() < 0.5 else hs.maps.LayerNorm
        options |= {name: norm(gain=gauss(k), bias=gauss(k), eps=1e-3) for name in ("query_norm", "key_norm")}
    rotary = hs.maps.Rotary() if k % 2 == 0 and rng.random() < 0.25 else None
    options |= _sink(seed, heads, groups, (k, v), dtype)
    f = hs.Attention(
        query=gauss(heads, k, d, size=scale["query"]),
        key=gauss(groups, k, d),
        value=gauss(groups, v, d, size=scale["value"]),
        output=_outputs(seed, gauss(heads, int(rng.integers(1, 5)), v)) if rng.random() < 0.6 else None,
        positions=hs.maps.Positions(causal=bool(rng.random() < 0.4), rotary=rotary),
        **options,
    )
    shift = float(rng.choice([0.0, 0.0, 0.0, 1.0, 1e3, 1e6])) * rng.standard_normal(d)
    return f, (scale["tokens"] * torch.as_tensor(rng.standard_normal((n, d)) + shift)).to(dtype)


def _sink(seed: int, heads: int, groups: int, widths: tuple[int, int], dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """A sink for some seeds, with biases of keys and values, which count beside it."""
    rng = np.random.default_rng((seed, 2))
    if rng.random() >= 0.2:
        return {}

    def gauss(*shape: int) -> torch.Tensor:
        return torch.as_tensor(float(rng.choice([0.0, 0.1, 1.0, 10.0, 1000.0])) * rng.standard_normal(shape)).to(dtype)

    sink = torch.as_tensor(rng.uniform(-1, 1, heads) * float(rng.choice([0.0, 1.0, 10.0, 100.0]))).to(dtype)
    return {"sink": sink, "key_bias": gauss(groups, widths[0]), "value_bias": gauss(groups, widths[1])}


def _outputs(seed: int, output: torch.Tensor) -> torch.Tensor:
    """Outputs of any kind for even seeds: some heads cancel, some count for nothing."""
    rng, heads = np.random.default_rng((seed, 1)), len(output)
    kind = rng.random()
    if seed % 2:
        return output
    if kind < 0.15:
        output[heads // 2 :] = -output[: heads - heads // 2]
    elif kind < 0.3:
        output = output * torch.as_tensor(10.0 ** rng.uniform(-30, 5, (heads, 1, 1))).to(output.dtype)
    return output


def _scales(rng: np.random.Generator, dtype: torch.dtype) -> dict[str, float]:
    """Ordinary numbers, saturated rows, or anything between 1e-20 and 1e20 (in float32 what its range allows)."""
    names, kind = ("query", "value", "tokens"), rng.random()
    if kind < 0.4:
        return dict(zip(names, 10.0 ** rng.uniform(-1, 1, 3), strict=True))
    if kind < 0.7:
        return {"query": 1.0, "value": 1.0, "tokens": 10.0 ** rng.uniform(0.5, 4)}
    reach = 20 if dtype is torch.float64 else 8
    return dict(zip(names, 10.0 ** rng.uniform(-reach, reach, 3), strict=True))


def truth(f: hs.Attention, X: torch.Tensor) -> float:
    """The norm of the derivative at X, in extended precision."""
    J = jacobian(f, _wide(X))
    size = np.abs(J).max()
    return 0.0 if size == 0 else float(size * np.linalg.norm((J / size).astype(float), 2))


def jacobian(f: hs.Attention, X: np.ndarray) -> np.ndarray:
    """The derivative from its definition: one head, one row at a time."""
    n, d = X.shape
    blocks = []
    for h in range(f.layout.heads):
        (q, Dq), (k, Dk), V, value = _parts(f, X, h)
        J = np.zeros((n, V.shape[0], n, d), WIDE)
        for i in range(n):
            P, slope, apart = _row(f, value, q[i], k, (h, i))
            for j in range(len(P)):
                moved = WIDE(f.score_scale) * slope[j]
                J[i, :, j] += P[j] * (V + np.outer(apart[j], moved * (Dk[j].T @ q[i])))
                J[i, :, i] += P[j] * np.outer(apart[j], moved * (Dq[i].T @ k[j]))
        blocks.append(J)
    if f.output is None:
        return np.concatenate(blocks, axis=1).reshape(-1, n * d)
    parts = [np.einsum("ov,nvmd->nomd", _wide(W), J) for W, J in zip(f.output, blocks, strict=True)]
    return _told(sum(parts), sum(map(np.abs, parts))).reshape(-1, n * d)


def displacement(f: hs.Attention, X: np.ndarray, Z: np.ndarray) -> float:
    """How far apart two outputs are."""
    here, there = _outputs_of_heads(f, X), _outputs_of_heads(f, Z)
    if f.output is None:
        here, there = ([np.concatenate(parts, axis=1)] for parts in (here, there))
    apart = _told(sum(there) - sum(here), sum(map(np.abs, (*here, *there))))
    return float(np.linalg.norm(apart.astype(float)))


def _told(total: np.ndarray, size: np.ndarray) -> np.ndarray:
    """What is left where large parts cancel, and nothing where that may be the rounding of extended precision alone."""
    return np.where(np.abs(total) > 64 * np.finfo(WIDE).eps * size, total, 0)


def _outputs_of_heads(f: hs.Attention, X: np.ndarray) -> list[np.ndarray]:
    """The map from its definition, head by head, without what a bias of values or outputs adds to all inputs alike."""
    found = []
    for h in range(f.layout.heads):
        (q, _Dq), (k, _Dk), _V, value = _parts(f, X, h)
        weights = [_row(f, value, q[i], k, (h, i))[0] for i in range(len(X))]
        found.append(np.stack([P @ value[: len(P)] for P in weights]))
    return found if f.output is None else [y @ _wide(W).T for W, y in zip(f.output, found, strict=True)]


def _parts(f, X, h) -> tuple:
    """Queries and keys with their derivatives, V, and values; a value bias moves nothing where weights sum to one."""
    g = h // f.layout.shared
    queries = _seen(f, X, f.query[h], f.query_bias, h, f.query_norm)
    V = _wide(f.value[g])
    shift = _wide(f.value_bias[g]) if f.sink is not None and f.value_bias is not None else 0
    return queries, _seen(f, X, f.key[g], f.key_bias, g, f.key_norm), V, X @ V.T + shift


def _row(f, value, q, k, place) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Weights of head h in row i, slopes of the soft cap, and values from their mean: for the tokens that it sees."""
    h, i = place
    sees = range(i + 1) if f.positions.causal else range(len(k))
    S, slope = _capped(f, WIDE(f.score_scale) * np.stack([k[j] @ q for j in sees]))
    sink = -np.inf if f.sink is None else _wide(f.sink[h])
    P, beside = np.exp(S - max(S.max(), sink)), np.exp(sink - max(S.max(), sink))
    P = P / (P.sum() + beside)
    apart = np.stack([value[j] - (value[0] if f.sink is None else 0) for j in sees])
    return P, slope, apart - P @ apart


def _seen(f, X, W, bias, index, norm) -> tuple[np.ndarray, list[np.ndarray]]:
    """Queries or keys of one head, and the derivative of each with respect to its token."""
    W, out, slopes = _wide(W), [], []
    for position, x in enumerate(X):
        y, D = W @ x, W
        if bias is not None:
            y = y + _wide(bias[index])
        if norm is not None:
            centre = np.eye(len(y), dtype=WIDE) - (1 / WIDE(len(y)) if norm.centred else 0)
            y, D = centre @ y, centre @ D
            size = np.sqrt((y * y).mean() + WIDE(norm.eps))
            z, gain = y / size, _wide(norm.gain)
            D = gain[:, None] * (D - np.outer(z, z @ D) / len(y)) / size
            y = gain * z + _wide(norm.bias)
        if f.positions.rotary is not None:
            turn = _turn(len(y), position, f.positions.rotary.base)
            y, D = turn @ y, turn @ D
        out.append(y)
        slopes.append(D)
    return np.stack(out), slopes


def _turn(k: int, position: int, base: float) -> np.ndarray:
    """The rotary embedding of a position: pairs (m, m + k/2)."""
    turn, half = np.zeros((k, k), WIDE), k // 2
    for m in range(half):
        angle = WIDE(position) * WIDE(base) ** (WIDE(-2 * m) / k)
        c, s = np.cos(angle), np.sin(angle)
        turn[m, m], turn[m, m + half], turn[m + half, m], turn[m + half, m + half] = c, -s, s, c
    return turn


def _capped(f, S: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    if f.softcap is None:
        return S, np.ones_like(S)
    cap = WIDE(f.softcap)
    e = np.exp(-2 * np.abs(S / cap))
    return cap * np.tanh(S / cap), 4 * e / (1 + e) ** 2  # the slope 1/cosh², which must not overflow


def _wide(x: torch.Tensor) -> np.ndarray:
    return x.detach().double().numpy().astype(WIDE)


def upper_bounds(f: hs.Attention, X: torch.Tensor) -> Iterator[tuple[str, Callable[[], float]]]:
    """Every theorem that bounds the constant at X."""
    n, radius = X.shape[0], float(X.double().norm(dim=-1).max()) * (1 + 1e-12)
    b = hs.bounds
    yield "local_upper", lambda: b.local_upper(f, X).value
    yield "attention_map_upper", lambda: b.attention_map_upper(f, X).value
    yield "local_upper, rows alone", lambda: _rows_alone(f, X)
    yield "sharp_upper, heads together", lambda: _heads_together(f, n, radius)
    yield "sharp_upper", lambda: b.sharp_upper(f, n=n, radius=radius).value
    yield "discrete_upper", lambda: b.discrete_upper(f, n=n, radius=radius).value
    yield "mean_field_upper", lambda: b.mean_field_upper(f, radius=radius).value
    yield "sharp_mean_field_upper", lambda: b.sharp_mean_field_upper(f, radius=radius).value
    yield "masked_mean_field_upper", lambda: b.masked_mean_field_upper(f, radius=radius).value


def _rows_alone(f: hs.Attention, X: torch.Tensor) -> float:
    if f.positions.rotary is not None or f.softcap is not None or f.query_norm is not None:
        raise AssumptionError("rows are about plain scores")
    return rows_upper(heads_at_input(f, X))


def _heads_together(f: hs.Attention, n: int, radius: float) -> float:
    plain = dataclasses.replace(f, sink=None)
    refuse_norms(plain, "heads together")
    return layer_bound(f, heads_of(plain), RotaryDistances.of(f, n), n, radius)


def attack(seed: int, counts: Counter | None = None, radii: tuple[float, ...] = ()) -> Iterator[Violation]:
    """Yield every bound that the map of this seed violates; ``radii`` of balls around X, one by turns if none."""
    f, X = draw(seed)
    true, rng = truth(f, X), np.random.default_rng(seed)
    checks = [(name, said, true) for name, said in upper_bounds(f, X)]
    for eps in radii or ((1e-6, 1e-3, 0.3, 3.0)[seed % 4],):
        checks += _around(f, X, eps, rng, per_token=seed // 4 % 2 == 1)
    for name, said, constant in checks:
        value = _said(said)
        if value is not None:
            yield from _compared(seed, name, value, constant, f, counts)
    try:
        estimate = hs.local_lipschitz(f, X, confidence=1 - 1e-12, seed=seed)
    except HowsmoothError:
        return
    yield from _compared(seed, "bracket, upper end", float(estimate.upper), true, f, counts)
    lower = float(estimate.lower)
    if lower > true * (1 + 4 * torch.finfo(f.dtype).eps):  # where nothing is widened, it is rounded to its dtype
        yield Violation(seed, "bracket, lower end", lower, true, repr(f))


def _around(f, X, eps, rng, *, per_token: bool) -> list[tuple[str, Callable[[], float], float]]:
    """The constant at an input nearby, and how far the output is there."""
    size = X.double().norm(dim=-1)
    eps = eps * float(size.max() if per_token else size.norm())
    E = rng.standard_normal(X.shape)
    E = E / np.linalg.norm(E, axis=1 if per_token else None, keepdims=True)
    Z = X.double() + (1 - 1e-9) * eps * torch.as_tensor(E)
    wide, near = f.to(torch.float64), f", eps = {eps:.3g}" + (" for each token" if per_token else "")
    ball = {"eps": eps, "metric": ("total", "token")[per_token]}
    moved = displacement(wide, _wide(X), _wide(Z))
    b = hs.bounds
    return [
        ("neighbourhood_upper" + near, lambda: b.neighbourhood_upper(f, X, **ball).value, truth(wide, Z)),
        ("displacement_upper" + near, lambda: b.displacement_upper(f, X, **ball).value, moved),
    ]


def _said(said: Callable[[], float]) -> float | None:
    """What a theorem says; none if it refuses with a reason. Any other error is a finding of its own."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return said()
    except AssumptionError:
        return None


def _compared(seed, name, said, true, f, counts) -> Iterator[Violation]:
    if counts is not None:
        counts[name.split(",")[0]] += 1
    if not said * ROUNDING >= true:  # also where one of them is no number
        yield Violation(seed, name, said, true, repr(f))


def main() -> None:
    """Attack for some minutes and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    asked = parser.parse_args()
    end, seed, counts, found = time.monotonic() + 60 * asked.minutes, asked.seed, Counter(), 0
    while time.monotonic() < end:
        for violation in attack(seed, counts):
            found += 1
            print(violation, flush=True)
        seed += 1
    print(f"{seed - asked.seed} maps, {sum(counts.values())} checks, {found} violations")
    print(", ".join(f"{name}: {count}" for name, count in sorted(counts.items())))
    raise SystemExit(1 if found else 0)


if __name__ == "__main__":
    main()
