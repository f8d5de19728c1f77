"""All bounds over a ball, called alike."""

import howsmooth as hs
from howsmooth.errors import AssumptionError

WITH_N = ["discrete_upper", "sharp_upper"]


WITHOUT_N = ["mean_field_upper", "sharp_mean_field_upper", "masked_mean_field_upper"]


LOWERS_WITH_N = ["discrete_lower", "sharp_lower", "kim_lower"]


LOWERS_WITHOUT_N = ["mean_field_lower", "sharp_mean_field_lower"]


def bound(name, f, *, n, radius, **options):
    size = {"n": n} if name in WITH_N + LOWERS_WITH_N else {}
    return getattr(hs.bounds, name)(f, radius=radius, **size, **options)


def accepted(names, f, *, n, radius):
    """The bounds among `names` that do not refuse the map."""
    found = {}
    for name in names:
        try:
            found[name] = bound(name, f, n=n, radius=radius)
        except AssumptionError:
            continue
    return found


def every_bound(f, *, n, radius):
    names = WITH_N + WITHOUT_N + LOWERS_WITH_N + LOWERS_WITHOUT_N
    return {name: b.value for name, b in accepted(names, f, n=n, radius=radius).items()}
