"""Tables: where remainders arrive, centres that are shifted, and what single precision may have taken."""

import pytest
import torch
from draws import gaussian, uniform

import howsmooth as hs
from howsmooth.certificates import propagation, remainder_table
from howsmooth.certificates.image_norms import EUCLIDEAN
from howsmooth.certificates.propagation import Apply, Link, StackMove, advance, move, pick_early, program
from howsmooth.certificates.relu_stage import SMALLEST_AXIS, ReLUStage, _axes, line_error, relaxation_lines
from howsmooth.certificates.remainder_table import (
    ERROR_FACTOR,
    PROBES,
    SINGLE_SHARE,
    TINY,
    RemainderTable,
    Slack,
    linearise,
    rounded_norms,
    source_norms,
    widened,
)
from howsmooth.certificates.stages import FirstOrder


def mlp(rng, activation="tanh", d=3):
    return hs.maps.MLP(up=gaussian(rng, 4, d), down=gaussian(rng, d, 4), activation=activation)


def test_a_remainder_arrives_at_functionals_by_all_that_follows_it(rng):
    f, g, W, X = mlp(rng), mlp(rng), gaussian(rng, 2, 3), gaussian(rng, 2, 3)
    found = RemainderTable(
        hs.maps.Chain(hs.maps.Residual(f), g, hs.maps.Pooling.first(n=2, like=X), hs.maps.Dense(W)), X
    )
    functionals = gaussian(rng, 3, 2)
    arriving = found.transfer_to(functionals)
    assert arriving.shape == (4, 3)
    Y = X + f(X)
    G = torch.stack([g.jacobian(Y).jvp(torch.eye(6).double()[k].view(2, 3)) for k in range(3)])[:, 0].mT
    for which, (part, behind) in enumerate(((f, W @ G), (g, W))):
        root = torch.linalg.eigh(part.down @ part.down.mT)
        B = (root[1] * root[0].clamp_min(0).sqrt()) @ root[1].mT
        expected = (functionals @ behind @ B).norm(dim=1)
        torch.testing.assert_close(arriving[2 * which], expected, rtol=1e-9, atol=1e-6)
        # the second token is not read
        assert not bool(arriving[2 * which + 1].any())
    assert found.groups == [Slack("mlp", index, token) for index in (0, 1) for token in (0, 1)]
    linear = RemainderTable(hs.maps.Chain(hs.maps.Pooling.first(n=2, like=X), hs.maps.Dense(W)), X)
    assert linear.transfer_to(functionals).shape == (0, 3)


def test_shifts_move_the_centre_of_all_that_follows(rng):
    f, g, X = mlp(rng, "relu"), mlp(rng), gaussian(rng, 2, 3)
    found = RemainderTable(hs.maps.Chain(f, g), X, unit_ranges={0: 3 * torch.ones(2, 4, dtype=torch.float64)})
    y = X @ f.up.mT
    offset = torch.where(y.abs() < 3, (3 - y.abs()) ** 2 / 12, 0.0)
    assert float(offset.max()) > 0.1
    torch.testing.assert_close(found.stages[0].shift, offset @ f.down.mT)
    torch.testing.assert_close(found.output, g(f(X) + offset @ f.down.mT))


def test_a_table_is_cheap_up_to_so_many_numbers(rng, monkeypatch):
    X = gaussian(rng, 2, 3)
    found = RemainderTable(hs.maps.Chain(hs.maps.Residual(mlp(rng)), mlp(rng)), X)
    # two stages, four steps, columns of two times three
    for limit, said in ((2 * 4 * 36, True), (2 * 4 * 36 - 1, False)):
        monkeypatch.setattr(remainder_table, "DOUBLE_PRECISION", limit)
        assert found.cheap is said


