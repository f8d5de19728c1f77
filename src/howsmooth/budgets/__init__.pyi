"""Error budgets: where a model tolerates an error."""

from howsmooth.budgets.effects import Effect as Effect
from howsmooth.budgets.error_budget import Budget as Budget
from howsmooth.budgets.error_budget import budget as budget
from howsmooth.budgets.exports import export as export
from howsmooth.budgets.outcomes import Outcome as Outcome
from howsmooth.budgets.outcomes import Verified as Verified
from howsmooth.budgets.recipes import Recipe as Recipe
from howsmooth.budgets.schemes import Scheme as Scheme
from howsmooth.budgets.schemes import scheme as scheme
from howsmooth.budgets.worst_errors import WorstCost as WorstCost

__all__: list[str]
