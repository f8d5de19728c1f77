"""Tables: where remainders arrive, centres that are shifted, and what single precision may have taken."""

import pytest
import torch
from draws import gaussian, uniform

import howsmooth as hs
from howsmooth.certificates import pushing, rough, table
from howsmooth.certificates.kinked_stage import LEAST, KinkedStage, _axes, lines, off_the_line
from howsmooth.certificates.program import Apply, Move, program
from howsmooth.certificates.pushing import Link, advance, move, spread
from howsmooth.certificates.rough import PROBES, TIMES, TINY, WIDE, outward, spread_roughly
from howsmooth.certificates.sizes import ROUND
from howsmooth.certificates.stages import First
from howsmooth.certificates.table import Table


def mlp(rng, activation="tanh", d=3):
    return hs.maps.MLP(up=gaussian(rng, 4, d), down=gaussian(rng, d, 4), activation=activation)


def test_a_remainder_arrives_at_functionals_by_all_that_follows_it(rng):
    f, g, W, X = mlp(rng), mlp(rng), gaussian(rng, 2, 3), gaussian(rng, 2, 3)
    found = Table(hs.maps.Chain(hs.maps.Residual(f), g, hs.maps.Pooling.first(n=2, like=X), hs.maps.Dense(W)), X)
    functionals = gaussian(rng, 3, 2)
    arriving = found.arriving_at(functionals)
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
    assert found.names == ["mlp 0, token 0", "mlp 0, token 1", "mlp 1, token 0", "mlp 1, token 1"]
    linear = Table(hs.maps.Chain(hs.maps.Pooling.first(n=2, like=X), hs.maps.Dense(W)), X)
    assert linear.arriving_at(functionals).shape == (0, 3)


def test_shifts_move_the_centre_of_all_that_follows(rng):
    f, g, X = mlp(rng, "relu"), mlp(rng), gaussian(rng, 2, 3)
    found = Table(hs.maps.Chain(f, g), X, reach={0: 3 * torch.ones(2, 4, dtype=torch.float64)})
    y = X @ f.up.mT
    offset = torch.where(y.abs() < 3, (3 - y.abs()) ** 2 / 12, 0.0)
    assert float(offset.max()) > 0.1
    torch.testing.assert_close(found.stages[0].shift, offset @ f.down.mT)
    torch.testing.assert_close(found.output, g(f(X) + offset @ f.down.mT))


def test_a_table_is_cheap_up_to_so_many_numbers(rng, monkeypatch):
    X = gaussian(rng, 2, 3)
    found = Table(hs.maps.Chain(hs.maps.Residual(mlp(rng)), mlp(rng)), X)
    # two stages, four steps, columns of two times three
    for limit, said in ((2 * 4 * 36, True), (2 * 4 * 36 - 1, False)):
        monkeypatch.setattr(table, "MANY", limit)
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
    found, far = Table(f, X), float(off.abs().max() / f(X).abs().max())
    assert far > 0
    assert found._single() is not None
    for share, said in ((0.99, True), (1.01, False)):
        monkeypatch.setattr(table, "WIDE", share * far)
        assert (found._single() is None) is said


def test_sizes_in_single_precision_are_widened_by_a_share_and_by_what_sums_are_wrong_by():
    sizes = torch.tensor([[2.0, 0.0]], dtype=torch.float32)
    wrong = torch.tensor([[[1e-3, 0.0], [5e-3, 0.0], [2e-3, 0.0]]], dtype=torch.float64)
    found = outward(sizes, wrong)
    assert found.dtype == torch.float64
    assert found.tolist()[0] == pytest.approx([2 * (1 + WIDE) + TIMES * 5e-3 + TINY, TINY], rel=1e-14, abs=0)


