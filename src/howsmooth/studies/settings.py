"""How and where things are measured: each setting is one frozen value, from the command line to the key of a record."""

import functools
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar

from msgspec.structs import replace

from howsmooth.errors import AssumptionError, DtypeError
from howsmooth.models.inputs.sources import read_source
from howsmooth.models.loading.names import check_family_name, check_model, check_tokenizer
from howsmooth.spectral.solver_settings import check_solver
from howsmooth.studies.json_values import NOT_IN_KEY, JsonValue, default_of, described, fingerprint, settings_of

ALICE = "alice"
LENGTHS = (8, 16, 32, 64, 128, 256)
LENGTH = 128  # of budgets, which have one length
DTYPES = ("float32", "float64", "float16", "bfloat16")
# Numbers of which a norm to three digits can be had; weights of half precision are measured in float32.
MEASURED = ("float32", "float64")
# Where inputs come from, by the field of Windows that says so; a text unless another is given.
SOURCES = ("text", "token_ids", "sentence", "sentences", "images")


class Solver(JsonValue, frozen=True, kw_only=True):
    """How well a norm is to be known.

    Attributes:
        rtol: The bracket to reach: upper / lower ≤ 1 + rtol.
        confidence: The probability, over the random start, with which the upper end holds.
        certify: Whether to go on until the bracket closes.
        max_steps: When to give up.
        seed: The seed of everything random.
    """

    rtol: Annotated[float, described("The bracket to reach: upper / lower ≤ 1 + rtol.")] = 1e-3
    confidence: Annotated[float, described("The probability of upper ends; 0.999999999 costs a few steps more.")] = (
        0.999
    )
    certify: Annotated[bool, described("Go on until the bracket closes.", option="bracket")] = True
    max_steps: Annotated[int, described("When the solver gives up.")] = 200
    seed: Annotated[int, described("The seed of everything random.")] = 0

    def __post_init__(self) -> None:
        """Refuse what no solver can reach."""
        check_solver(rtol=self.rtol, confidence=self.confidence, max_steps=self.max_steps)
        if not 0 <= self.seed < 2**63:
            raise AssumptionError(f"seed must be between 0 and 2^63 - 1, got {self.seed}.", field="seed")


class Compute(JsonValue, frozen=True, kw_only=True):
    """Where to compute, and with which numbers.

    Attributes:
        device: As torch names it; nothing for the CPU.
        dtype: The numbers to compute with; nothing for those of the model.
        threads: How many threads a product uses; nothing for torch's own choice. Sums in another order differ in the
            last bit, which is no reason to measure again.
        streamed: Whether weights come into memory one block at a time; nothing decides by the memory that is free.
    """

    device: Annotated[str, described("Where to compute, as torch names it.")] = ""
    dtype: Annotated[str, described("The numbers to compute with; those of the model by default.")] = ""
    threads: Annotated[int | None, described("How many threads a product uses."), NOT_IN_KEY] = None
    streamed: Annotated[
        bool | None,
        described("Read weights one block at a time; where they take a third of the free memory by default."),
        NOT_IN_KEY,
    ] = None

    def __post_init__(self) -> None:
        """Refuse numbers that there are not."""
        if self.dtype and self.dtype not in DTYPES:
            raise DtypeError(f"dtype must be one of {', '.join(DTYPES)}, got {self.dtype!r}.", field="dtype")
        if self.threads is not None and self.threads < 1:
            raise AssumptionError(f"threads must be at least 1, got {self.threads}.", field="threads")

    def check(self) -> None:
        """Refuse numbers that nothing is measured with; an old record may have them.

        Raises:
            DtypeError: If the numbers are of half precision.
        """
        if self.dtype and self.dtype not in MEASURED:
            raise DtypeError(
                f"dtype must be one of {', '.join(MEASURED)}, got {self.dtype!r}: half precision knows a norm to two "
                "digits. Weights of half precision are exact in float32, which they are measured in.",
                field="dtype",
            )


