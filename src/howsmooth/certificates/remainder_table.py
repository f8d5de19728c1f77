r"""The table of a sentence: how much of every remainder of Theorem 11 arrives at every later stage, to first order.

With :math:`\delta_k` the change of the input of stage k and :math:`R_l` the remainder of stage l,

.. math:: \delta_k = G_ke + \sum_{l<k}T_{k\leftarrow l}R_l,

G and T the Jacobians at the centre. The norms of :math:`T_{k\leftarrow l}B_l` do not depend on the radius: they are
computed once, source by source; every radius of every word is then a recursion of products with the table.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.certificates.attention_stage import AttentionStage
from howsmooth.certificates.image_norms import EUCLIDEAN, UnitBall
from howsmooth.certificates.mlp_stage import GatedStage, mlp_stage
from howsmooth.certificates.norm_stage import NormStage
from howsmooth.certificates.propagation import Apply, Link, move, picked_row, picked_token, program, propagate
from howsmooth.certificates.relu_stage import ReLUStage
from howsmooth.certificates.stages import Stage
from howsmooth.maps.activations import Pointwise, known_activation
from howsmooth.maps.attention import Attention
from howsmooth.maps.composition import linearised
from howsmooth.maps.mlp import MLP, GatedMLP
from howsmooth.maps.norms import Norm
from howsmooth.maps.protocols import Map
from howsmooth.rounding import ERROR_FACTOR, PROBES, SINGLE_SHARE

MEMORY = 2**30
# Tables of more numbers are computed in single precision: this many take about half a minute in double precision.
DOUBLE_PRECISION = 2**32
# Squares of smaller numbers than this underflow in single precision, or nearly.
TINY = 1e-17


@dataclass(frozen=True)
class Slack:
    """Where a certificate loses margin: one group of remainders.

    Attributes:
        stage: What the stage is: ``attention``, ``mlp`` or ``norm``.
        index: Which one of these it is, from 0 on.
        token: The token of the remainder.
    """

    stage: str
    index: int
    token: int

    def __str__(self) -> str:
        """Name the stage and the token by their numbers."""
        return f"{self.stage} {self.index}, token {self.token}"

    def in_words(self, words: Sequence[str], *, layers: int, first: int = 0) -> str:
        """Name the sub-layer and the token.

        Args:
            words: The tokens of the sentence.
            layers: How many layers are behind the place where words move; an MLP behind all of them is the classifier.
            first: The first of these layers.

        Example:
            >>> words = ["a", "fine", "film"]
            >>> Slack("mlp", 1, 2).in_words(words, layers=2), Slack("mlp", 2, 0).in_words(words, layers=2)
            ('mlp of layer 1, film', 'classifier')
        """
        if self.stage == "mlp" and self.index >= layers:
            return "classifier"  # it reads one token, whichever that is
        where = f"norm {self.index}" if self.stage == "norm" else f"{self.stage} of layer {first + self.index}"
        return f"{where}, {words[self.token]}"


class RemainderTable:
    """A network at one input, with all that radii need.

    Attributes:
        X: The input.
        output: The output of the network there; where expansion points are shifted, at the last of them.
        links: Its steps.
        stages: The steps with a remainder, by their places.
        transfer: The norms of all remainders before a stage, as the stage sees them, by its place.
    """

    def __init__(
        self,
        f: Map,
        X: Float[Tensor, "n d"],
        *,
        single: bool | None = None,
        unit_ranges: Mapping[int, Tensor] | None = None,
        every_row: bool = False,
    ) -> None:
        """Run the network once, and propagate every source of remainders to the end.

        Args:
            f: The network.
            X: The input.
            single: Whether columns are propagated in single precision, and their norms widened by an allowance. By
                default where there are many.
            unit_ranges: How far ReLU units are expected to move, by the places of their stages: lines are chosen for
                that, and the centre is shifted; derivatives by default.
            every_row: Whether to bound the rows of an attention too that a pooling behind it leaves out.
        """
        self.X, self._map, self._unit_ranges, self._every_row = X, f, unit_ranges or {}, every_row
        with torch.no_grad():
            self.output, self.links = linearise(f, X, self._unit_ranges, every_row)
            self.stages = {place: link.stage for place, link in enumerate(self.links) if link.stage is not None}
            single = not self.cheap if single is None else single
            rounded = self._single_precision_links() if single else None
            sources = [
                source_norms(self.links, place) if rounded is None else rounded_norms(rounded, place, exact=self.links)
                for place in self.stages
            ]
        # At a stage, sources are in the order of the places before it: so are the remainders of a word.
        self.transfer = {
            place: torch.cat([source.at[place] for source in sources[:count]])
            for count, place in enumerate(self.stages)
            if count
        }
        self._outputs = [columns for source in sources for columns in source.output]
        self._output_errors = [errors for source in sources for errors in source.output_errors]

    def transfer_to(self, functionals: Float[Tensor, "f out"]) -> Float[Tensor, "groups f"]:
        """Return how much of every remainder arrives at functionals of the output."""
        found = [EUCLIDEAN.scalar_norms(columns.double().flatten(2) @ functionals.mT) for columns in self._outputs]
        if self._output_errors:
            errors = [(error.flatten(2) @ functionals.mT).abs() for error in self._output_errors]
            found = [widened(norms, error) for norms, error in zip(found, errors, strict=True)]
        return torch.cat(found) if found else functionals.new_zeros(0, len(functionals))

    def with_unit_ranges(self, unit_ranges: Mapping[int, Tensor]) -> "RemainderTable":
        """Return a table whose ReLU units are relaxed by the lines for other ranges."""
        return RemainderTable(self._map, self.X, unit_ranges=unit_ranges)

    @property
    def groups(self) -> list[Slack]:
        """The stage, counted by kind, and the token of every group of remainders."""
        # The norm before an MLP and the one before attention count as norms 0, 1, …; layers are not known here.
        counts: dict[str, int] = {}
        found: list[Slack] = []
        picked = 0
        for link in self.links:
            if isinstance(link.step, Apply):
                picked = picked or picked_token(link.step.map) or 0
            if link.stage is not None:
                count = counts.setdefault(link.stage.name, 0)
                # Behind a pooling that picks a token there is no other.
                found.extend(Slack(link.stage.name, count, picked + token) for token in link.stage.tokens.tolist())
                counts[link.stage.name] += 1
        return found

    @property
    def has_relu(self) -> bool:
        """Whether there are ReLU units."""
        return any(isinstance(stage, ReLUStage) for stage in self.stages.values())

    @property
    def cheap(self) -> bool:
        """Whether there are so few columns that double precision is affordable, and a table for every word."""
        n, d = self.X.shape
        return len(self.stages) * len(self.links) * (n * d) ** 2 <= DOUBLE_PRECISION

    def _single_precision_links(self) -> list[Link] | None:
        """Return the links in single precision, if the output agrees."""
        output, links = linearise(
            self._map.to(torch.float32, "cpu"), self.X.float(), self._unit_ranges, self._every_row
        )
        # Where the output itself is lost in rounding, columns are too.
        error = (output.double() - self.output).abs().max() / self.output.abs().max()
        return links if bool(error < SINGLE_SHARE) else None


def linearise(
    f: Map, X: Float[Tensor, "n d"], unit_ranges: Mapping[int, Tensor], every_row: bool = False
) -> tuple[Tensor, list[Link]]:
    """Run a network at ``X`` and expand every step there; steps behind a shift are expanded at the shifted centre."""
    stack, links, steps = [X], list[Link](), program(f)
    for step in steps:
        if isinstance(step, Apply):
            row = None if every_row else picked_row(steps[len(links) + 1 :])
            stage = _stage(step.map, stack[-1], unit_ranges.get(len(links)), row)
            # The stage and the Jacobian are taken at the same input, shifted or not: Theorem 11 holds around any point.
            value, jacobian = linearised(step.map, stack[-1][None], MEMORY)
            shift = None if stage is None else stage.shift
            stack[-1] = value[0] if shift is None else value[0] + shift
            links.append(Link(step, jacobian, stage))
        else:
            move(stack, step)
            links.append(Link(step))
    return stack[0], links


def _stage(f: Map, X: Tensor, unit_ranges: Tensor | None, row: int | None) -> Stage | None:
    """Return the stage of a map; maps without one are linear, since a program holds no others."""
    if isinstance(f, Norm):
        return NormStage(f, X)
    if isinstance(f, Attention):
        return AttentionStage(f, X, row)
    if isinstance(f, MLP):
        return _mlp_stage(f, X, unit_ranges)
    if isinstance(f, GatedMLP):
        return GatedStage(f, X)
    if isinstance(f, Pointwise):
        # An activation by itself is an MLP between two identities.
        eye = torch.eye(X.shape[-1], dtype=X.dtype)
        return _mlp_stage(MLP(up=eye, down=eye, activation=f.activation), X, unit_ranges)
    return None


def _mlp_stage(f: MLP, X: Tensor, unit_ranges: Tensor | None) -> Stage:
    return ReLUStage(f, X, unit_ranges) if known_activation(f.activation).name == "relu" else mlp_stage(f, X)


@dataclass(frozen=True, eq=False)
class SourceNorms:
    """How much of the remainder of one stage arrives later."""

    # its norms at every stage behind it, by the place of the stage
    at: dict[int, Float[Tensor, "groups norms"]] = field(default_factory=dict)
    output: list[Tensor] = field(default_factory=list)  # its columns at the output
    output_errors: list[Tensor] = field(default_factory=list)  # the errors of random sums of these

    def add(self, place: int, norms: Float[Tensor, "groups norms"]) -> None:
        """Append the norms of more groups at a stage."""
        self.at[place] = torch.cat((self.at[place], norms)) if place in self.at else norms


def source_norms(links: list[Link], place: int) -> SourceNorms:
    """Propagate the directions of the remainder of one stage."""
    found = SourceNorms()

    def visit(later: int, _entering: Tensor, norms: Tensor) -> None:
        found.add(later, norms)

    for columns in _directions(links, place):
        found.output.append(propagate(links, place, columns, EUCLIDEAN, visit))
    return found


def rounded_norms(links: list[Link], place: int, *, exact: list[Link]) -> SourceNorms:
    r"""Propagate the directions of a remainder in single precision, and widen norms for its rounding errors.

    :ref:`Rounding in certificates <certificate-rounding>`: Gaussian sums of the columns are propagated in double
    precision too. If a stage sees columns through M, and rounding moved them by :math:`\Delta`, such a sum has the
    error :math:`M\Delta g`, and :math:`P(|M\Delta g| < t\|M\Delta\|) \le P(|g_1| < t)`, while the error of the norm is
    at most :math:`\|M\Delta\|`.
    """
    found, generator = SourceNorms(), torch.Generator().manual_seed(place)
    for columns, exact_columns in zip(_directions(links, place), _directions(exact, place), strict=True):
        weights = _probe_weights(columns.shape[1], generator)
        _propagate_rounded(found, links, exact, place, columns, exact_columns, weights)
    return found


def _propagate_rounded(
    found: SourceNorms,
    links: list[Link],
    exact: list[Link],
    place: int,
    columns: Float[Tensor, "groups r n d"],
    exact_columns: Float[Tensor, "groups r n d"],
    weights: Float[Tensor, "k r"],
) -> None:
    expected: dict[int, Tensor] = {}

    def remember(later: int, entering: Tensor, _norms: Tensor) -> None:
        expected[later] = entering

    def visit(later: int, entering: Tensor, norms: Tensor) -> None:
        errors = _image_errors(links[later], exact[later], _weighted_sums(weights, entering), expected[later])
        found.add(later, widened(norms, errors))

    # Norms of the exact sums are not used: those for p = 1 cost least.
    sums = propagate(exact, place, _weighted_sums(weights, exact_columns), UnitBall(1.0), remember)
    output = propagate(links, place, columns, EUCLIDEAN, visit)
    found.output.append(output)
    found.output_errors.append(_weighted_sums(weights, output) - sums)


def _directions(links: list[Link], place: int) -> list[Float[Tensor, "groups r n d"]]:
    stage = links[place].stage
    assert stage is not None
    return stage.directions()


def _image_errors(rounded: Link, exact: Link, sums: Float[Tensor, "groups k n d"], expected: Tensor) -> Tensor:
    """Return the errors of sums as a stage sees them, and the errors that the stage itself makes with them."""
    assert rounded.stage is not None
    assert exact.stage is not None
    each, right = (x.flatten(0, 1)[:, None] for x in (sums, expected))
    # Sums are measured by both stages: the weights of the rounded one differ too, by what rounding took from them.
    of_stage = rounded.stage.image_norms(each.float(), EUCLIDEAN).double() - exact.stage.image_norms(each, EUCLIDEAN)
    return (exact.stage.image_norms(each - right, EUCLIDEAN) + of_stage.abs()).unflatten(0, sums.shape[:2])


def _probe_weights(r: int, generator: torch.Generator) -> Float[Tensor, "k r"]:
    """Return the weights of random sums; few columns are compared one by one."""
    if r <= PROBES:
        return torch.eye(r, dtype=torch.float64)
    return torch.randn(PROBES, r, generator=generator, dtype=torch.float64)


def _weighted_sums(weights: Float[Tensor, "k r"], columns: Float[Tensor, "groups r n d"]) -> Tensor:
    """Return sums of columns, in double precision."""
    return (weights.to(columns.dtype) @ columns.flatten(2)).double().unflatten(2, columns.shape[2:])


def widened(norms: Float[Tensor, "groups norms"], errors: Float[Tensor, "groups probes norms"]) -> Tensor:
    """Widen norms in single precision by a share of themselves, and by a multiple of the errors of sums."""
    # A random sum that shows hardly any error is unlikely, four of them all the more so.
    return (1 + SINGLE_SHARE) * norms.double() + ERROR_FACTOR * errors.amax(1) + TINY
