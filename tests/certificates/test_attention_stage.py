"""The remainder of attention, term by term: each as its theorem says it, row by row, with numbers alone."""

import dataclasses
import math

import pytest
import torch
from draws import gaussian, uniform

import howsmooth as hs
from howsmooth.certificates import attention_stage
from howsmooth.certificates.attention_stage import LARGEST_CHANGE, AttentionStage
from howsmooth.certificates.image_norms import EUCLIDEAN, SquaredBall
from howsmooth.certificates.stages import FirstOrder
from howsmooth.errors import AssumptionError


def attention(rng, heads=2, groups=2, **others):
    return hs.Attention(
        query=gaussian(rng, heads, 2, 4),
        key=gaussian(rng, groups, 2, 4),
        value=gaussian(rng, groups, 2, 4),
        output=gaussian(rng, heads, 4, 2),
        query_bias=gaussian(rng, heads, 2),
        value_bias=gaussian(rng, groups, 2),
        **others,
    )


KINDS = {
    "heads": lambda rng: attention(rng),
    "masked": lambda rng: attention(rng, positions=hs.maps.Positions(causal=True)),
    "shared keys": lambda rng: attention(rng, heads=4),
    "scores turned round": lambda rng: attention(rng, scale=-0.7),
}


@dataclasses.dataclass
class Row:
    """One row of one head, in plain numbers: weights, distances of values from their mean, and sizes of what moves."""

    P: list
    seen: list
    f: list
    D: float
    scale: float
    q: float
    k: list
    w: list
    s: float
    spread: float
    linear: float
    scores: list

    def met(self, q, k):
        return [abs(self.scale) * q * each for each in k]

    def mean(self, x):
        return sum(p * each for p, each in zip(self.P, x, strict=True))

    def centred(self, x):
        return [each + self.mean(x) for each in x]

    def root(self, x):
        return math.sqrt(self.mean([each * each for each in x]))

    def far_root(self, x):
        return math.sqrt(self.mean([f * each * each for f, each in zip(self.f, x, strict=True)]))

    def old(self, x):
        return min(self.mean([f * each for f, each in zip(self.f, x, strict=True)]), self.D * self.root(x))

    def sums(self, sizes, met, each):
        s = min(sizes.s + self.root(met), self.root(each))
        return s, min(sizes.spread + self.far_root(met), self.far_root(each))

    def mean_move(self, met, s, alpha):
        by_lengths = self.mean([f * a for f, a in zip(self.f, alpha, strict=True)])
        return min(by_lengths, self.D * s, self.linear + self.mean(self.w) + self.old(met))

    def visible(self, x):
        return [each if seen else 0.0 for each, seen in zip(x, self.seen, strict=True)]


def whole_remainder(row):
    """Bound all of the remainder, as the class says."""
    met = row.met(row.q, row.k)
    centred = row.centred(met)
    alpha = row.visible([a + b for a, b in zip(row.scores, centred, strict=True)])
    hull = max(row.visible([f + w for f, w in zip(row.f, row.w, strict=True)])) + row.linear
    if max(alpha) >= LARGEST_CHANGE:
        return hull
    kappa = (2 + math.exp(max(alpha))) / 3
    s, spread = row.sums(row, centred, alpha)
    each = [(2 + math.exp(a)) / 6 * a * a for a in alpha]
    bent = min(0.5 * kappa * spread**2, row.old(each))
    shift = 0.5 * kappa * s**2 * row.mean_move(met, s, alpha)
    new = [(a + max(e, 0.5 * kappa * s**2)) * w for a, e, w in zip(alpha, each, row.w, strict=True)]
    return min(row.old(met) + bent + shift + row.mean(new), hull)