class ModelReading(JsonValue, frozen=True, kw_only=True):
    """How a model is read, where its folder does not say."""

    family: Annotated[
        str, described("The family of a model whose config.json has no model_type.", metavar="bert", plural="families")
    ] = ""
    tokenizer: Annotated[
        str, described("A folder or hub id with the tokenizer; the model's own by default.", metavar="DIR")
    ] = ""

    def check(self) -> None:
        """Refuse a family that is not known, and a tokenizer that there is not."""
        if self.family:
            check_family_name(self.family)
        if self.tokenizer:
            check_tokenizer(self.tokenizer)


class Windows(JsonValue, frozen=True, kw_only=True):
    """At which inputs: windows of a text, consecutive, from its beginning, some of each length; or sequences, whole.

    Attributes:
        text: A file, or ``alice``.
        token_ids: Numbers of tokens in place of a text: one long row, cut as a text is, or rows, each measured whole.
        sentence: A sentence in place of a text, measured whole.
        sentences: A file of sentences, each measured whole.
        images: A folder of pictures, each measured whole, for models of pictures.
        lengths: How many tokens a window has.
        sequences: How many windows of each length.
        special_tokens: Whether windows begin and end as the model's own inputs do.
        stride: How many tokens lie between the beginnings of windows; 0 for as many as they hold.
    """

    text: Annotated[str, described("A text in UTF-8; Alice in Wonderland by default.", metavar="FILE")] = ALICE
    token_ids: Annotated[
        str,
        described(
            "Numbers of tokens in place of a text: .npy (one row is cut into windows, more are measured whole) or "
            ".jsonl (a list on each line, measured whole).",
            metavar="FILE",
        ),
    ] = ""
    sentence: Annotated[str, described("A sentence in place of a text, measured whole.", metavar="SENTENCE")] = ""
    sentences: Annotated[
        str,
        described(
            'A file of sentences, each measured whole: one a line; or .jsonl, a string or {"text": …} a line.',
            metavar="FILE",
        ),
    ] = ""
    images: Annotated[
        str, described("A folder of pictures, each measured whole, for models of pictures.", metavar="DIR")
    ] = ""
    lengths: Annotated[tuple[int, ...], described("How many tokens a window has.", metavar="8,16,…")] = LENGTHS
    sequences: Annotated[int, described("How many windows of each length.")] = 10
    special_tokens: Annotated[bool, described("Begin and end windows as the model's own inputs do.")] = False
    stride: Annotated[int, described("Tokens between the beginnings of windows; as many as they hold by default.")] = 0

    def __post_init__(self) -> None:
        """Refuse windows that hold nothing, and inputs of two kinds at once."""
        if not self.lengths or min(self.lengths) < 1:
            raise AssumptionError(
                f"lengths must be whole numbers, at least 1, got {list(self.lengths)}.", field="lengths"
            )
        if self.sequences < 1:
            raise AssumptionError(f"sequences must be at least 1, got {self.sequences}.", field="sequences")
        if self.stride < 0:
            raise AssumptionError(f"stride must be at least 0, got {self.stride}.", field="stride")
        given = [name for name in SOURCES if getattr(self, name) not in ("", ALICE)]
        if len(given) > 1:
            raise AssumptionError(
                f"inputs come from one place, got {' and '.join(given)}; leave out all but one.", field=given[1]
            )
        if self.special_tokens and given and given[0] in ("token_ids", "images"):
            raise AssumptionError(
                f"special_tokens frame words; {given[0]} are taken as they are. Leave it out.", field="special_tokens"
            )

    @property
    def source(self) -> str:
        """What the inputs are: the name of the field that says where they lie."""
        return next((name for name in SOURCES[1:] if getattr(self, name)), SOURCES[0])

    @property
    def place(self) -> str:
        """Where they lie."""
        return getattr(self, self.source)

    def each(self, digest: str) -> "Iterator[Window]":
        """Yield every window of a text, the shortest first."""
        for length in sorted(set(self.lengths)):
            for index in range(self.sequences):
                yield self._one(digest, length, index)

    def whole(self, digest: str, lengths: Sequence[int]) -> "Iterator[Window]":
        """Yield one window for each sequence that is measured whole, as they come.

        Raises:
            AssumptionError: If windows were asked for too.
        """
        for name in ("lengths", "sequences", "stride"):
            if getattr(self, name) != default_of(Windows, name):
                raise AssumptionError(
                    f"{name} says how a text is cut, but {self.place!r} holds sequences that are measured whole, each "
                    "once; leave it out.",
                    field=name,
                )
        yield from (self._one(digest, length, index, whole=True) for index, length in enumerate(lengths))

    def _one(self, digest: str, length: int, index: int, *, whole: bool = False) -> "Window":
        return Window(
            whole=whole,
            source=self.source,
            text=self.place,
            digest=digest,
            length=length,
            index=index,
            special_tokens=self.special_tokens,
            stride=self.stride,
        )