def test_single_precision_is_left_where_it_does_not_tell_the_output(rng, monkeypatch):
    def most(x):
        """Say whether the largest number is negative, alone in its size, and not the first one."""
        order = x.abs().argsort(descending=True)
        return bool(x[order[0]] < 0) and int(order[0]) > 0 and float(x[order[0]].abs()) > 1.5 * float(x[order[1]].abs())

    for _ in range(200):
        f, X = hs.maps.Dense(gaussian(rng, 3, 3) * 4 ** gaussian(rng, 3, 1)), gaussian(rng, 1, 3)
        off = (f.to(torch.float32, "cpu")(X.float()).double() - f(X))[0]
        if most(off) and most(f(X)[0]):
            break
    found, far = RemainderTable(f, X), float(off.abs().max() / f(X).abs().max())
    assert far > 0
    assert found._single_precision_links() is not None
    for share, said in ((0.99, True), (1.01, False)):
        monkeypatch.setattr(remainder_table, "SINGLE_SHARE", share * far)
        assert (found._single_precision_links() is None) is said


def test_sizes_in_single_precision_are_widened_by_a_share_and_by_what_sums_are_wrong_by():
    sizes = torch.tensor([[2.0, 0.0]], dtype=torch.float32)
    wrong = torch.tensor([[[1e-3, 0.0], [5e-3, 0.0], [2e-3, 0.0]]], dtype=torch.float64)
    found = widened(sizes, wrong)
    assert found.dtype == torch.float64
    assert found.tolist()[0] == pytest.approx(
        [2 * (1 + SINGLE_SHARE) + ERROR_FACTOR * 5e-3 + TINY, TINY], rel=1e-14, abs=0
    )


@pytest.mark.parametrize("d", [3, 6])
def test_columns_that_differ_from_exact_ones_are_found_out_by_sums_of_them(d, rng):
    # what is taken for single precision here is another network
    f, g, X = mlp(rng, d=d), mlp(rng, d=d), gaussian(rng, 1, d)
    others = [hs.maps.MLP(up=x.up + 0.1 * gaussian(rng, 4, d), down=x.down, activation="tanh") for x in (f, g)]
    exact = RemainderTable(hs.maps.Chain(f, g), X).links
    _output, blurred = linearise(hs.maps.Chain(*others).to(torch.float32, "cpu"), X.float(), {})
    found = rounded_norms(blurred, 0, exact=exact)
    (columns,) = exact[0].stage.directions()
    weights = torch.eye(d).double() if d <= PROBES else torch.randn(
        PROBES, d, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )  # fmt: skip
    (entering,) = blurred[0].stage.directions()
    summed, right = (torch.einsum("kr,grnd->gknd", weights, x.double()) for x in (entering, columns))
    torch.testing.assert_close(remainder_table._weighted_sums(weights, columns), right)
    # hidden units see sums: as far as they differ, and as the stage itself sees them differently
    up, other = g.up, others[1].up
    wrong = ((summed - right) @ up.mT)[:, :, 0].abs()
    wrong = wrong + ((summed @ other.mT)[:, :, 0].abs() - (summed @ up.mT)[:, :, 0].abs()).abs()
    sizes = EUCLIDEAN.scalar_norms(entering.double() @ other.mT)[:, 0]
    torch.testing.assert_close(found.at[1], widened(sizes, wrong), rtol=1e-5, atol=1e-5)
    pushed = blurred[1].stage.propagate(summed.float(), EUCLIDEAN)[1] - exact[1].stage.propagate(right, EUCLIDEAN)[1]
    torch.testing.assert_close(found.output_errors[0], pushed, rtol=1e-5, atol=1e-5)


def test_what_is_wrong_at_the_output_is_seen_by_functionals(rng):
    f, X = hs.maps.Chain(mlp(rng), hs.maps.Dense(gaussian(rng, 2, 3))), gaussian(rng, 1, 3)
    functionals = torch.tensor([[1.0, 0.0], [-1.0, 0.0]], dtype=torch.float64)
    found = RemainderTable(f, X, single=True)
    found._output_errors = [gaussian(rng, 1, 3, 1, 2).abs()]
    sizes = EUCLIDEAN.scalar_norms(found._outputs[0].double().flatten(2) @ functionals.mT)
    expected = (
        (1 + SINGLE_SHARE) * sizes
        + ERROR_FACTOR * (found._output_errors[0][:, :, 0] @ functionals.mT).abs().amax(1)
        + TINY
    )
    torch.testing.assert_close(found.transfer_to(functionals), expected)


