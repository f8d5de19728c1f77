r"""How far a Gibbs distribution can be from its lowest point: the function :math:`\varphi^{-1}` of Kim et al."""

import math

from scipy.special import lambertw

# What a computed root may have lost.
LOST = 1e-12


def phi_inverse(N: float) -> float:
    r"""Return :math:`\varphi^{-1}(N)` for :math:`\varphi(x) = xe^{x+1}`, rounded up.

    It is :math:`\max_{E\ge0}\sum_jE_je^{-E_j}/(1+\sum_je^{-E_j})` over N energies: how much energy N points can hold
    against one at zero.

    Example:
        >>> round(phi_inverse(15.0), 4)
        1.3835
    """
    return float(lambertw(N / math.e).real) * (1 + LOST)


def column_energy(n: int, *, masked: bool) -> float:
    r"""Bound :math:`\sum_iP_{ij}E_{ij}`, one column of weights and energies of a Gaussian kernel.

    .. math:: \min\Bigl((n-1)\varphi^{-1}(1),\;\min_{0<\epsilon\le1}\frac{n^{(1+\epsilon)/2}}{e\epsilon}\Bigr),

    the second :math:`\sqrt2` times larger under a causal mask.
    """
    each = (n - 1) * phi_inverse(1.0)
    if n < 2:
        return each
    share = min(1.0, 2 / math.log(n))
    kernel = n ** ((1 + share) / 2) / (math.e * share) * (math.sqrt(2) if masked else 1.0)
    return min(each, kernel * (1 + LOST))