def beyond_second_order(first, other, whole, inside):
    """Bound what is beyond the second order of the word itself."""
    known = first.met(first.q, first.k)
    later = [a + b for a, b in zip(first.met(other.q, whole.k), first.met(first.q, other.k), strict=True)]
    own = first.centred(known) if inside is None else inside
    met = [a + b for a, b in zip(own, first.centred(later), strict=True)]
    rho = first.visible([a + b for a, b in zip(other.scores, met, strict=True)])
    alpha = [a + b for a, b in zip(first.scores, rho, strict=True)]
    second = first.mean([f * c for f, c in zip(first.f, known, strict=True)]) + 0.5 * first.spread**2
    second += first.mean([a * w for a, w in zip(first.scores, first.w, strict=True)])
    both = whole_remainder(whole) + second
    if max(alpha) >= LARGEST_CHANGE:
        return both
    s, spread = first.sums(whole, met, alpha)
    _s, apart = first.sums(other, met, rho)
    top = max(alpha)
    kappa = (2 + math.exp(top)) / 3
    bent = [(2 + math.exp(a)) / 6 * a * a for a in alpha]
    weight = min(0.5 * kappa * s**2, first.mean(bent))  # Z − 1
    share = weight / (1 + weight)
    crossed = [r * (a + 0.5 * r) for r, a in zip(rho, first.scores, strict=True)]
    squares = min(first.old(crossed), first.spread * apart + 0.5 * apart**2)
    total = whole.mean_move(met, s, alpha) + min(0.5 * kappa * spread**2, first.old(bent))
    cubes = [(3 + math.exp(a)) / 24 * a**3 for a in alpha]
    thirds = min(first.old(cubes), (3 + math.exp(top)) / 24 * top * spread**2) + share * total
    one_of_them = [max(c, share * (a + b)) for c, a, b in zip(cubes, alpha, bent, strict=True)]
    thirds = min(thirds, first.old(one_of_them))
    lost = [max(b, share * math.exp(a)) for a, b in zip(alpha, bent, strict=True)]
    values = first.mean([(r + x) * w for r, x, w in zip(rho, lost, whole.w, strict=True)])
    values += first.mean([a * w for a, w in zip(first.scores, other.w, strict=True)])
    return min(first.old(later) + squares + thirds + values, both)


def rows_of(stage, sizes, scale):
    """Cut a vector of sizes to rows."""
    heads, n = stage._P.shape[:2]
    parts = sizes.split([heads * n] * 6 + [heads * n * n])
    q, k, w, s, spread, linear = (part.view(heads, n).tolist() for part in parts[:6])
    scores = parts[6].view(heads, n, n).tolist()
    return [
        [
            Row(
                P=stage._P[h, i].tolist(),
                seen=stage._visible[h, i].tolist(),
                f=stage._f[h, i].tolist(),
                D=float(stage._D[h, i]),
                scale=scale,
                q=q[h][i],
                k=k[h],
                w=w[h],
                s=s[h][i],
                spread=spread[h][i],
                linear=linear[h][i],
                scores=scores[h][i],
            )
            for i in range(n)
        ]
        for h in range(heads)
    ]


def drawn_sizes(rng, heads, n, scale):
    """Draw sizes that need not come from one move, so that each of two bounds is the smaller one somewhere."""
    parts = [10 ** (2 * uniform(rng, 1) - 1.5) * uniform(rng, heads * n) for _ in range(6)]
    return scale * torch.cat((*parts, 10 ** (2 * uniform(rng, 1) - 1.5) * uniform(rng, heads * n * n)))


def by_norm(found):
    return [math.hypot(*(row[i] for row in found)) for i in range(len(found[0]))]


SCALES = (0.01, 0.03, 0.1, 0.3, 0.6, 1.0, 2.0, 4.0, 30.0)


@pytest.mark.parametrize("kind", ["heads", "masked", "scores turned round"])
def test_the_whole_remainder_of_attention_is_bounded_as_the_theorem_says(kind, rng):
    f, X = KINDS[kind](rng), gaussian(rng, 3, 4)
    stage = AttentionStage(f, X)
    heads, n = stage._P.shape[:2]
    for scale in 2 * SCALES:
        sizes = drawn_sizes(rng, heads, n, scale)
        expected = by_norm([[whole_remainder(row) for row in head] for head in rows_of(stage, sizes, f.score_scale)])
        found = stage.remainder(sizes, FirstOrder(sizes, X[None, None], 1.0, EUCLIDEAN))
        assert found.tolist() == pytest.approx(expected, rel=1e-11)


@pytest.mark.parametrize(
    ("kind", "given"), [("heads", False), ("heads", True), ("masked", False), ("scores turned round", False)]
)
def test_what_attention_leaves_beyond_its_second_order_is_bounded_as_the_theorem_says(kind, given, rng):
    f, X = KINDS[kind](rng), gaussian(rng, 3, 4)
    stage = AttentionStage(f, X)
    heads, n = stage._P.shape[:2]
    for scale in 2 * SCALES:
        one, rest = drawn_sizes(rng, heads, n, scale), drawn_sizes(rng, heads, n, scale)
        inside = scale * uniform(rng, heads, n, n) if given else None
        cuts = [rows_of(stage, sizes, f.score_scale) for sizes in (one, rest, one + rest)]
        expected = [
            [
                beyond_second_order(*(cut[h][i] for cut in cuts), inside[h, i].tolist() if given else None)
                for i in range(n)
            ]
            for h in range(heads)
        ]
        assert stage.third_order_remainder(one, rest, inside).tolist() == pytest.approx(by_norm(expected), rel=1e-11)