def test_signals_on_a_stack_are_kept_swapped_and_added(rng, monkeypatch):
    a, b, c = gaussian(rng, 3, 1, 1, 2, 3)
    stack = [a, b]
    move(stack, StackMove.DUPLICATE)
    assert [x is y for x, y in zip(stack, (a, b, b), strict=True)] == [True] * 3
    stack = [a, b, c]
    move(stack, StackMove.SWAP)
    assert stack[1] is c
    assert stack[2] is b
    move(stack, StackMove.ADD)
    torch.testing.assert_close(stack, [a, c + b])
    # columns that are pushed one by one
    W, columns = gaussian(rng, 5, 3), gaussian(rng, 2, 4, 2, 3)
    link = Link(Apply(hs.maps.Dense(W)), hs.maps.Dense(W).jacobian(columns[0, :1]))
    for few in (2**24, 1):
        monkeypatch.setattr(propagation, "NUMBERS", few)
        stack = [columns]
        advance(stack, link)
        torch.testing.assert_close(stack[0], columns @ W.mT)


def test_sums_of_maps_are_run_beside_each_other(rng):
    parts, X = [mlp(rng) for _ in range(3)], gaussian(rng, 2, 3)
    f = hs.maps.Chain(hs.maps.Residual(mlp(rng)), hs.maps.Sum(*parts), mlp(rng))
    found = RemainderTable(f, X)
    torch.testing.assert_close(found.output, f(X))
    moves = [step for step in program(hs.maps.Sum(*parts)) if isinstance(step, StackMove)]
    assert moves == [
        StackMove.DUPLICATE,
        StackMove.SWAP,
        StackMove.DUPLICATE,
        StackMove.SWAP,
        StackMove.ADD,
        StackMove.ADD,
    ]
    # the remainder of every part arrives at what follows as it is
    places = list(found.stages)
    for place in places[1:4]:
        (bundle,) = found.stages[place].directions()
        seen = source_norms(found.links, place).at[places[-1]]
        torch.testing.assert_close(seen, found.stages[places[-1]].image_norms(bundle, EUCLIDEAN))


def test_axes_are_like_roots_of_what_is_left_and_of_size_one_in_the_mean():
    left = torch.tensor([[4.0, 1.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]], dtype=torch.float64)
    found = _axes(left)
    expected = (left[0] + 4 * SMALLEST_AXIS).sqrt()
    expected = expected / (expected.square().sum() / 4).sqrt()
    torch.testing.assert_close(found[0], expected)
    assert found[1].tolist() == [1.0] * 4
    # however small what is left may be
    torch.testing.assert_close(_axes(1e-200 * left)[0], expected)


def test_units_that_are_not_known_to_stay_anywhere_are_taken_along_their_derivatives(rng):
    f, X = mlp(rng, "relu"), gaussian(rng, 2, 3)
    reach = torch.full((2, 4), torch.inf, dtype=torch.float64)
    reach[0] = 2.0
    stage, y = ReLUStage(f, X, reach), X @ f.up.mT
    torch.testing.assert_close(stage._slope[1], (y[1] > 0).double())
    torch.testing.assert_close(stage._slope[0], relaxation_lines(y[0], 2 * torch.ones(4).double())[0])
    assert not bool(stage._offset[1].any())
    torch.testing.assert_close(stage.shift, stage._offset @ f.down.mT)
    left = line_error(y, stage._slope, stage._offset, torch.where(reach.isfinite(), reach, 0.0))
    torch.testing.assert_close(stage._axes, _axes(left))
    (bundle,) = stage.directions()
    for i in range(2):
        W = f.down * stage._axes[i]
        torch.testing.assert_close(bundle[i, :, i] @ bundle[i, :, i].mT, W @ W.mT, atol=1e-9, rtol=1e-9)
    sizes = 3 * uniform(rng, 8)
    left = line_error(y, stage._slope, stage._offset, sizes.view(2, 4))
    found = stage.remainder(sizes, FirstOrder(sizes, X[None, None], 1.0, EUCLIDEAN))
    torch.testing.assert_close(found, (left / stage._axes).norm(dim=-1))
    assert stage.unit_ranges(sizes).tolist() == sizes.view(2, 4).tolist()


