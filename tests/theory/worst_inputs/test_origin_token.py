"""Tokens at the origin, and two points on an eigenvector: what is claimed of them is what their tokens do."""

import math

import pytest
import torch
from draws import gaussian
from oracles import dense_jacobian
from theory.example_layers import form, random_layer
from torch.testing import assert_close

import howsmooth as hs
from howsmooth.theory.heads import heads_of
from howsmooth.theory.worst_inputs.origin_token import (
    _alternate,
    _sides,
    _starts,
    _top_eigenvector,
    _value_rows,
    best_origin_token,
)


def answer(heads, u):
    """What is maximised, as a dense matrix."""
    parts = [torch.outer(head.V @ u if head.W is None else head.W @ head.V @ u, head.adjoint(u)) for head in heads]
    return torch.cat(parts) if heads[0].W is None else sum(parts)


def size(heads, u):
    return float(torch.linalg.matrix_norm(answer(heads, u), 2))


def test_the_best_direction_of_a_form_is_a_unit_vector_with_its_largest_eigenvalue_of_either_sign(rng):
    for sign in (1.0, -1.0):
        a, b = gaussian(rng, 3, 7), gaussian(rng, 3, 7)
        a, b = torch.cat((a, b[:1])), torch.cat((b, 3 * sign * b[:1]))
        u = _top_eigenvector(a, b)
        M = a.mT @ b
        assert float(u.norm()) == pytest.approx(1.0)
        largest = torch.linalg.eigvalsh(M + M.mT).abs().max() / 2
        assert float((u @ M @ u).abs()) == pytest.approx(float(largest))


@pytest.mark.parametrize("mixed", [True, False], ids=["mixed", "concatenated"])
def test_the_search_for_a_quiet_token_climbs_along_unit_vectors(rng, mixed):
    heads = heads_of(random_layer(rng, heads=2, d=5, k=3, mixed=mixed))
    y = gaussian(rng, 5 if mixed else 6)
    blocks = [y, y] if mixed else y.split(3)
    for row, block, head in zip(_value_rows(heads, y), blocks, heads, strict=True):
        assert_close(row, head.V.mT @ (head.W.mT @ block if mixed else block))
    for u in _starts(heads):
        assert float(u.norm()) == pytest.approx(1.0)
        end = _alternate(heads, u)
        assert float(end.norm()) == pytest.approx(1.0)
        assert size(heads, end) >= size(heads, u) * (1 - 1e-12)
        left, right = _sides(heads, end)
        assert_close(left @ right.mT, answer(heads, end))
    found = best_origin_token(heads)
    assert float(found.direction.norm()) == pytest.approx(1.0)
    assert float(torch.linalg.matrix_norm(found.response, 2)) == pytest.approx(size(heads, found.direction))
    assert size(heads, found.direction) >= max(size(heads, u) for u in _starts(heads))


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_formula_at_two_points_is_the_response_of_all_others_to_one_of_two_directions(rng, sign, causal):
    # one real eigenvalue, and two that turn
    A = torch.tensor([[0.0, -1.0, 0.0], [1.0, 0.0, 0.0], [0.4, -0.3, sign * (3.0 if sign > 0 else 0.4)]]).double()
    f = form(A, gaussian(rng, 4, 3), causal=causal)
    for n, radius in ((2, 0.8), (5, 1.3)):
        witness = hs.inputs.two_point(f, n, radius)
        X = witness.tokens
        J = dense_jacobian(f, X).reshape(n, 4, n, 3)
        u = X[0] / X[0].norm()
        far, near = (sign, 0.5 if sign > 0 else 1.0)
        assert_close(X, radius * torch.cat((far * (far * u)[None], near * (far * u).expand(n - 1, -1))))
        assert_close(A @ u, sign * (3.0 if sign > 0 else 0.4) * u)
        best = torch.linalg.svd(J[n - 1, :, 0]).Vh[0]
        responses = [float((J[1:, :, 0] @ t).norm()) for t in (u, best)]
        assert witness.formula == pytest.approx(max(responses), rel=1e-9)
        assert math.isclose(float(X.norm(dim=-1).max()), radius, rel_tol=1e-12)
