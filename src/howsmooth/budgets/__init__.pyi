"""Error budgets: where a model tolerates an error."""

from howsmooth.budgets.effects import Effect as Effect
from howsmooth.budgets.error_budget import Budget as Budget
from howsmooth.budgets.error_budget import Verified as Verified
from howsmooth.budgets.error_budget import budget as budget
from howsmooth.budgets.recipes import Recipe as Recipe
from howsmooth.budgets.recipes import export as export
from howsmooth.budgets.schemes import Scheme as Scheme
from howsmooth.budgets.schemes import scheme as scheme

__all__: list[str]