class Window(JsonValue, frozen=True, kw_only=True):
    """One input: a window of a text, or a sequence that is measured whole."""

    # what kind of file it came from: ``text``, ``token_ids``, ``sentence``, ``sentences`` or ``images``
    source: str = SOURCES[0]
    text: Annotated[str, NOT_IN_KEY] = ALICE  # where the file is
    digest: str  # the hash of what it holds, which tells texts apart
    length: int  # how many tokens the window has
    index: int = 0  # which of the consecutive windows, or which sequence of the file
    special_tokens: bool = False  # whether it begins and ends as the model's own inputs do
    stride: int = 0  # how many tokens lie between the beginnings of windows; 0 for as many as they hold
    whole: bool = False  # whether it is a sequence of the file, not a window


def options_of(*settings: JsonValue) -> list[str]:
    """Return the words of the command line that say these settings, as far as they differ from the defaults.

    Example:
        >>> options_of(Solver(rtol=0.01, certify=False), Windows(lengths=(8, 16)))
        ['--rtol', '0.01', '--no-bracket', '--lengths', '8,16']
    """
    words: list[str] = []
    for group in settings:
        for setting in settings_of(type(group)).values():
            value, flag = functools.reduce(getattr, setting.path, group), setting.option
            if value == setting.default:
                continue
            if isinstance(value, bool):
                words.append(f"--{flag}" if value else f"--no-{flag}")
            else:  # of a number every digit: typed again, it has the same key
                words += [f"--{flag}", ",".join(map(str, value)) if isinstance(value, tuple) else str(value)]
    return words


def command(*words: str) -> str:
    """Return a line for the shell."""
    return shlex.join(["howsmooth", *words])


class CommandSettings(JsonValue, frozen=True, kw_only=True):
    """What a command that fills a run can be asked for: it has an option for each field.

    A command at a text has ``windows`` too, and every command says where it computes (``where``).
    """

    # What the command is called.
    NAME: ClassVar[str]
    model: str = "minilm"  # what :func:`~howsmooth.load` takes

    def check(self) -> None:
        """Refuse names and numbers that lead nowhere, before anything is loaded."""
        own: Any = self
        check_model(self.model)
        own.where.check()
        own.reading.check()
        read_source(own.windows.source, own.windows.place)

    @property
    def folder_name(self) -> str:
        """What tells the folders of commands apart, beside the model."""
        return self.NAME

    @property
    def question(self) -> Any:
        """What tells one question of a command from another."""
        own: Any = self
        return [self, read_source(own.windows.source, own.windows.place).digest]

    @property
    def folder(self) -> Path:
        """Where records go unless told otherwise: the same question, the same folder; another one, another folder."""
        label = "".join(c if c.isalnum() or c in "-." else "-" for c in Path(self.model).name)
        return Path("runs") / f"{label}-{self.folder_name.replace(':', '-')}-{fingerprint(self.question)[:6]}"

    @property
    def command(self) -> str:
        """What to type to ask for the same."""
        return command(self.NAME, self.model, *options_of(replace(self, model=default_of(type(self), "model"))))
