"""The constant at a window of a text: the model runs once on many windows, and every layer takes one iteration.

Of one part of a layer, or of some consecutive blocks of a model; and whether the tokens of a text split.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

from howsmooth.errors import AssumptionError
from howsmooth.spectral.solver_settings import check_metric
from howsmooth.studies.asks import Answer, AtText
from howsmooth.studies.json_values import NOT_IN_KEY, ROUND_DOWN, ROUND_UP, described, finite, settings_of
from howsmooth.studies.kinds import Kind
from howsmooth.studies.records import Record
from howsmooth.studies.settings import Solver

if TYPE_CHECKING:
    from torch import Tensor

    from howsmooth.linear_operators import LinearOperator
    from howsmooth.maps.attention import Attention
    from howsmooth.metrics import Metrics
    from howsmooth.models.attention_layer import Measurable
    from howsmooth.spectral.estimates import NormEstimate
    from howsmooth.studies.resources import Resources

# How many random directions say what noise does: a tenth of what the worst one takes, and more of short inputs, where
# products take no time; about so many tokens in all.
PROBES, MOST_PROBES, PROBED_TOKENS = 4, 32, 1024


def check_certificate(certificate: bool, metric: str) -> None:
    """Refuse a certificate in a metric that none is proven in."""
    if certificate and metric not in ("total", "token"):
        raise AssumptionError(
            f"certificates at a window are proven in the metrics total and token, got {metric!r}.", field="certificate"
        )


class TextAsk(AtText, frozen=True, kw_only=True, tag="text"):
    """The constant at a window of a text: the model runs once on many windows, and every layer takes one iteration.

    Attributes:
        metric: The name of the metric of perturbations and changes.
        solver: How well the constant is to be known.
        certificate: Whether to prove a bound at this input too: slow, and far above the bracket.
        released: Whether to record the quantity of the paper's released scripts too.
    """

    metric: str = "total"
    solver: Solver = Solver()
    certificate: bool = False
    released: bool = False

    def __post_init__(self) -> None:
        """Refuse what is no metric, and certificates that are not proven in one."""
        check_metric(self.metric)
        check_certificate(self.certificate, self.metric)

    @property
    def drawn_as(self) -> "TextAsk":
        """The ask that seeds the random start."""
        return self

    @property
    def cost(self) -> float:
        """A certificate takes three times as long as a bracket, a bare value half as long."""
        return super().cost * (1.0 if self.solver.certify else 0.5) * (4.0 if self.certificate else 1.0)


class TextAnswer(Answer, frozen=True, kw_only=True):
    r"""The local Lipschitz constant at one window.

    Attributes:
        lower: Attained by an explicit perturbation.
        upper: Holds with the probability ``solver.confidence``; none if nothing is known from above.
        steps: How many steps the solver took.
        status: Why it stopped, in one word.
        products: How many products with the Jacobian the whole cell took.
        mean_radius: :math:`(\frac1n\sum_i|x_i|^2)^{1/2}` of the tokens that enter.
        reach: The largest norm of a token.
        relative: The condition number :math:`\|J\|\|X\|/\|f(X)\|`: by how many percent the output changes, at worst,
            for each percent of the input; none where the output is zero, and in records of earlier versions.
        typical: The root mean square gain of random perturbations.
        typical_low: The lower end of its interval at 95 %, over random directions; none but in Euclidean metrics.
        typical_high: The upper end.
        probes: How many random directions that was estimated from.
        dimensions: The dimension of the space of perturbations.
        local_upper: The certificate at this input, if it was asked for and the theory has one.
        released_quantity: :math:`\|J^\top f(X)\|^{1/2}`, if it was asked for.
        sensitivity: The share of the worst perturbation that each token holds.
        response: The share of the response that each token holds.
        leading: How many singular values exceed half of the largest, at least.
    """

    lower: Annotated[float, ROUND_DOWN]
    upper: Annotated[float | None, ROUND_UP] = None
    steps: int = 0
    status: str = ""
    products: int = 0
    mean_radius: float = 0.0
    reach: float = 0.0
    relative: Annotated[float | None, ROUND_DOWN] = None
    typical: float | None = None
    typical_low: Annotated[float | None, ROUND_DOWN] = None
    typical_high: Annotated[float | None, ROUND_UP] = None
    probes: int = 0
    dimensions: int = 0
    local_upper: Annotated[float | None, ROUND_UP, described(column="certificate")] = None
    released_quantity: float | None = None
    sensitivity: tuple[float, ...] = ()
    response: tuple[float, ...] = ()
    leading: int = 0


TextRecord = Record[TextAsk, TextAnswer]
# Bounds at single inputs that are columns of the answer: the field, and what stands at the head of the column.
BOUND_COLUMNS: dict[str, str] = {
    name: field.declared["column"] for name, field in settings_of(TextAnswer).items() if "column" in field.declared
}

# A block is attention and a feed-forward part, which takes twice as long.
BLOCK = 3.0


class WholeAsk(TextAsk, frozen=True, kw_only=True, tag="whole"):
    """A model from end to end: each block by itself, all blocks up to each layer, and all from each layer on.

    Its map is ``block``, ``to:3``, ``from:3``, or ``model`` for all blocks.
    """

    blocks: Annotated[int, NOT_IN_KEY] = 1  # how many blocks these are; the map says it, if one knows the model

    @property
    def share(self) -> float:
        """That of all blocks."""
        return BLOCK * self.blocks

    @property
    def drawn_as(self) -> TextAsk:
        """The same question about this map alone, so that one quantity has one value in both."""
        return TextAsk(**{name: getattr(self, name) for name in TextAsk.__struct_fields__})


WholeRecord = Record[WholeAsk, TextAnswer]


def run(batch: Sequence[TextAsk], cell: Sequence[TextAsk], resources: "Resources") -> list[Answer]:
    """Measure one map of a layer at the windows of a cell, or all of its heads, in one iteration."""
    maps = list(dict.fromkeys(ask.map for ask in cell))
    if len(maps) == 1 and resources.group is not None:
        return _measured_together(batch, cell, resources)
    if len(maps) == 1:
        f, X = resources.entering(batch, cell)
        return _measured(f, X, cell, [(i,) for i in range(len(cell))])
    if resources.group is None:
        activations, indices = resources.activations(batch)
        site = activations.layers[cell[0].layer]
        if site.attention is not None and len(maps) == site.head_count:
            f, X = activations.per_head(cell[0].layer)
            return _measured(f, X, cell, [(indices.index(ask.window.index), ask.map_name.head or 0) for ask in cell])
    answers = {part: iter(run(batch, [ask for ask in cell if ask.map == part], resources)) for part in maps}
    return [next(answers[ask.map]) for ask in cell]


def _measured_together(batch: Sequence[TextAsk], cell: Sequence[TextAsk], resources: "Resources") -> list[Answer]:
    """Measure the map of a cell at windows whose tokens the processes of a group share out."""
    from howsmooth.spectral.operators import over_processes

    sequence = resources.shared(batch)
    windows = sorted({ask.window.index for ask in batch})
    with over_processes(sequence.ring):
        f, X = sequence.at(cell[0].layer, cell[0].map)
        return _measured(
            f, X[[windows.index(ask.window.index) for ask in cell]], cell, [(i,) for i in range(len(cell))]
        )


def _measured(f: "Measurable", X: "Tensor", cell: Sequence[TextAsk], places: Sequence[tuple[int, ...]]) -> list[Answer]:
    """Measure a map at a batch of inputs; ``places`` says where in the batch each ask of the cell stands."""
    import torch

    from howsmooth.metrics import as_metrics
    from howsmooth.spectral.autograd import linearise
    from howsmooth.spectral.metric_norms import as_tokens, in_metrics, vector_output
    from howsmooth.spectral.operators import dimension, norm_of_parts, norms
    from howsmooth.studies.resources import seeded

    first, generator = cell[0], seeded(ask.drawn_as for ask in cell)
    J = linearise(f, X)
    directions = probes(dimension(J.domain) // J.domain[-1])
    if len(J.codomain) < 2:
        J = vector_output(J)
    with torch.no_grad():
        Y = as_tokens(f(X), J.batch)
        J, metrics = in_metrics(f, J, as_metrics(first.metric), X)
        estimate = _bracket(J, metrics, first.solver, generator)
        gains = _typical_gain(J, metrics, estimate, directions, generator)
        # ‖Jᵀf(X)‖^½ is what iterating on the value instead of the tangent converges to
        released = norms(J.vjp(Y.to(J.dtype)), J.batch).sqrt() if first.released else None
        sizes = norm_of_parts(metrics.input.size(X)), norm_of_parts(metrics.output.size(Y))
    relative, proven = estimate.lower.double() * sizes[0] / sizes[1], _certificates(f, X, first)
    return [
        answer_at(
            estimate[place],
            # heads share the tokens of their window
            X[place[0]].reshape(X.shape[-2:]),
            relative=finite(float(relative[place])),
            typical=float(gains[0][place]),
            typical_low=finite(float(gains[1][place])),
            typical_high=finite(float(gains[2][place])),
            probes=directions,
            dimensions=dimension(J.domain),
            local_upper=None if proven is None else proven[place[0]],
            released_quantity=None if released is None else float(released[place]),
        )
        for place in places
    ]


def _bracket(J: "LinearOperator", metrics: "Metrics", solver: Solver, generator: Any) -> "NormEstimate":
    """Bracket the norm of a derivative between metrics."""
    from howsmooth.spectral.metric_norms import bracket_in
    from howsmooth.spectral.solvers import spectral_norm

    def measure(op: "LinearOperator") -> "NormEstimate":
        return norm_of(spectral_norm, op, solver=solver, seed=generator)

    return bracket_in(J, metrics, measure, solver.rtol, solver.confidence, generator)


def _certificates(f: "Measurable", X: "Tensor", ask: TextAsk) -> Sequence[float] | None:
    """Prove a bound at every input, if the ask is for one and the theory has one for this map."""
    from howsmooth.maps.attention import Attention
    from howsmooth.theory.at_input.local import local_upper, local_uppers

    if not (ask.certificate and isinstance(f, Attention) and X.ndim == 3):
        return None
    if ask.metric == "total":
        # without the certificate by rows, which would take longer than everything else
        return local_uppers(f, X, rows=False)
    return [local_upper(f, x, metric=ask.metric).value for x in X]


def _typical_gain(
    J: "LinearOperator", metrics: "Metrics", estimate: "NormEstimate", samples: int, generator: Any
) -> "tuple[Tensor, Tensor, Tensor]":
    """Return the root mean square gain of random perturbations and its interval, which only Euclidean metrics have."""
    import torch

    from howsmooth.metrics import Euclidean
    from howsmooth.spectral.metric_norms import isometric
    from howsmooth.spectral.typical import typical_gain_of

    given, wanted = metrics.input, metrics.output
    if isinstance(given, Euclidean) and isinstance(wanted, Euclidean):
        found = replace(estimate, direction=given.standard(estimate.direction))
        gain = typical_gain_of(isometric(J, given, wanted), samples=samples, seed=generator, estimate=found)
        return gain.value, gain.low, gain.high
    like = torch.empty((*J.batch, *J.domain), dtype=J.dtype, device=J.device)
    sizes = torch.stack([wanted.size(J.jvp(given.draw(like, generator))) for _sample in range(samples)])
    unknown = torch.full(J.batch, torch.nan)
    return sizes.square().mean(0).sqrt(), unknown, unknown


def probes(n: int) -> int:
    """Return how many random directions are taken at inputs of ``n`` tokens."""
    return max(PROBES, min(MOST_PROBES, PROBED_TOKENS // n))


def norm_of(measure: Callable[..., "NormEstimate"], *subject: Any, solver: Solver, seed: Any) -> "NormEstimate":
    """Call something that measures a norm as a solver is set."""
    return measure(
        *subject,
        rtol=solver.rtol,
        confidence=solver.confidence,
        certify=solver.certify,
        max_steps=solver.max_steps,
        seed=seed,
    )


def answer_at(estimate: "NormEstimate", X: "Tensor", **others: Any) -> TextAnswer:
    """Write down the constant at one input."""
    from howsmooth.spectral.operators import of_all_tokens

    norms = of_all_tokens(X.double().norm(dim=-1))
    (steps,), (status,) = estimate.step_counts, estimate.statuses
    return TextAnswer(
        lower=float(estimate.lower),
        upper=float(estimate.upper),
        steps=steps,
        status=status.name.lower(),
        products=estimate.products,
        mean_radius=float(norms.square().mean().sqrt()),
        reach=float(norms.max()),
        sensitivity=tuple(estimate.token_sensitivity.tolist()),
        response=tuple(estimate.token_response.tolist()),
        leading=sum(estimate.leading),
        **others,
    )


# How far the attack moves that splits a token.
SPLITTING_EPS = 1e-3


class SplittingAsk(AtText, frozen=True, kw_only=True, tag="splitting"):
    """Whether the tokens of a text split: cutting one in two moves the output more than moving whole tokens does."""

    solver: Solver = Solver()  # the seed of the attack

    @property
    def cell(self) -> tuple[int, str]:
        """One map of one layer: every window is looked at by itself."""
        return self.layer, self.map


class SplittingAnswer(Answer, frozen=True, kw_only=True):
    """What splitting gains over moving at one window."""

    move: Annotated[float, ROUND_DOWN]  # the constant when whole tokens move
    split: Annotated[float, ROUND_DOWN]  # the largest constant when one token is cut in two
    splits: bool  # whether splitting gains
    decided: bool  # whether it is decided: the error bars do not overlap
    atom: int  # the token to cut
    move_ratio: Annotated[float, ROUND_DOWN]  # the true ratio of distances that moving attains
    split_ratio: Annotated[float, ROUND_DOWN]  # the true ratio of distances that splitting attains
    mean_radius: float  # the root mean square norm of the tokens
    reach: float  # the largest norm of a token

    @property
    def value(self) -> float:
        """The constant of the measure, split or not."""
        return max(self.move, self.split)


def run_splitting(batch: Sequence[SplittingAsk], cell: Sequence[SplittingAsk], resources: "Resources") -> list[Answer]:
    """Look at the windows of a cell in float64: ratios of small distances need the digits."""
    import torch

    from howsmooth.maps.attention import Attention

    f, X = resources.entering(batch, cell)
    if not isinstance(f, Attention):
        raise AssumptionError(f"splitting is about attention alone, got the map {cell[0].map!r}.", field="map")
    wide = f.to(torch.float64)
    return [_look(ask, wide, x.double()) for ask, x in zip(cell, X, strict=True)]


def _look(ask: SplittingAsk, f: "Attention", x: "Tensor") -> SplittingAnswer:
    from howsmooth.search.mass_splitting import split_attack
    from howsmooth.studies.resources import seeded
    from howsmooth.transport.measures import DiscreteMeasure

    measure = DiscreteMeasure.from_sequence(x, causal=f.positions.causal)
    attack = split_attack(f, measure, eps=SPLITTING_EPS, seed=seeded([ask]))
    found, norms = attack.splitting, x.norm(dim=-1)
    return SplittingAnswer(
        **{name: getattr(found, name) for name in ("move", "split", "splits", "decided", "atom")},
        move_ratio=attack.move_ratio,
        split_ratio=attack.split_ratio,
        mean_radius=float(norms.square().mean().sqrt()),
        reach=float(norms.max()),
    )


KINDS = (
    Kind(ask=TextAsk, answer=TextAnswer, run=run),
    Kind(ask=WholeAsk, answer=TextAnswer, run=run),
    Kind(ask=SplittingAsk, answer=SplittingAnswer, run=run_splitting),
)
