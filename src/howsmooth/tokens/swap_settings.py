"""Methods, budgets and maps of searches among tokens, checked without torch."""

from howsmooth.errors import AssumptionError, nearest

# Enumeration is for attention of the first layer; the others run the model.
ENUMERATION = "enumeration"
METHODS = (ENUMERATION, "random", "gradient", "gcg", "singular", "exhaustive")
# How many passes a search takes unless told otherwise.
BUDGET = 1000
# Maps that one row and one column of the scores decide; head:3 stands for any head.
ENUMERATED = ("attention", "normed", "heads", "head:3")


def is_enumerated(name: str, layer: int) -> bool:
    """Tell whether every swap can be compared: a swap changes one token of what the first attention reads, and no more.

    Behind the first layer it changes all of them.
    """
    return layer == 0 and (name in ENUMERATED or name.startswith("head:"))


def check_search(name: str, *, layer: int, edits: int, method: str | None, budget: int | None) -> str:
    """Refuse what cannot be asked for; return the method.

    Raises:
        AssumptionError: If a number is out of range, there is no such method, or it does not go with the map.
    """
    if isinstance(edits, bool) or not isinstance(edits, int) or edits < 1:
        raise AssumptionError(f"edits must be a whole number, at least 1, got {edits}.", field="edits")
    if budget is not None and (isinstance(budget, bool) or not isinstance(budget, int) or budget < 1):
        raise AssumptionError(f"budget must be a whole number of passes, at least 1, got {budget}.", field="budget")
    if method is None:
        return ENUMERATION if is_enumerated(name, layer) else "gcg"
    if method not in METHODS:
        raise AssumptionError(f"there is no method {method!r}{nearest(method, METHODS)}", field="method")
    if method == ENUMERATION and not is_enumerated(name, layer):
        raise AssumptionError(
            f"enumeration is for {', '.join(ENUMERATED)} of layer 0, where a swap changes one token; got {name!r} of "
            f"layer {layer}. Use method='gcg', which runs the model.",
            field="method",
        )
    return method