@pytest.mark.parametrize("d", [3, 6])
def test_columns_that_differ_from_exact_ones_are_found_out_by_sums_of_them(d, rng):
    # what is taken for single precision here is another network
    f, g, X = mlp(rng, d=d), mlp(rng, d=d), gaussian(rng, 1, d)
    others = [hs.maps.MLP(up=x.up + 0.1 * gaussian(rng, 4, d), down=x.down, activation="tanh") for x in (f, g)]
    exact = Table(hs.maps.Chain(f, g), X).links
    _output, blurred = table._run(hs.maps.Chain(*others).to(torch.float32, "cpu"), X.float(), {})
    found = spread_roughly(blurred, 0, exact=exact)
    (columns,) = exact[0].stage.directions()
    weights = torch.eye(d).double() if d <= PROBES else torch.randn(
        PROBES, d, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )  # fmt: skip
    (entering,) = blurred[0].stage.directions()
    summed, right = (torch.einsum("kr,grnd->gknd", weights, x.double()) for x in (entering, columns))
    torch.testing.assert_close(rough._summed(weights, columns), right)
    # hidden units see sums: as far as they differ, and as the stage itself sees them differently
    up, other = g.up, others[1].up
    wrong = ((summed - right) @ up.mT)[:, :, 0].abs()
    wrong = wrong + ((summed @ other.mT)[:, :, 0].abs() - (summed @ up.mT)[:, :, 0].abs()).abs()
    sizes = ROUND.numbers(entering.double() @ other.mT)[:, 0]
    torch.testing.assert_close(found.at[1], outward(sizes, wrong), rtol=1e-5, atol=1e-5)
    pushed = blurred[1].stage.through(summed.float(), ROUND)[1] - exact[1].stage.through(right, ROUND)[1]
    torch.testing.assert_close(found.wrong[0], pushed, rtol=1e-5, atol=1e-5)


def test_what_is_wrong_at_the_output_is_seen_by_functionals(rng):
    f, X = hs.maps.Chain(mlp(rng), hs.maps.Dense(gaussian(rng, 2, 3))), gaussian(rng, 1, 3)
    functionals = torch.tensor([[1.0, 0.0], [-1.0, 0.0]], dtype=torch.float64)
    found = Table(f, X, single=True)
    found._wrong = [gaussian(rng, 1, 3, 1, 2).abs()]
    sizes = ROUND.numbers(found._ending[0].double().flatten(2) @ functionals.mT)
    expected = (1 + WIDE) * sizes + TIMES * (found._wrong[0][:, :, 0] @ functionals.mT).abs().amax(1) + TINY
    torch.testing.assert_close(found.arriving_at(functionals), expected)


def test_signals_on_a_stack_are_kept_swapped_and_added(rng, monkeypatch):
    a, b, c = gaussian(rng, 3, 1, 1, 2, 3)
    stack = [a, b]
    move(stack, Move.KEEP)
    assert [x is y for x, y in zip(stack, (a, b, b), strict=True)] == [True] * 3
    stack = [a, b, c]
    move(stack, Move.SWAP)
    assert stack[1] is c
    assert stack[2] is b
    move(stack, Move.ADD)
    torch.testing.assert_close(stack, [a, c + b])
    # columns that are pushed one by one
    W, columns = gaussian(rng, 5, 3), gaussian(rng, 2, 4, 2, 3)
    link = Link(Apply(hs.maps.Dense(W)), hs.maps.Dense(W).jacobian(columns[0, :1]))
    for few in (2**24, 1):
        monkeypatch.setattr(pushing, "NUMBERS", few)
        stack = [columns]
        advance(stack, link)
        torch.testing.assert_close(stack[0], columns @ W.mT)


def test_sums_of_maps_are_run_beside_each_other(rng):
    parts, X = [mlp(rng) for _ in range(3)], gaussian(rng, 2, 3)
    f = hs.maps.Chain(hs.maps.Residual(mlp(rng)), hs.maps.Sum(*parts), mlp(rng))
    found = Table(f, X)
    torch.testing.assert_close(found.output, f(X))
    moves = [step for step in program(hs.maps.Sum(*parts)) if isinstance(step, Move)]
    assert moves == [Move.KEEP, Move.SWAP, Move.KEEP, Move.SWAP, Move.ADD, Move.ADD]
    # the remainder of every part arrives at what follows as it is
    places = list(found.stages)
    for place in places[1:4]:
        (bundle,) = found.stages[place].directions()
        seen = spread(found.links, place).at[places[-1]]
        torch.testing.assert_close(seen, found.stages[places[-1]].seen(bundle, ROUND))


