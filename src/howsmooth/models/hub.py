"""Whether a model of a hub is within reach, told within seconds; without torch."""

import os
import threading
from pathlib import Path

from howsmooth.errors import UnsupportedModelError
from howsmooth.models.builtin import BUILT_IN
from howsmooth.models.names import RANDOM, check_model_name, may_be_hub_id, not_found

PATIENCE = 2.0  # seconds; HF_HUB_ETAG_TIMEOUT in the environment says otherwise


def check_model(name: str) -> None:
    """Refuse a model that cannot be had from here, before anything slow is imported: by its name, then by asking.

    Raises:
        UnsupportedModelError: If nothing can be loaded under this name.
    """
    check_model_name(name)
    if not name.startswith(RANDOM) and name not in BUILT_IN and not os.path.exists(name):
        check_reachable(name)


def check_tokenizer(name: str) -> None:
    """Refuse a tokenizer that cannot be had from here: its name leads to no folder, no file and no hub id.

    Raises:
        UnsupportedModelError: If nothing can be loaded under this name.
    """
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
    """Refuse a hub id that neither the hub nor the local cache can give.

    Returns ``None`` if the hub answers, and otherwise the folder of the local cache that holds the model.

    The hub's own client tries again and again, half a minute for each file. So it is asked once, with little patience,
    before anything else: a model in the local cache is then read from there.

    Raises:
        UnsupportedModelError: If there is no copy here and the hub does not answer.
    """
    from huggingface_hub import constants, try_to_load_from_cache

    if not constants.HF_HUB_OFFLINE and _answers(f"{constants.ENDPOINT}/{name}/resolve/main/config.json"):
        return None
    if isinstance(cached := try_to_load_from_cache(name, "config.json"), str):
        return Path(cached).parent
    silent = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else f"{constants.ENDPOINT} does not answer"
    raise UnsupportedModelError(not_found(name, f"nor a hub id within reach ({silent})"), field="model")


def _answers(url: str) -> bool:
    """Ask once, and tell whether a server answered in time, whatever it said about the model."""
    answers: list[int] = []
    # A thread of its own: no timeout of a request covers the look-up of the host's name, which can take half a minute.
    asking = threading.Thread(target=_ask, args=(url, answers), daemon=True)
    asking.start()
    asking.join(_patience())
    return any(status < 500 for status in answers)


def _ask(url: str, answers: list[int]) -> None:
    from huggingface_hub import get_session

    try:
        answers.append(get_session().head(url, timeout=_patience()).status_code)
    except Exception:  # no name, no route, no certificate, a proxy: each client has errors of its own
        return


def _patience() -> float:
    from huggingface_hub import constants

    return constants.HF_HUB_ETAG_TIMEOUT if "HF_HUB_ETAG_TIMEOUT" in os.environ else PATIENCE