def test_lines_of_units_that_do_not_move_are_their_derivatives():
    y, zero = torch.tensor([0.0, 1.0, -1.0], dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
    slope, offset = relaxation_lines(y, zero)
    assert slope.tolist() == [0.0, 1.0, 0.0]
    assert offset.tolist() == [0.0] * 3
    # and at the kink
    slope, offset = relaxation_lines(y, torch.ones(3, dtype=torch.float64))
    assert slope.tolist() == [0.5, 1.0, 0.0]
    assert offset.tolist() == [0.25, 0.0, 0.0]


def test_units_off_a_line_are_given_back_what_rounding_makes_of_differences():
    y = torch.tensor([-3.0, 2.0], dtype=torch.float64)
    slope, offset = torch.tensor([0.0, 1.0], dtype=torch.float64), torch.tensor([-1.0, -2.0], dtype=torch.float64)
    s = torch.tensor([0.5, 1.0], dtype=torch.float64)
    found, exact = line_error(y, slope, offset, s), torch.tensor([1.0, 2.0], dtype=torch.float64)
    more = (found - exact).tolist()
    expected = [1e-12 + 4.5e-15, 2e-12 + 5e-15]
    assert more == pytest.approx(expected, abs=1e-15)
    # a share of each number alone: of the unit, of its move with it, of the offset
    one, tiny = 1.0, 1e-30
    for y, s, offset in ((one, tiny, tiny), (one, one, tiny), (tiny, tiny, one)):
        expected = offset * (1 + 1e-12) + 1e-15 * (y + s + offset)
        numbers = (torch.tensor([x], dtype=torch.float64) for x in (y, 1.0, offset, s))
        assert float(line_error(*numbers)) - offset == pytest.approx(expected - offset, rel=1e-4, abs=0)


@pytest.mark.parametrize("place", [0, 2])
def test_a_token_is_picked_before_what_acts_on_single_tokens_and_slack_keeps_its_place(place, rng):
    weights = torch.zeros(3, dtype=torch.float64)
    weights[place] = 1.0
    attention = hs.maps.Attention.single_head(A=gaussian(rng, 3, 3), V=gaussian(rng, 3, 3))
    norm = hs.maps.LayerNorm(gain=gaussian(rng, 3))
    tail = (hs.maps.Residual(mlp(rng)), norm, hs.maps.Pooling(weights=weights), mlp(rng))
    f, X = hs.maps.Chain(mlp(rng), hs.maps.Residual(attention), *tail), gaussian(rng, 3, 3)
    early = pick_early(f)
    assert [type(part).__name__ for part in early.maps] == [
        "MLP", "Residual", "Pooling", "Residual", "LayerNorm", "MLP"
    ]  # fmt: skip
    torch.testing.assert_close(early(X), f(X))
    late = hs.maps.Chain(*f.maps[:4], hs.maps.Pooling.mean(n=3, like=X), mlp(rng))
    assert pick_early(late).maps == late.maps
    functionals, before, after = gaussian(rng, 2, 3), RemainderTable(f, X), RemainderTable(early, X)
    # remainders of other tokens behind the attention do not arrive
    rows = [row for row, group in enumerate(before.groups) if group in after.groups]
    assert [before.groups[row] for row in rows] == after.groups
    torch.testing.assert_close(before.transfer_to(functionals)[rows], after.transfer_to(functionals))
    assert len(rows) < len(before.groups)
