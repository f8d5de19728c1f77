"""The second derivative of a whole layer: six terms, each against its definition and the statement of its bound."""

import dataclasses
import math

import pytest
import torch
from draws import gaussian
from theory.around_input.synthetic import layer_at_centre, layer_on_ball
from theory.perturbed_inputs import on_boundary, small_layer
from torch.testing import assert_close

import howsmooth as hs
from howsmooth.theory.around_input import second_derivative
from howsmooth.theory.around_input.head_on_ball import HeadAtCentre, softmax_jacobian_bounds
from howsmooth.theory.around_input.layer_on_ball import LayerAtCentre, LayerOnBall
from howsmooth.theory.around_input.second_derivative import SecondDerivative
from howsmooth.theory.at_input.head_at_input import heads_at_input
from howsmooth.theory.at_input.layer_errors import outputs
from howsmooth.theory.linalg.eigenvalue_bounds import collatz_wielandt, largest_eigenvalues, largest_norms
from howsmooth.theory.linalg.matrix_norms import norm_upper

KINDS = {
    "mixed heads": lambda g: small_layer(g, heads=3, query_bias=gaussian(g, 3, 2)),
    "concatenated heads, causal": lambda g: small_layer(g, mixed=False, positions=hs.maps.Positions(causal=True)),
    "saturated": lambda g: small_layer(g, size=6.0),
    "one head": lambda g: small_layer(g, heads=1),
}
# Terms that count twice, with E and F exchanged.
TWICE = ("value_key", "query_key", "value_query", "score_form")
EVERY_ROW = ("key_key", "value_key")


def looked_at(f, X):
    """The second derivative around an input, and every head there."""
    seen = heads_at_input(f, X)
    return SecondDerivative(centre=LayerAtCentre.of(seen)), [HeadAtCentre.of(view) for view in seen]


def ball_of(second, heads, t, per_token=False):
    return LayerOnBall.of(second.centre, [head.on_ball(t, per_token) for head in heads], t, per_token)


def definitions(f, Z):
    """The six terms at Z as tensors: row, output, token and entry of E, token and entry of F."""
    total, seen = {}, heads_at_input(f, Z)
    for view, W in zip(seen, outputs(seen), strict=True):
        head, P = view.head, view.P
        A, B, g = head.K.mT @ head.Q, W @ head.V, view.q @ head.K
        x = Z - (P @ Z)[:, None]  # i, j, d
        eye = torch.eye(len(Z), dtype=Z.dtype)
        alpha, kappa, u = P[..., None] * (x @ B.mT), x @ A, eye - P[:, None]  # u: i, j, k
        parts = {
            "key_key": torch.einsum("ijo,ija,id,ijb,ie->ioadbe", alpha, u, g, u, g),
            "value_key": torch.einsum("ij,od,ija,ie,jb->ioadbe", P, B, u, g, eye),
            "query_query": torch.einsum("ijo,ijd,ije,ia,ib->ioadbe", alpha, kappa, kappa, eye, eye),
            "query_key": torch.einsum("ijo,ijd,ia,ie,ijb->ioadbe", alpha, kappa, eye, g, u),
            "value_query": torch.einsum("ij,od,ja,ije,ib->ioadbe", P, B, eye, kappa, eye),
            "score_form": torch.einsum("ijo,de,ja,ib->ioadbe", alpha, A, eye, eye),
        }
        total = {name: total.get(name, 0) + part for name, part in parts.items()}
    return total


def exchanged(T):
    return T.permute(0, 1, 4, 5, 2, 3)


def norm(T, rng, starts=3, rounds=12):
    """The largest |T(E, F)| that alternating maximisation finds, for a tensor of outputs, inputs, inputs."""
    best = 0.0
    for _start in range(starts):
        F = gaussian(rng, T.shape[2])
        for _round in range(rounds):
            U, S, Vh = torch.linalg.svd(T @ (F / F.norm().clamp_min(1e-300)), full_matrices=False)
            F = torch.einsum("o,oef,e->f", U[:, 0], T, Vh[0])
            best = max(best, S[0].item())
    return best


def largest(name, T, rng):
    """The norm of a term: of all rows, or of every row by itself."""
    if name in EVERY_ROW:
        return norm(T.flatten(0, 1).flatten(1, 2).flatten(2), rng)
    return torch.tensor([norm(row.flatten(1, 2).flatten(2), rng, 2, 8) for row in T], dtype=torch.float64)