def test_rows_do_not_depend_on_what_they_do_not_see(rng):
    f, X = KINDS["masked"](rng), gaussian(rng, 3, 4)
    stage = AttentionStage(f, X)
    one, rest = drawn_sizes(rng, 2, 3, 0.1), drawn_sizes(rng, 2, 3, 0.1)
    far = [x.clone() for x in (one, rest)]
    for sizes in far:
        # keys, values and scores of the last token, of two heads
        sizes[:18].view(3, 2, 3)[1:, :, 2] = 1e4
        sizes[36:].view(2, 3, 3)[:, :2, 2] = 0.0
    for sizes in (one, rest):
        sizes[36:].view(2, 3, 3)[:, :2, 2] = 0.0
    first = FirstOrder(one, X[None, None], 1.0, EUCLIDEAN)
    assert stage.remainder(far[0], first)[:2].tolist() == stage.remainder(one, first)[:2].tolist()
    assert stage.third_order_remainder(*far)[:2].tolist() == stage.third_order_remainder(one, rest)[:2].tolist()
    assert float(stage.remainder(far[0], first)[2]) > 10 * float(stage.remainder(one, first)[2])


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("gap", [100.0, 800.0])
def test_a_token_that_nobody_attends_to_may_win_all_weight(gap, place):
    # weights of e^-100 times changes of e^60 are small numbers, and no bound: there the hull of the values decides
    first, second = torch.eye(2, dtype=torch.float64)
    key, value, bias = first[None, None], second[None, None], torch.ones(1, 1, dtype=torch.float64)
    f = hs.Attention(query=0 * key, key=key, value=value, query_bias=bias, scale=1.0)
    X, columns = torch.stack((second, -gap * first - second)), torch.stack((0 * first, first))
    X, columns = (x.flip(0) if place == 0 else x for x in (X, columns))
    stage = AttentionStage(f, X)
    sizes = stage.image_norms(columns[None, None], EUCLIDEAN)[0]
    for eps in (gap, 2 * gap):
        R = f(X + eps * columns) - f(X) - f.jacobian(X).jvp(eps * columns)
        whole = stage.remainder(eps * sizes, FirstOrder(sizes, columns[None, None], eps, EUCLIDEAN))
        beyond = stage.third_order_remainder(eps * sizes, torch.zeros_like(sizes))
        left = R - eps**2 * stage.second_order(columns[None, None])[0, 0]
        assert bool((R[:, 0].abs() <= (1 + 1e-9) * whole).all())
        assert bool((left[:, 0].abs() <= (1 + 1e-9) * beyond).all())
        assert float(R.abs().max()) > 0.9


def at_the_centre(f, X):
    """Return queries, keys and values of every head, its weights, and what it lets see, by their definitions."""
    shared = len(f.query) // len(f.key)
    q = torch.einsum("hkd,nd->hnk", f.query, X) + f.query_bias[:, None]
    k = torch.einsum("hkd,nd->hnk", f.key, X).repeat_interleave(shared, 0)
    v = (torch.einsum("hkd,nd->hnk", f.value, X) + f.value_bias[:, None]).repeat_interleave(shared, 0)
    seen = torch.ones(len(q), len(X), len(X), dtype=torch.bool)
    seen = seen.tril() if f.positions is not None and f.positions.causal else seen
    P = torch.where(seen, f.score_scale * q @ k.mT, -torch.inf).softmax(-1)
    return q, k, v, P, seen


@pytest.mark.parametrize("kind", KINDS)
def test_sizes_that_attention_sees_of_one_column_are_those_of_its_derivative(kind, rng):
    f, X, columns = KINDS[kind](rng), gaussian(rng, 3, 4), gaussian(rng, 2, 1, 3, 4)
    stage = AttentionStage(f, X)
    q, k, v, P, seen = at_the_centre(f, X)
    torch.testing.assert_close(stage._P, P)
    assert bool((stage._visible == seen).all())
    far = (v[:, None] - (P @ v)[:, :, None]).norm(dim=-1)
    torch.testing.assert_close(stage._f, far)
    sizes, _pushed = stage.propagate(columns, EUCLIDEAN)
    shared = len(f.query) // len(f.key)
    for each, delta in zip(sizes, columns[:, 0], strict=True):
        dq, dk, dv = (torch.einsum("hkd,nd->hnk", W, delta) for W in (f.query, f.key, f.value))
        dk, dv = dk.repeat_interleave(shared, 0), dv.repeat_interleave(shared, 0)
        a = f.score_scale * (dq @ k.mT + q @ dk.mT)
        a = torch.where(seen, a - (P * a).sum(-1, keepdim=True), 0.0)
        expected = [x.norm(dim=-1) for x in (dq, dk, dv)]
        expected += [(P * a**2).sum(-1).sqrt(), (P * far * a**2).sum(-1).sqrt()]
        expected += [((P * a) @ v + P @ dv).norm(dim=-1), a.abs()]
        torch.testing.assert_close(each, torch.cat([x.flatten() for x in expected]))


