"""The index of theorems: every bound under one name, ``hs.bounds.sharp_upper``, and nothing else."""

from howsmooth.theory.around_input.neighbourhood import displacement_upper, neighbourhood_upper
from howsmooth.theory.at_input.local import attention_map_upper, local_upper
from howsmooth.theory.ball.largest_token import token_upper
from howsmooth.theory.ball.logit_cap import largest_logit_cap, logit_cap
from howsmooth.theory.ball.softmax import discrete_lower, discrete_upper, kim_lower, sharp_lower, sharp_upper
from howsmooth.theory.large_radius import large_radius_limit
from howsmooth.theory.mean_field import (
    masked_mean_field_upper,
    mean_field_lower,
    mean_field_upper,
    sharp_mean_field_lower,
    sharp_mean_field_upper,
)
from howsmooth.theory.mechanisms.other_weights import ramapuram_upper
from howsmooth.theory.mechanisms.softmax_scores import kim_l2_upper, lipsformer_upper
from howsmooth.theory.tables import smallest_upper, table

__all__ = [
    "attention_map_upper",
    "discrete_lower",
    "discrete_upper",
    "displacement_upper",
    "kim_l2_upper",
    "kim_lower",
    "large_radius_limit",
    "largest_logit_cap",
    "lipsformer_upper",
    "local_upper",
    "logit_cap",
    "masked_mean_field_upper",
    "mean_field_lower",
    "mean_field_upper",
    "neighbourhood_upper",
    "ramapuram_upper",
    "sharp_lower",
    "sharp_mean_field_lower",
    "sharp_mean_field_upper",
    "sharp_upper",
    "smallest_upper",
    "table",
    "token_upper",
]


def __dir__() -> list[str]:
    return list(__all__)
