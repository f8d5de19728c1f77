"""Counterexamples, checked: an input of a box whose output is unsafe, evaluated in ball arithmetic."""

from typing import Any

import numpy as np

from howsmooth.check.attention import AttentionAt
from howsmooth.check.balls import BallArray, ball, between
from howsmooth.check.graph import Graph, runtime
from howsmooth.check.outcomes import CannotCheck, Refuted, numbers
from howsmooth.check.remainders import ACTIVATIONS, NormRemainder


def check_counterexample(subject: "list[Any] | Graph", claim: dict[str, Any]) -> BallArray:
    r"""Check that the ``input`` lies between ``lower`` and ``upper``, and that its output y has :math:`Ay>b`.

    Balls have a radius, so that an output on the boundary is not proven to be unsafe, whether inequalities are strict
    or not.

    Returns:
        The output.

    Raises:
        Refuted: If it does not, or not provably.
        CannotCheck: If shapes do not fit, or a step or node is not known here, or onnxruntime puts out something else.
    """
    x, lower, upper, A, b = (numbers(claim, name) for name in ("input", "lower", "upper", "A", "b"))
    if not x.shape == lower.shape == upper.shape or A.ndim != 2 or b.shape != A.shape[:1]:
        raise CannotCheck("the input and its bounds have one shape, and A has as many rows as b")
    if not ((lower <= x) & (x <= upper)).all():
        raise Refuted(0, "the input lies outside of the box")
    y = subject.evaluate(x) if isinstance(subject, Graph) else forward(subject, ball(x)).reshape(-1)
    left = ((ball(A) @ y.reshape(-1, 1)).reshape(-1) - b).lower
    if not (left > 0).all():
        raise Refuted(1, f"the output is not proven to be unsafe: {float(left.min())} is left")
    if isinstance(subject, Graph) and (run := runtime(subject.path)) is not None:
        apart = np.abs(run(x.ravel()) - y.mid).max()
        if not apart <= 0.01 * np.abs(y.mid).max():
            raise CannotCheck(f"onnxruntime puts out something else than the nodes in real arithmetic, by {apart:.3g}")
    return y


def forward(steps: list[Any], x: BallArray) -> BallArray:
    """Return the output of a network; a step may add the input of the step so many before the next one."""
    values = [in_tokens(x, steps[0], x.shape)]
    for step in steps:
        y, back = _applied(step, values[-1]), int(step.settings.get("residual", 0))
        values.append(y + values[-back] if back else y)
    return values[-1]


def in_tokens(x: Any, first: Any, shape: tuple[int, ...]) -> Any:
    """Return inputs as the tokens that the first step takes; one without weights takes them in their own shape."""
    if first.kind == "affine":
        return x.reshape(*first.arrays["weight"].shape[2:])
    widths = [first.arrays[name].shape[-1] for name in ("query", "gain", "up", "weight") if name in first.arrays]
    return x.reshape(-1, *(widths or shape[-1:])[:1])


def _applied(step: Any, X: BallArray) -> BallArray:
    x, kind = step.arrays, step.kind
    if kind == "affine":
        m, out, n, d = x["weight"].shape
        return (ball(x["weight"].reshape(m * out, n * d)) @ X.reshape(n * d, 1)).reshape(m, out) + x["bias"]
    if kind == "attention":
        return AttentionAt.of(step, X).value()
    if kind == "norm":
        return NormRemainder(step, X).value
    if kind == "mlp":
        hidden = X @ x["up"].T + x.get("up_bias", 0.0)
        return activated(step.settings["activation"], hidden) @ x["down"].T + x.get("down_bias", 0.0)
    if kind == "dense":
        return X @ x["weight"].T + x.get("bias", 0.0)
    if kind == "pointwise":
        return activated(step.settings["activation"], X)
    if kind == "pooling" and x["weights"].ndim == 1:
        return ball(x["weights"][None]) @ X
    raise CannotCheck(f"steps of the kind {kind!r} are not known here")


def activated(name: str, x: BallArray) -> BallArray:
    """Apply an activation to every entry."""
    if name == "relu":
        return between(np.maximum(x.lower, 0), np.maximum(x.upper, 0))
    if name not in ACTIVATIONS:
        raise CannotCheck(f"the activation {name!r} is not known here")
    return x.map(ACTIVATIONS[name][0])
