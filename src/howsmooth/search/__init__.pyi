"""Searches for worst inputs and measures, and what they find."""

from howsmooth.search.ascent import Nearby as Nearby
from howsmooth.search.ascent import maximise as maximise
from howsmooth.search.ascent import worst_nearby as worst_nearby
from howsmooth.search.brackets import bracket as bracket
from howsmooth.search.claims import Audit as Audit
from howsmooth.search.claims import SecantPair as SecantPair
from howsmooth.search.claims import audit as audit
from howsmooth.search.length_regimes import Regime as Regime
from howsmooth.search.length_regimes import Regimes as Regimes
from howsmooth.search.length_regimes import regimes as regimes
from howsmooth.search.mass_splitting import SplitAttack as SplitAttack
from howsmooth.search.mass_splitting import Splitting as Splitting
from howsmooth.search.mass_splitting import SplittingMap as SplittingMap
from howsmooth.search.mass_splitting import split_attack as split_attack
from howsmooth.search.mass_splitting import splitting as splitting
from howsmooth.search.mass_splitting import splitting_map as splitting_map
from howsmooth.search.mean_field_context import Secant as Secant

__all__: list[str]