def test_axes_are_like_roots_of_what_is_left_and_of_size_one_in_the_mean():
    left = torch.tensor([[4.0, 1.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]], dtype=torch.float64)
    found = _axes(left)
    expected = (left[0] + 4 * LEAST).sqrt()
    expected = expected / (expected.square().sum() / 4).sqrt()
    torch.testing.assert_close(found[0], expected)
    assert found[1].tolist() == [1.0] * 4
    # however small what is left may be
    torch.testing.assert_close(_axes(1e-200 * left)[0], expected)


def test_units_that_are_not_known_to_stay_anywhere_are_taken_along_their_derivatives(rng):
    f, X = mlp(rng, "relu"), gaussian(rng, 2, 3)
    reach = torch.full((2, 4), torch.inf, dtype=torch.float64)
    reach[0] = 2.0
    stage, y = KinkedStage(f, X, reach), X @ f.up.mT
    torch.testing.assert_close(stage._slope[1], (y[1] > 0).double())
    torch.testing.assert_close(stage._slope[0], lines(y[0], 2 * torch.ones(4).double())[0])
    assert not bool(stage._offset[1].any())
    torch.testing.assert_close(stage.shift, stage._offset @ f.down.mT)
    left = off_the_line(y, stage._slope, stage._offset, torch.where(reach.isfinite(), reach, 0.0))
    torch.testing.assert_close(stage._axes, _axes(left))
    (bundle,) = stage.directions()
    for i in range(2):
        W = f.down * stage._axes[i]
        torch.testing.assert_close(bundle[i, :, i] @ bundle[i, :, i].mT, W @ W.mT, atol=1e-9, rtol=1e-9)
    sizes = 3 * uniform(rng, 8)
    left = off_the_line(y, stage._slope, stage._offset, sizes.view(2, 4))
    found = stage.bounds(sizes, First(sizes, X[None, None], 1.0, ROUND))
    torch.testing.assert_close(found, (left / stage._axes).norm(dim=-1))
    assert stage.reach(sizes).tolist() == sizes.view(2, 4).tolist()


def test_lines_of_units_that_do_not_move_are_their_derivatives():
    y, zero = torch.tensor([0.0, 1.0, -1.0], dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
    slope, offset = lines(y, zero)
    assert slope.tolist() == [0.0, 1.0, 0.0]
    assert offset.tolist() == [0.0] * 3
    # and at the kink
    slope, offset = lines(y, torch.ones(3, dtype=torch.float64))
    assert slope.tolist() == [0.5, 1.0, 0.0]
    assert offset.tolist() == [0.25, 0.0, 0.0]


def test_units_off_a_line_are_given_back_what_rounding_makes_of_differences():
    y = torch.tensor([-3.0, 2.0], dtype=torch.float64)
    slope, offset = torch.tensor([0.0, 1.0], dtype=torch.float64), torch.tensor([-1.0, -2.0], dtype=torch.float64)
    s = torch.tensor([0.5, 1.0], dtype=torch.float64)
    found, exact = off_the_line(y, slope, offset, s), torch.tensor([1.0, 2.0], dtype=torch.float64)
    more = (found - exact).tolist()
    expected = [1e-12 + 4.5e-15, 2e-12 + 5e-15]
    assert more == pytest.approx(expected, abs=1e-15)
    # a share of each number alone: of the unit, of its move with it, of the offset
    one, tiny = 1.0, 1e-30
    for y, s, offset in ((one, tiny, tiny), (one, one, tiny), (tiny, tiny, one)):
        expected = offset * (1 + 1e-12) + 1e-15 * (y + s + offset)
        numbers = (torch.tensor([x], dtype=torch.float64) for x in (y, 1.0, offset, s))
        assert float(off_the_line(*numbers)) - offset == pytest.approx(expected - offset, rel=1e-4, abs=0)
