"""What ``howsmooth certify`` can be asked for: declared once, for the command line and for the record."""

from pathlib import Path
from typing import Annotated

from msgspec import Meta
from msgspec.structs import replace

from howsmooth.certificates.settings import PLACES, check_place, norm_named
from howsmooth.errors import AssumptionError
from howsmooth.models.inputs.sources import read_sentences
from howsmooth.models.inputs.text import read_text
from howsmooth.models.loading.hub import check_model
from howsmooth.studies.settings import Reading, Solver, Where, command, options_of
from howsmooth.studies.values import ASIDE, Value, fingerprint

MODEL = "reviews"


class Certifying(Value, frozen=True, kw_only=True):
    """What is to be certified, as the command line says it.

    Attributes:
        model: What :func:`howsmooth.load` takes.
        text: A sentence.
        file: A file of sentences.
        word: Which words move; all of them, each by itself, by default.
        together: Whether all of them move at once, in one norm.
        p: How perturbations are measured.
        at: Where they are.
        layer: Which layer that is.
        label: The class that should win.
        seed: Where attacks start.
        threads: How many threads a product uses.
        reading: How the model is read, where its folder does not say.
    """

    model: str = MODEL
    text: Annotated[str, Meta(description="A sentence.", extra={"metavar": "SENTENCE"})] = ""
    file: Annotated[
        str,
        Meta(
            description='Sentences: one on each line; or .jsonl, a string or {"text": …, "label": …} a line.',
            extra={"metavar": "FILE"},
        ),
    ] = ""
    word: Annotated[
        str,
        Meta(
            description="Which words move: as written, or the numbers of tokens, from 0 on; all by default.",
            extra={"metavar": "3,film"},
        ),
    ] = ""
    together: Annotated[bool, Meta(description="Move all of these words at once, in one norm.")] = False
    p: Annotated[str, Meta(description="How perturbations are measured: 1, 2 or inf.", extra={"metavar": "P"})] = "2"
    at: Annotated[
        str,
        Meta(
            description="Where words move: embeddings, before any norm; or attention, what enters a layer.",
            extra={"metavar": "PLACE"},
        ),
    ] = PLACES[0]
    layer: Annotated[int, Meta(description="With --at attention: which layer.")] = 0
    label: Annotated[
        str, Meta(description="The class that should win: a sentence of which another does is said, and not certified.")
    ] = ""
    seed: Annotated[int, Meta(description="The seed of everything random.")] = 0
    threads: Annotated[int | None, Meta(description="How many threads a product uses."), ASIDE] = None
    reading: Reading = Reading()

    def check(self) -> None:
        """Refuse names and numbers that lead nowhere, before anything is loaded.

        Raises:
            HowsmoothError: If there is no such model, place, norm or file, or nothing to certify.
        """
        if bool(self.text.strip()) == bool(self.file):
            raise AssumptionError('give either --text "a gripping film" or --file, a file of sentences.', field="text")
        norm_named(self.p)
        check_place(self.at, self.layer)
        Solver(seed=self.seed)
        self.where.check()
        if any(label is not None for _sentence, label in self._read) and self.label:  # and refuses a missing file
            raise AssumptionError(
                f"{self.file!r} has labels of its own, and --label {self.label} is given besides; leave out one.",
                field="label",
            )
        check_model(self.model)
        self.reading.check()

    @property
    def where(self) -> Where:
        """Certificates are computed on the CPU in float64."""
        return Where(threads=self.threads)

    @property
    def labelled(self) -> tuple[tuple[str, str | int | None], ...]:
        """The sentences, each once, with the class that each should be of, if that is given."""
        return tuple((sentence, self.label or None if own is None else own) for sentence, own in self._read)

    @property
    def _read(self) -> tuple[tuple[str, str | int | None], ...]:
        """The sentences as they are given, with labels where a file has some."""
        if not self.file:
            return ((self.text.strip(), None),)
        if self.file.endswith(".jsonl"):
            found = read_sentences(self.file)
            return tuple(dict.fromkeys(zip(map(str.strip, found.lines), found.labels, strict=True)))
        lines = (line.strip() for line in read_text(self.file).content.splitlines())
        return tuple(dict.fromkeys((line, None) for line in lines if line))

    @property
    def sentences(self) -> tuple[str, ...]:
        """The sentences, each once."""
        return tuple(dict.fromkeys(sentence for sentence, _label in self.labelled))

    @property
    def words(self) -> tuple[str, ...]:
        """The words that move, one by one."""
        return tuple(dict.fromkeys(word.strip() for word in self.word.split(",") if word.strip()))

    @property
    def command(self) -> str:
        """What to type to certify the same."""
        return command("certify", self.model, *options_of(replace(self, model=MODEL)))

    @property
    def folder(self) -> Path:
        """Where records go unless told otherwise: the same question, the same folder."""
        label = "".join(c if c.isalnum() or c in "-." else "-" for c in Path(self.model).name)
        return Path("runs") / f"{label}-certify-{fingerprint([self, self.sentences])[:6]}"