@pytest.mark.parametrize("kind", KINDS)
def test_weights_of_a_mean_square_move_the_mean_of_values_by_no_more_than_their_covariance_says(kind, rng):
    f, X = KINDS[kind](rng), gaussian(rng, 3, 4)
    _q, _k, v, P, _seen = at_the_centre(f, X)
    values = v[:, None] - (P @ v)[:, :, None]
    covariance = torch.einsum("hij,hija,hijb->hiab", P, values, values)
    exact = torch.linalg.eigvalsh(covariance)[..., -1].clamp_min(0).sqrt()
    found = AttentionStage(f, X)._D
    assert bool((found >= exact * (1 - 1e-12)).all())
    torch.testing.assert_close(found, exact, rtol=1e-2, atol=1e-9)


@pytest.mark.parametrize("kind", ["heads", "shared keys", "scores turned round"])
def test_forms_of_scores_that_meet_are_those_of_a_single_column(kind, rng):
    # of one column the form is one number: s⟨Qδ_i, Kδ_j⟩ less its mean
    f, X, columns = KINDS[kind](rng), gaussian(rng, 3, 4), gaussian(rng, 1, 1, 3, 4)
    _q, _k, _v, P, _seen = at_the_centre(f, X)
    shared = len(f.query) // len(f.key)
    dq, dk = (torch.einsum("hkd,nd->hnk", W, columns[0, 0]) for W in (f.query, f.key))
    met = f.score_scale * dq @ dk.repeat_interleave(shared, 0).mT
    expected = (met - (P * met).sum(-1, keepdim=True)).abs()
    found = AttentionStage(f, X).score_forms(columns, SquaredBall())
    # norms of forms are computed in single precision, and what that may take is added
    assert bool((found >= expected * (1 - 1e-9)).all())
    torch.testing.assert_close(found, expected, rtol=4e-6, atol=1e-9)


def test_forms_of_scores_that_are_multiplied_in_parts_are_all_there(rng, monkeypatch):
    f, X, columns = attention(rng), gaussian(rng, 3, 4), gaussian(rng, 1, 3, 3, 4)
    stage = AttentionStage(f, X)
    before = stage.score_forms(columns, SquaredBall())
    for few in (1, 60):
        monkeypatch.setattr(attention_stage, "NUMBERS", few)
        torch.testing.assert_close(stage.score_forms(columns, SquaredBall()), before, rtol=0, atol=1e-13)


def test_the_remainder_of_every_row_lies_along_the_root_of_the_output_projection(rng):
    f, X = attention(rng), gaussian(rng, 3, 4)
    stage = AttentionStage(f, X)
    assert stage.tokens.tolist() == [0, 1, 2]
    (bundle,) = stage.directions()
    W = f.output.movedim(0, 1).flatten(1)
    for i in range(3):
        B = bundle[i, :, i]
        torch.testing.assert_close(B @ B.mT, W @ W.mT)
        torch.testing.assert_close(B, B.mT)
        assert not bool(bundle[i, :, [j for j in range(3) if j != i]].any())
    plain = hs.Attention.single_head(A=gaussian(rng, 4, 4), V=gaussian(rng, 2, 4))
    (bundle,) = AttentionStage(plain, X).directions()
    torch.testing.assert_close(bundle[1, :, 1], torch.eye(2, dtype=torch.float64))


@pytest.mark.parametrize("name", ["softcap", "query_norm", "key_norm", "sink"])
def test_every_part_that_makes_scores_other_than_bilinear_is_refused(name, rng):
    parts = {
        "softcap": 5.0,
        "query_norm": hs.maps.RMSNorm(gain=torch.ones(2, dtype=torch.float64)),
        "key_norm": hs.maps.RMSNorm(gain=torch.ones(2, dtype=torch.float64)),
        "sink": torch.zeros(2, dtype=torch.float64),
    }
    with pytest.raises(AssumptionError, match=name):
        AttentionStage(attention(rng, **{name: parts[name]}), gaussian(rng, 3, 4))
