"""Operators, solvers and estimates of their norms."""

from howsmooth.linear_operators import LinearOperator as LinearOperator
from howsmooth.spectral.autograd import JacobianOperator as JacobianOperator
from howsmooth.spectral.estimates import NormEstimate as NormEstimate
from howsmooth.spectral.estimates import ShownTokens as ShownTokens
from howsmooth.spectral.estimates import SingularValues as SingularValues
from howsmooth.spectral.estimates import Status as Status
from howsmooth.spectral.solvers import local_lipschitz as local_lipschitz
from howsmooth.spectral.solvers import singular_values as singular_values
from howsmooth.spectral.solvers import spectral_norm as spectral_norm
from howsmooth.spectral.typical import TypicalGain as TypicalGain
from howsmooth.spectral.typical import typical_gain as typical_gain
from howsmooth.spectral.typical import typical_gain_of as typical_gain_of

__all__: list[str]