@pytest.mark.parametrize("kind", KINDS)
def test_the_six_terms_add_up_to_the_second_derivative(rng, kind):
    f, X = KINDS[kind](rng), gaussian(rng, 4, 3)
    hessian = torch.func.hessian(f)(X)
    terms = definitions(f, X)
    total = sum(T + exchanged(T) if name in TWICE else T for name, T in terms.items())
    assert_close(total, hessian, rtol=1e-9, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_term_is_below_its_bound_at_an_input_and_around_it(rng, kind):
    f, X = KINDS[kind](rng), gaussian(rng, 4, 3)
    second, heads = looked_at(f, X)
    for t in (1e-9, 0.05, 0.4):
        ball = ball_of(second, heads, t)
        for Z in on_boundary(rng, 1, X, t, False):
            for name, T in definitions(f, Z).items():
                found, bound = largest(name, T, rng), getattr(second, name)(ball)
                assert float((torch.as_tensor(found) / torch.as_tensor(bound)).max()) <= 1 + 1e-9, name


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_the_second_derivative_is_below_its_bound_at_an_input_and_around_it(rng, kind):
    f, X = KINDS[kind](rng), gaussian(rng, 4, 3)
    second, heads = looked_at(f, X)
    for t in (1e-9, 0.4):
        bound = second.upper(ball_of(second, heads, t))
        for Z in on_boundary(rng, 1, X, t, False):
            T = torch.func.hessian(lambda x: f(x).flatten())(Z).flatten(1, 2).flatten(2)
            assert norm(T, rng) <= bound


def on_a_line(a, *tokens):
    """One head with A = a and V = 1, and tokens on a line."""
    one = torch.ones(1, 1, dtype=torch.float64)
    return hs.Attention.single_head(A=a * one, V=one), torch.tensor(tokens, dtype=torch.float64)[:, None]


# Inputs at which a term nearly attains its bound, and inputs at which it nearly gains what the bound allows in a ball.
TIGHT = {
    "key_key": ((-2.1, 3.0, -1.0), (1.1, -3.8, 1.7)),
    "value_key": ((-2.2, -0.2, 0.5), (-2.1, 3.0, -1.0)),
    "query_query": ((1.0, 0.3, 1.0, -1.0), (1.1, -3.8, 1.7)),
    "query_key": ((1.0, 0.5, 2.0, -2.0), (1.1, -3.8, 1.7)),
    "value_query": ((1.0, 0.0, 1.0, -1.0), (-2.1, 3.0, -1.0)),
    "score_form": ((1.0, 0.0, 1.0, -1.0), (-2.1, 3.0, -1.0)),
}


@pytest.mark.parametrize("name", TIGHT)
def test_a_term_nearly_attains_its_bound_and_nearly_gains_what_it_may(rng, name):
    def most(x):
        return float(torch.as_tensor(x).max())

    (at_centre, around), t = TIGHT[name], 1e-3
    f, X = on_a_line(*at_centre)
    second, heads = looked_at(f, X)
    found = most(largest(name, definitions(f, X)[name], rng))
    assert found <= most(getattr(second, name)(ball_of(second, heads, 1e-9))) <= 1.05 * found
    f, X = on_a_line(*around)
    second, heads = looked_at(f, X)
    at_rest = most(largest(name, definitions(f, X)[name], rng))
    there = (definitions(f, Z)[name] for Z in on_boundary(rng, 40, X, t, False))
    gained = max(most(largest(name, T, rng)) for T in there) - at_rest
    bounds = [most(getattr(second, name)(ball_of(second, heads, r))) for r in (1e-12, t)]
    assert bounds[1] - bounds[0] <= 1.5 * gained
    assert bounds[0] <= 1.05 * at_rest


# Statements: with every field drawn at random, each bound is the formula of the theorem, entry by entry.


def perron(M):
    """The root of Collatz and Wielandt's bound on the largest eigenvalue of a matrix without negative entries."""
    (found,) = collatz_wielandt(lambda z: M @ z, torch.ones_like(M[:, :1]))
    return found.sqrt()


def top(M):
    return largest_eigenvalues(M).sqrt()


def flat_pairs(x):
    """All heads and tokens of every row: i, (h, j)."""
    return x.transpose(0, 1).flatten(1)


class Stated:
    """Every lemma and term from the fields of a layer at its centre and on a ball, row by row."""

    def __init__(self, c, b):
        self.c, self.b = c, b
        self.heads, self.n = c.P.shape[:2]
        self.a, self.more = c.P * c.outputs.from_mean, b.alpha_change
        self.kappa = c.y_keys[:, None] - (c.P @ c.y_keys)[:, :, None]  # h, i, j, d

    def by_kappa(self, a):
        found = []
        for i in range(self.n):
            k, root = self.kappa[:, i].flatten(0, 1), a[:, i].flatten().sqrt()
            found.append(perron(root[:, None] * (k @ k.mT).abs() * root))
        return torch.stack(found)

    def g_gram(self, i):
        return self.c.g[:, i] @ self.c.g[:, i].mT

    def by_mean(self, a, length):
        roots = (a.sum(-1) * length**2).sqrt().mT
        return torch.stack([perron(r[:, None] * self.g_gram(i).abs() * r) for i, r in enumerate(roots)])

    def offset(self, a):
        return (a / a.sum(-1, keepdim=True) - self.c.P).norm(dim=-1) + self.b.P_change.norm(dim=-1)

    def about_mean(self, a):
        tokens = torch.stack(
            [max(perron(r[:, None] * self.g_gram(i).abs() * r) for r in a[:, i].mT.sqrt()) for i in range(self.n)]
        )
        apart = tokens + self.by_mean(a, self.b.P.norm(dim=-1))
        return torch.minimum(apart, (tokens**2 + self.by_mean(a, self.offset(a)) ** 2).sqrt())

    def key_key(self):
        c, b, heads, n = self.c, self.b, self.heads, self.n
        a = self.a + self.more
        about = a + (a.sum(-1) * self.offset(a) ** 2)[..., None]
        soft = b.output_distance[..., None] * b.softmax_diagonal
        w = torch.stack(
            [
                torch.stack([x if x.max() < y.max() else y for x, y in zip(about[h], soft[h], strict=True)])
                for h in range(heads)
            ]
        )
        g, extra = c.g.flatten(0, 1), w * b.g_change[..., None] ** 2
        every = [w[:, :, j].flatten().sqrt() for j in range(n)]
        whole = max(top(r[:, None] * (g @ g.mT) * r) for r in every) + extra.sum((0, 1)).max().sqrt()
        one = max(
            top(r[:, None] * self.g_gram(i) * r) + extra[:, i, j].sum().sqrt()
            for i in range(n)
            for j in range(n)
            for r in [w[:, i, j].sqrt()]
        )
        return whole * one, (about.amax(-1) < soft.amax(-1))

    def value_key(self, s, norm):
        c, b = self.c, self.b
        at_rest, diagonal = softmax_jacobian_bounds(c.P, c.P)
        before, after = (at_rest[..., None] * diagonal).sqrt(), (b.softmax_norm[..., None] * b.softmax_diagonal).sqrt()
        g, s = c.g.flatten(0, 1), s[:, None, None]
        first = max(top(r[:, None] * (g @ g.mT) * r) for r in (s * before).flatten(0, 1).mT)
        gain = (s * (after - before).clamp_min(0)).flatten(0, 1).mT
        steeper = (s * after * b.g_change[..., None]).square().sum((0, 1)).sqrt()
        more = max(perron(r[:, None] * (g @ g.mT).abs() * r) + x for r, x in zip(gain, steeper, strict=True))
        return norm * (first + more)

    def combined(self, gain):
        """Two ways to put heads together, of what each gains after and before the output projection."""
        c, b = self.c, self.b
        mixed = gain(self.a, self.more)
        alone = gain(c.P * c.values.from_mean, b.value_alpha_change)
        return torch.minimum(mixed.sum(0), c.W_joint * (c.W_norm[:, None] * alone).norm(dim=0))

    def query_query(self):
        c, b = self.c, self.b
        lengths = self.combined(lambda a, more: ((a + more) * b.kappa**2 - a * c.keys.from_mean**2).sum(-1))
        k = self.kappa_gain()
        directions = self.by_kappa(self.more) ** 2 + 2 * self.by_kappa(self.a + self.more) * k + k**2
        return self.at_centre(lambda i, K: K * K) + torch.minimum(lengths, directions), lengths < directions

    def kappa_gain(self):
        return ((self.a + self.more) * (self.b.kappa - self.c.keys.from_mean) ** 2).sum((0, 2)).sqrt()

    def at_centre(self, form):
        found = []
        for i in range(self.n):
            k, a = self.kappa[:, i].flatten(0, 1), self.c.alpha[:, i].flatten(0, 1)
            found.append(top(a.mT @ form(i, k @ k.mT) @ a))
        return torch.stack(found)

    def query_key(self):
        c, b, more, after = self.c, self.b, self.more, self.a + self.more

        def gain(a, more):
            old, new = a * c.keys.from_mean, (a + more) * b.kappa
            g, steep = c.g_length, c.g_length + b.g_change
            tokens = (new * steep[..., None] - old * g[..., None]).norm(dim=-1)
            return tokens + new.sum(-1) * steep * b.P.norm(dim=-1) - old.sum(-1) * g * c.P.norm(dim=-1)

        def about(i, K):
            u = (torch.eye(self.n, dtype=K.dtype) - c.P[:, i, None]).flatten(0, 1)
            return K * (u @ u.mT) * torch.kron(self.g_gram(i), torch.ones(self.n, self.n, dtype=K.dtype))

        steep = (after * b.g_change[..., None] ** 2).sum(0).amax(-1).sqrt()
        steep = steep + (after.sum(-1) * b.g_change**2 * b.P.square().sum(-1)).sum(0).sqrt()
        k = self.kappa_gain()
        directions = (
            self.by_kappa(more) * self.about_mean(more)
            + self.by_kappa(self.a) * self.by_mean(self.a, b.P_change.norm(dim=-1))
            + k * self.about_mean(after)
            + (self.by_kappa(after) + k) * steep
        )
        lengths = self.combined(gain)
        return self.at_centre(about) + torch.minimum(lengths, directions), lengths < directions

    def value_query(self, s, norm):
        c, b = self.c, self.b
        weighted = s[:, None, None, None] * c.P[..., None] * self.kappa
        first = torch.stack([largest_norms(weighted[:, i].flatten(0, 1)) for i in range(self.n)])
        gain = s[:, None, None] * (b.P * b.kappa - c.P * c.keys.from_mean)
        return norm * (first + flat_pairs(gain).norm(dim=-1))

    def score_form(self, s, norm):
        scaled = self.c.alpha / s[:, None, None, None]
        first = torch.stack([largest_norms(scaled[:, i].flatten(0, 1)) for i in range(self.n)])
        return norm * (first + flat_pairs(self.more / s[:, None, None]).norm(dim=-1))


CLOSE = {"rtol": 1e-11, "atol": 1e-12}


def test_every_bound_is_the_one_of_its_statement(rng):
    ways = {"key_key": [], "query_query": [], "query_key": []}
    for size in (0.01, 0.1, 0.3, 2.0):
        for _draw in range(3):
            c = layer_at_centre(rng)
            b = layer_on_ball(rng, c, size)
            second, stated = SecondDerivative(centre=c), Stated(c, b)
            for name, proofs in ways.items():
                found, proof = getattr(stated, name)()
                assert_close(torch.as_tensor(getattr(second, name)(b), dtype=torch.float64), found, **CLOSE, msg=name)
                proofs.append(proof.flatten())
            for name in ("value_key", "value_query", "score_form"):
                found = getattr(stated, name)(*getattr(second, f"_{name}_scales"))
                assert_close(torch.as_tensor(getattr(second, name)(b), dtype=torch.float64), found, **CLOSE, msg=name)
            every = second.key_key(b) + 2 * second.value_key(b)
            rows = second.query_key(b) + second.value_query(b) + second.score_form(b)
            total = (every + second.query_query(b).max() + 2 * rows.max()) * (1 + 1e-9)
            assert second.upper(b) == pytest.approx(float(total), rel=1e-13, abs=0)
    # of two proofs each is the better one somewhere
    assert all(set(torch.cat(proofs).tolist()) == {True, False} for proofs in ways.values())


def test_tokens_and_means_count_apart_where_weights_change_much(rng):
    c = layer_at_centre(rng)
    b, found = layer_on_ball(rng, c, 0.3), []
    for size in (0.1, 30.0, 300.0):
        ball = dataclasses.replace(b, P_change=size * b.P_change)
        stated = Stated(c, ball)
        found.append(SecondDerivative(centre=c)._about_mean(stated.a, ball))
        assert_close(found[-1], stated.about_mean(stated.a), **CLOSE)
    # apart, they do not see the change
    assert_close(found[1], found[2], rtol=0, atol=0)
    assert bool((found[0] < found[1]).any())


def test_the_norms_of_scaled_matrices_include_their_rounding(rng):
    seen = set()
    for _draw in range(12):
        c = layer_at_centre(rng, out=2 + 2 * (_draw % 2))
        second = SecondDerivative(centre=c)
        s, norm = second._value_key_scales
        row = torch.cat([B / x for B, x in zip(c.B, s, strict=True)], dim=1)
        assert norm == pytest.approx(norm_upper(row) * (1 + 1e-11), rel=1e-14, abs=0)
        s, norm = second._value_query_scales
        under, beside = (norm_upper(torch.cat([B / x for B, x in zip(c.B, s, strict=True)], dim=k)) for k in (0, 1))
        assert norm == pytest.approx(min(under, beside) * (1 + 1e-11), rel=1e-14, abs=0)
        s, norm = second._score_form_scales
        one, other = (norm_upper(torch.cat([x * A for A, x in zip(A, s, strict=True)])) for A in (c.A, c.A_transposed))
        lost = 1e-12 * float((c.keys.norm * s).sum())
        assert norm == pytest.approx(min(one, other) + lost, rel=1e-14, abs=0)
        seen |= {("values", under < beside), ("forms", one < other)}
    assert seen == {(name, better) for name in ("values", "forms") for better in (True, False)}


@pytest.mark.parametrize("dead", [(1.0, 0.0), (0.0, 0.0)])
@pytest.mark.parametrize("name", ["query", "key", "value", "output"])
def test_heads_that_do_nothing_leave_numbers(rng, dead, name):
    f = small_layer(rng)
    factors = torch.tensor(dead, dtype=torch.float64)[:, None, None]
    f = dataclasses.replace(f, **{name: getattr(f, name) * factors})
    second, heads = looked_at(f, gaussian(rng, 4, 3))
    for t in (1e-9, 0.3):
        assert math.isfinite(second.upper(ball_of(second, heads, t)))
    for scales, norm in (second._value_key_scales, second._value_query_scales, second._score_form_scales):
        assert bool((scales >= 1e-8).all() & (scales <= 1e8).all())
        assert math.isfinite(norm)


def test_a_row_without_outputs_has_no_offset_that_is_no_number(rng):
    c = layer_at_centre(rng)
    b = layer_on_ball(rng, c, 0.3)
    found = SecondDerivative(centre=c)._offset(torch.zeros_like(c.P), b)
    assert_close(found, c.P.norm(dim=-1) + b.P_change.norm(dim=-1), rtol=1e-12, atol=0)


def test_a_bound_that_leaves_the_floats_is_infinite(rng):
    c = layer_at_centre(rng)
    b = layer_on_ball(rng, c, math.inf)
    assert SecondDerivative(centre=c).upper(b) == math.inf


def test_at_an_input_the_bound_is_within_a_factor_of_eight(rng):
    for kind in ("mixed heads", "one head"):
        f, X = KINDS[kind](rng), 0.5 * gaussian(rng, 4, 3)
        second, heads = looked_at(f, X)
        T = torch.func.hessian(f)(X).flatten(0, 1).flatten(1, 2).flatten(2)
        assert second.upper(ball_of(second, heads, 1e-9)) <= 8 * norm(T, rng)


def test_units_do_not_matter(rng):
    f, X = small_layer(rng), gaussian(rng, 4, 3)
    plain = hs.bounds.neighbourhood_upper(f, X, eps=0.1).value
    tiny = hs.Attention(query=f.query * 2.0**60, key=f.key * 2.0**60, value=f.value * 2.0**-60, output=f.output)
    assert_close(hs.bounds.neighbourhood_upper(tiny, X * 2.0**-60, eps=0.1 * 2.0**-60).value * 2.0**60, plain)


def test_the_largest_weighted_norm_is_that_of_all_columns(rng, monkeypatch):
    looked_at, norm = [], second_derivative.largest_eigenvalues
    monkeypatch.setattr(second_derivative, "largest_eigenvalues", lambda M: looked_at.append(M) or norm(M))
    for scale in (1e-120, 1.0, 1e120):
        g, w = scale * gaussian(rng, 12, 4), gaussian(rng, 2, 6, 6).square() ** 3
        gram, roots = g @ g.mT, w.flatten(0, 1).mT.sqrt()
        every = max(float(norm(root[:, None] * gram * root)) for root in roots)
        assert second_derivative._weighted_norm(gram, w) == math.sqrt(every)
    assert len(looked_at) < 3 * 6
    assert second_derivative._weighted_norm(torch.full((12, 12), math.nan).double(), w) == math.inf
    assert second_derivative._weighted_norm(torch.zeros(12, 12).double(), w) == 0
    w = torch.zeros(1, 2, 2).double()  # the column of the larger eigenvalue has squares that vanish
    w[0, 0, 0], w[0, 1, 1] = 1e-170, 1.0
    gram = torch.diag(torch.tensor([1.0, 1e-300]).double())
    assert second_derivative._weighted_norm(gram, w) >= 1e-85
