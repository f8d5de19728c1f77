r"""Verdicts: whether a property of a network holds, with a proof or a counterexample."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from howsmooth.errors import AssumptionError, ShapeError
from howsmooth.maps.affine import Affine
from howsmooth.maps.attention import Attention
from howsmooth.maps.composition import Chain, leaves
from howsmooth.maps.protocols import Map
from howsmooth.proof_files import write_proof
from howsmooth.rounding import BOX_UNITS, MARGIN_SHARE
from howsmooth.verification.box_symbols import BoxSymbols
from howsmooth.verification.branch_and_bound import BentUnits, MarginFunction, split
from howsmooth.verification.guard import ROOM, AsItRuns, agree, sampled
from howsmooth.verification.network_expansion import LinearStage, expand
from howsmooth.verification.properties import Property, read_vnnlib
from howsmooth.verification.taylor_model import NEVER, Deadline, OutOfTimeError, TaylorModel

if TYPE_CHECKING:
    from howsmooth.verification.onnx_network import _Reader

ATTACK_STEPS, ATTACK_STARTS = 20, 4
# Second orders are bounded by products of ranges; by forms for scores and hidden units; by forms everywhere.
LEVELS = 3
# Forms cost the cube of their size each. Where those of all scores would cost more than so many multiplications,
# splitting is the better use of the time.
AFFORDABLE = 1e11


@dataclass(frozen=True, eq=False)
class Verdict:
    """Whether a property holds.

    Attributes:
        status: ``proven``, ``falsified``, or ``unknown``.
        margins: For every unsafe set, how far all outputs provably stay out of it; negative where that is not proven,
            NaN where nothing was tried, or time was over before there was any bound.
        counterexample: An input of the box whose output is unsafe, if one was found.
        outputs: Its output.
        seconds: How long it took, by the clock of the call.
        why: Why it is unknown, where that is not for want of time.
        nodes: How many pieces the box was split into, by the signs of hidden units.
        level: How closely second orders were bounded: 0, 1 or 2.
        uses: Of the margin that is proven least: its value at the centre, and what each kind of change takes off.
        rounding: Where the proof is about the network in float32: how much of every margin rounding takes, to first
            order in errors and in moves of the inputs. Margins hold all that it takes.
    """

    status: Literal["proven", "falsified", "unknown"]
    margins: Float[Tensor, " sets"]
    counterexample: Float[Tensor, " inputs"] | None
    outputs: Float[Tensor, " outputs"] | None
    seconds: float
    why: str = ""
    nodes: int = 0
    level: int = 0
    uses: dict[str, float] | None = None
    rounding: Float[Tensor, " sets"] | None = None

    def save(self, path: str | os.PathLike[str], network: Map | str | Path, property: Property | str | Path) -> None:  # noqa: A002
        """Write a proof file: of a counterexample the input, of a proof the lines and parts of the box behind it.

        A proof is found anew, with room for whoever checks it, in the time that it took and half as much again. It is
        about a map by its weights, and about the network in an ONNX file by the bytes of that.

        Args:
            path: A ``.json`` file.
            network: What was verified, a map or an ONNX file.
            property: The property.

        Raises:
            AssumptionError: If the verdict is unknown, its proof leaves no room, or the network is not one that proof
                files know.
        """
        if self.status == "unknown":
            raise AssumptionError("proof files hold proofs and counterexamples, and this property is unknown.")
        if not isinstance(network, Map | str | Path):
            raise AssumptionError(
                f"proof files are about maps and ONNX files, got {type(network).__name__}; of a module, write it with "
                "torch.onnx.export, verify that file and save its verdict.",
                field="network",
            )
        wanted = property if isinstance(property, Property) else read_vnnlib(property)
        if self.counterexample is None:
            from howsmooth.verification.proofs import verdict_claim

            f = network
            if not isinstance(f, Map):
                from howsmooth.verification.onnx_network import read_onnx

                f = read_onnx(f)
            write_proof(path, network, [verdict_claim(f, wanted, self.level, 10 + 1.5 * self.seconds)])
            return
        assert self.outputs is not None
        strict = wanted.strict or [torch.zeros_like(b, dtype=torch.bool) for _A, b in wanted.unsafe]
        y, sets = self.outputs.double(), zip(wanted.unsafe, strict, strict=True)
        A, b = next(unsafe for unsafe, more in sets if replace(wanted, unsafe=(unsafe,), strict=(more,)).violated_by(y))
        arrays = {"lower": wanted.lower, "upper": wanted.upper, "A": A, "b": b}
        arrays |= {"input": self.counterexample.double().reshape(wanted.lower.shape)}
        claim = {"kind": "counterexample"} | {name: array.tolist() for name, array in arrays.items()}
        write_proof(path, network, [claim])

    def __repr__(self) -> str:
        """Return the verdict in one line."""
        how = {
            "proven": f"no input of the box is unsafe ({self.nodes} pieces)",
            "falsified": "an input of the box is unsafe: see .counterexample",
            "unknown": self.why or "neither a proof nor a counterexample was found",
        }
        arithmetic = " in real arithmetic" if self.rounding is None else " in float32"
        where = arithmetic if self.status == "proven" else ""
        return f"Verdict({self.status}{where}: {how[self.status]}, {self.seconds:.1f} s)"


@torch.inference_mode(False)  # gradients are needed, whatever the caller has switched off
def verify(
    network: Map | nn.Module | str | Path,
    property: Property | str | Path,  # noqa: A002
    *,
    timeout: float = 100.0,
    float32: bool = False,
    clock: Callable[[], float] = time.monotonic,
) -> Verdict:
    r"""Prove that no input of a box has an unsafe output, or find one that has.

    Theorems 15 and 16: second-order Taylor models of all stages, quadratic forms of the margin bounded by weighted
    eigenvalues, and splitting by the signs of ReLUs.

    Args:
        network: An ONNX file, or a map in float64 from tokens to one row of outputs: softmax attention, MLPs, norms,
            affine maps and pooling, in chains and residual connections; or a module on inputs of the property's shape,
            which is read by way of ONNX.
        property: A VNN-LIB file, or a :class:`~howsmooth.verification.Property`.
        timeout: Seconds after which the answer is ``unknown``. What is begun is ended: a batch of quadratic forms, a
            round of splitting.
        float32: Whether the proof is about the network as it runs in float32, with all its rounding errors (Theorem
            17), and not about its values in real arithmetic.
        clock: What counts these seconds. It is wall time by default, as in the verification competition; on a machine
            that others use too, ``time.process_time`` gives every run the same work.
    """
    started = clock()
    if not timeout > 0:
        raise AssumptionError(f"timeout must be a positive number of seconds, got {timeout}.", field="timeout")
    wanted = property if isinstance(property, Property) else read_vnnlib(property)
    run: AsItRuns | None = None
    if isinstance(network, str | Path):
        from howsmooth.verification.onnx_network import read_and_run

        network, run = read_and_run(network)
    elif isinstance(network, nn.Module):
        from howsmooth.verification.onnx_network import read_and_run_module

        network, run = read_and_run_module(network, wanted.lower.shape)
    elif not isinstance(network, Map):
        raise AssumptionError(
            f"network must be an ONNX file, a module or a map, got {type(network).__name__}. Of a model and a "
            "sentence, hs.certify(model, sentence) has the map as .classifier and what it maps as .embeddings.",
            field="network",
        )
    if float32 and (run is None or run.dtype != torch.float32):
        raise AssumptionError(
            "float32 needs an ONNX file, or a module, that takes float32: rounding is followed through its nodes; got "
            f"{type(network).__name__ if run is None else run.dtype}.",
            field="float32",
        )
    whole, deadline = _Network.of(network, wanted), Deadline(started + timeout, clock)
    found, ends = _falsify(whole, wanted, run, deadline)
    if found is not None:
        margins = torch.full((len(wanted.unsafe),), torch.nan, dtype=torch.float64)
        return Verdict("falsified", margins, *found, clock() - started)
    apart = None
    if run is not None:
        apart = agree(whole.outputs, whole.to(run.dtype).outputs, run, sampled(*_box(wanted), ends))
    return _prove(whole, wanted, apart, started, deadline, run.read if run is not None and float32 else None)


@dataclass(frozen=True, eq=False)
class _Network:
    """An affine map from the inputs to the first tokens, and what follows it."""

    embedding: Affine
    rest: Chain

    @classmethod
    def of(cls, network: Map, wanted: Property) -> "_Network":
        if network.dtype != torch.float64:
            raise AssumptionError(f"proofs need float64, got {network.dtype}: use network.to(torch.float64).")
        network = network.to(torch.float64)  # copies what was made in inference mode
        maps = network.maps if isinstance(network, Chain) else (network,)
        embedding = maps[0]
        if isinstance(embedding, Affine) and len(maps) == 1:  # nothing else: its inputs are the tokens
            size = embedding.weight[0, 0].numel()
            identity = torch.eye(size, dtype=torch.float64).reshape(
                *embedding.weight.shape[2:], *embedding.weight.shape[2:]
            )
            embedding = Affine(weight=identity, bias=torch.zeros_like(identity[..., 0, 0]))
            maps = (embedding, *maps)
        elif not isinstance(embedding, Affine):
            shape = tuple(wanted.lower.shape)
            if len(shape) != 2:
                raise ShapeError(
                    "the bounds of inputs must be (n, d), one row for each token, unless the network begins with an "
                    f"Affine map; got {shape}.",
                    field="property",
                )
            identity = torch.eye(wanted.lower.numel(), dtype=torch.float64).reshape(*shape, *shape)
            embedding = Affine(weight=identity, bias=torch.zeros(shape, dtype=torch.float64))
            maps = (embedding, *maps)
        inputs = embedding.weight[0, 0].numel()
        if inputs != wanted.lower.numel():
            raise ShapeError(f"the network has {inputs} inputs, the property bounds {wanted.lower.numel()}.")
        found = cls(embedding, Chain(*maps[1:]))
        rows, outputs = found.rest(found.tokens(_box(wanted)[0])).shape
        if rows != 1:
            raise ShapeError(f"the network must put out one row, as behind pooling; got {rows}.", field="network")
        if any(A.shape[1] != outputs for A, _b in wanted.unsafe):
            raise ShapeError(
                f"the network has {outputs} outputs, the property speaks of {wanted.unsafe[0][0].shape[1]}."
            )
        return found

    def to(self, dtype: torch.dtype) -> "_Network":
        return _Network(self.embedding.to(dtype), self.rest.to(dtype))

    def outputs(self, x: Float[Tensor, "*batch inputs"]) -> Float[Tensor, "*batch outputs"]:
        return self.rest(self.tokens(x)).flatten(-2)

    def tokens(self, x: Float[Tensor, "*batch inputs"]) -> Float[Tensor, "*batch n d"]:
        return self.embedding(x.unflatten(-1, self.embedding.weight.shape[2:]))


def _falsify(
    network: _Network, wanted: Property, run: AsItRuns | None, deadline: Deadline
) -> tuple[tuple[Tensor, Tensor] | None, Float[Tensor, "attacks inputs"]]:
    """Look for an unsafe input by steps along signs of gradients, from the centre and from random corners.

    Returns:
        An unsafe input with its output, if one was found; and where the attack of every unsafe set ended.
    """
    generator = torch.Generator().manual_seed(0)
    centre, half = _box(wanted)
    sets = len(wanted.unsafe)
    best, ends = torch.full((sets,), -torch.inf, dtype=torch.float64), centre.repeat(sets, 1)

    def sides() -> Tensor:
        corners = torch.zeros(sets, len(centre), dtype=torch.float64)
        return corners.bernoulli_(generator=generator).mul_(2).sub_(1)

    for restart in range(ATTACK_STARTS):
        xi = sides() if restart else torch.zeros(sets, len(centre), dtype=torch.float64)
        for step in range(ATTACK_STEPS):
            if deadline.passed:
                return None, ends
            xi = xi.detach().requires_grad_()
            y = network.outputs(centre + half * xi)
            inside = torch.stack([(A @ y[k] - b).min() for k, (A, b) in enumerate(wanted.unsafe)])
            (gradient,) = torch.autograd.grad(inside.sum(), xi)
            for k in (inside >= 0).nonzero().squeeze(-1).tolist():
                found = _replayed(centre + half * xi[k].detach(), network, wanted, run)
                if found is not None:
                    return found, ends
            better = inside.detach() > best
            best = torch.where(better, inside.detach(), best)
            ends = torch.where(better[:, None], (centre + half * xi).detach(), ends)
            direction, flat = gradient.sign(), ~gradient.any(1)
            if bool(flat.any()):  # as behind units that are off: any direction is as good
                direction[flat] = sides()[flat]
            xi = (xi.detach() + 2 * (1 - step / ATTACK_STEPS) ** 2 * direction).clamp(-1, 1)
        if restart and float(inside.detach().max()) < -0.5 * float(inside.detach().abs().max()):
            break  # far from any: proofs are the better use of the time
    return None, ends


def _replayed(x: Tensor, network: _Network, wanted: Property, run: AsItRuns | None) -> tuple[Tensor, Tensor] | None:
    """Return an input of the box and its output if the network itself, in its own precision, finds it unsafe."""
    lower, upper = wanted.lower.flatten(), wanted.upper.flatten()
    x = x.clamp(lower, upper)
    if run is not None:  # the nearest input in this precision, on this side of the ends if there is one
        x = x.to(run.dtype)
        one = torch.ones_like(x)
        x = torch.where(x.double() > upper, torch.nextafter(x, -torch.inf * one), x)
        x = torch.where(x.double() < lower, torch.nextafter(x, torch.inf * one), x).double()
    y = network.outputs(x) if run is None else run(x)
    return (x, y) if wanted.violated_by(y) else None


def _prove(
    network: _Network,
    wanted: Property,
    apart: Float[Tensor, " outputs"] | None,
    started: float,
    deadline: Deadline,
    read: "_Reader | None" = None,
) -> Verdict:
    rows = torch.cat([A for A, _b in wanted.unsafe])
    # what the network may put out besides what was read is taken off every margin
    guarded = torch.zeros(len(rows), dtype=torch.float64) if apart is None else rows.abs() @ apart
    bounds = torch.cat([b for _A, b in wanted.unsafe]) - guarded
    place = torch.cat([torch.full((len(b),), k) for k, (_A, b) in enumerate(wanted.unsafe)])
    best = torch.full((len(rows),), -torch.inf, dtype=torch.float64)
    nodes, uses, level, levels = 0, None, 0, LEVELS
    rounding = None if read is None else torch.full_like(best, torch.nan)
    for closer in range(LEVELS):
        begun = deadline.clock()
        try:
            model = _expanded(network, wanted, closer, deadline, read)
            behind = 0.0 if model.execution is None else rows.abs() @ model.execution.behind_all()
            margins = _Margins.of(model, rows, bounds - behind)
        except OutOfTimeError:
            break
        level, levels = closer, LEVELS if _cost_of_forms(network, model) < AFFORDABLE else 1
        best = torch.maximum(best, margins.lower)
        enough = Deadline(min(deadline.at, 2 * deadline.clock() - begun), deadline.clock)
        bent = model.derivative.shape[-1] > model.symbols.coordinates
        units = BentUnits.of(model) if bent and bool(model.derivative.isfinite().all()) else None
        for row in (k for k in best.argsort().tolist() if best[k] <= 0):
            if units is None or bool((best[place == place[row]] > 0).any()):
                continue
            last = level == levels - 1
            if level == 0 and not last:
                break  # the next level is cheap, and closer
            # the next level takes about three times as long as this one, and leaves less to split
            outcome = split(units, margins.objective(row), deadline if last else enough)
            nodes += outcome.nodes
            best[row] = max(float(best[row]), outcome.lower)
            if not outcome.positive:
                break
        row = int(margins.lower.argmin())
        uses = margins.uses(row)
        if model.execution is not None:
            before = model.execution.to_first_order(model, rows)
            rounding = before + behind
            uses |= {"remainder": max(uses["remainder"] - float(before[row]), 0.0), "rounding": float(rounding[row])}
            uses["centre"] += float(rounding[row] - before[row])
        if _all_excluded(best, place) or level == levels - 1 or deadline.passed:
            break
    per_set = torch.stack([best[place == k].max() for k in range(len(wanted.unsafe))])
    if uses is None:  # time was over before there was any bound
        per_set = torch.full_like(per_set, torch.nan)
    status: Literal["proven", "unknown"] = "proven" if bool((per_set > 0).all()) else "unknown"
    why = ""
    if status == "unknown" and _all_excluded(best + guarded, place):
        why = (
            f"the network as it runs differs from what was read by up to {float(guarded.max()) / ROOM:.1g} in margins, "
            f"which must exceed {ROOM:g} times that"
        )
    per_set_rounding = None
    if rounding is not None:
        of_set = [int(best.masked_fill(place != k, -torch.inf).argmax()) for k in range(len(per_set))]
        per_set_rounding = rounding[of_set]
        k = int(per_set.argmin())
        if status == "unknown" and not why and bool(per_set_rounding[k] > -per_set[k]):
            least = float(per_set[k] + per_set_rounding[k])
            why = f"rounding in float32 takes {float(per_set_rounding[k]):.2g} of a margin of {least:.2g}"
    return Verdict(status, per_set, None, None, deadline.clock() - started, why, nodes, level, uses, per_set_rounding)


def _cost_of_forms(network: _Network, model: TaylorModel) -> float:
    """Return about how many multiplications the forms of all scores take."""
    heads = sum(len(f.query) for f in leaves(network.rest) if isinstance(f, Attention))
    tokens = network.embedding.weight.shape[0]
    return float(heads * tokens**2 * model.derivative.shape[-1] ** 3)


def _all_excluded(best: Tensor, place: Tensor) -> bool:
    """Say whether of every unsafe set one inequality is violated on the whole box."""
    return all(bool((best[place == k] > 0).any()) for k in place.unique())


def _expanded(
    network: _Network, wanted: Property, level: int, deadline: Deadline = NEVER, read: "_Reader | None" = None
) -> TaylorModel:
    centre, half = _box(wanted)
    # the centre and the half-widths are rounded, so that the box they stand for is made a little larger; inputs that
    # stay where they are have an exact centre, and need no symbols
    rounding = BOX_UNITS * torch.finfo(torch.float64).eps * (centre.abs() + half)
    half = torch.where(half > 0, half + rounding, 0.0)
    symbols, derivative = BoxSymbols.of(network.embedding, half)
    model = TaylorModel(symbols, network.tokens(centre), derivative, deadline=deadline)
    if read is not None:
        from howsmooth.verification.float32 import Execution

        execution = Execution(read, wanted)
        model = execution.begin(replace(model, execution=execution))
    return expand(network.rest, model, level)


def _box(wanted: Property) -> tuple[Float[Tensor, " inputs"], Float[Tensor, " inputs"]]:
    """Return the centre and the half-widths."""
    lower, upper = wanted.lower.flatten(), wanted.upper.flatten()
    return (upper + lower) / 2, (upper - lower) / 2


@dataclass(frozen=True, eq=False)
class _Margins:
    """Rows of outputs that must be negative, as functions of the box and of bent units."""

    centre: Float[Tensor, " rows"]
    pixels: Float[Tensor, "rows s"]
    units: Float[Tensor, "rows c"]
    second_order: Float[Tensor, " rows"]
    remainder: Float[Tensor, " rows"]

    @classmethod
    def of(cls, model: TaylorModel, rows: Tensor, bounds: Tensor) -> "_Margins":
        linear = -rows @ model.derivative[0]
        found = model.beyond_linear(-rows.unsqueeze(1), forms=True)
        base = model.symbols.coordinates
        magnitude = rows.abs() @ model.centre[0].abs() + bounds.abs() + linear.abs().sum(1)
        last = model.stages[-1]
        if isinstance(last, LinearStage):  # what it adds up may be larger than its sum
            summands = last.pull_back(rows.unsqueeze(1), None).abs() * last.entered.abs()
            magnitude = magnitude + summands.sum((1, 2))
        magnitude = magnitude + found.below + found.remainder
        return cls(
            bounds - rows @ model.centre[0] - MARGIN_SHARE * magnitude,
            model.symbols.pixels(linear),
            linear[:, base:],
            found.below * (1 + MARGIN_SHARE),
            found.remainder * (1 + MARGIN_SHARE),
        )

    @property
    def lower(self) -> Float[Tensor, " rows"]:
        """How far each row is below zero on the whole box."""
        linear = self.pixels.abs().sum(1) + self.units.abs().sum(1)
        found = self.centre - linear * (1 + MARGIN_SHARE) - self.second_order - self.remainder
        return torch.where(found.isfinite(), found, -torch.inf)  # what is no number proves nothing

    def objective(self, row: int) -> MarginFunction:
        """Return one row for splitting."""
        centre = self.centre[row] - self.second_order[row] - self.remainder[row]
        return MarginFunction(centre, self.pixels[row], self.units[row])

    def uses(self, row: int) -> dict[str, float]:
        """Say what takes how much off the margin of one row."""
        parts = {"inputs": self.pixels.abs().sum(1), "relu": self.units.abs().sum(1)}
        parts |= {"second order": self.second_order, "remainder": self.remainder}
        return {name: float(x[row].detach()) for name, x in ({"centre": self.centre} | parts).items()}
