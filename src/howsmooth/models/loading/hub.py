"""Whether a model on a hub can be downloaded, decided within seconds; without torch."""

import os
import threading
from pathlib import Path

from howsmooth.errors import UnsupportedModelError
from howsmooth.models.loading.names import BUILT_IN, RANDOM, check_model_name, may_be_hub_id, not_found

TIMEOUT = 2.0  # seconds; HF_HUB_ETAG_TIMEOUT in the environment overrides it


def check_model(name: str) -> None:
    """Check that a model can be loaded, before anything slow is imported: by its name, then by a request."""
    check_model_name(name)
    if not name.startswith(RANDOM) and name not in BUILT_IN and not os.path.exists(name):
        check_reachable(name)


def check_tokenizer(name: str) -> None:
    """Check that a tokenizer can be loaded: that its name is a folder, a file or a hub id."""
    if name in BUILT_IN or os.path.exists(name):
        return
    try:
        if not may_be_hub_id(name):
            raise UnsupportedModelError(name)
        check_reachable(name)
    except UnsupportedModelError as error:
        raise UnsupportedModelError(
            f"no tokenizer {name!r}: neither a built-in model, nor a folder here, nor a hub id within reach.",
            field="tokenizer",
        ) from error


def check_reachable(name: str) -> Path | None:
    """Check that the hub answers, or that the local cache holds the model.

    Returns ``None`` if the hub answers, and otherwise the folder of the local cache that holds the model.

    The hub's own client retries for half a minute for each file. So one request with a short timeout comes first; if it
    fails, a model in the local cache is read from there.
    """
    from huggingface_hub import constants, try_to_load_from_cache

    if not constants.HF_HUB_OFFLINE and _answers(f"{constants.ENDPOINT}/{name}/resolve/main/config.json"):
        return None
    if isinstance(cached := try_to_load_from_cache(name, "config.json"), str):
        return Path(cached).parent
    silent = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else f"{constants.ENDPOINT} does not answer"
    raise UnsupportedModelError(not_found(name, f"nor a hub id within reach ({silent})"), field="model")


def _answers(url: str) -> bool:
    """Send one request, and return whether a server answered in time, with whatever status."""
    answers: list[int] = []
    # In a thread: the timeout of a request does not cover the look-up of the host's name, which can take half a minute.
    asking = threading.Thread(target=_ask, args=(url, answers), daemon=True)
    asking.start()
    asking.join(_timeout())
    return any(status < 500 for status in answers)


def _ask(url: str, answers: list[int]) -> None:
    from huggingface_hub import get_session

    try:
        answers.append(get_session().head(url, timeout=_timeout()).status_code)
    except Exception:  # no host name, route or certificate, a proxy: each client has errors of its own
        return


def _timeout() -> float:
    from huggingface_hub import constants

    return constants.HF_HUB_ETAG_TIMEOUT if "HF_HUB_ETAG_TIMEOUT" in os.environ else TIMEOUT
