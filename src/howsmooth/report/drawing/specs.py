"""What charts are made of."""

from typing import Any

import altair as alt

Rows = list[dict[str, Any]]
Chart = alt.LayerChart | alt.FacetChart
