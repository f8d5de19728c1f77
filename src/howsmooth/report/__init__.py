"""Results as pictures: charts, and the files they are written to."""

from typing import Any

from howsmooth.studies.runs.result_table import DRAWERS


def _draw_measurement(found: Any, **options: Any) -> Any:
    from howsmooth.report.figures import draw

    return draw(found, **options)


def _draw_comparison(found: Any) -> Any:
    from howsmooth.report.result_page import differences_chart

    return differences_chart(found)


# drawing takes long imports, which wait until something is drawn
DRAWERS |= {"Measurement": _draw_measurement, "Comparison": _draw_comparison}
