"""Study files: the documented examples are read, and every mistake is one line that names the file and the line."""

import re
from pathlib import Path

import huggingface_hub
import pytest
from asked import ONE

from howsmooth.errors import FileError, HowsmoothError, StudyError
from howsmooth.studies.asks import Ask
from howsmooth.studies.json_values import settings_of
from howsmooth.studies.kinds import kind_named, kind_names
from howsmooth.studies.kinds.text import TextAsk
from howsmooth.studies.kinds.tokens_in_ball import ExtremalAsk, RegimesAsk
from howsmooth.studies.plans.study import OWN, parts, plural, read_study
from howsmooth.studies.resources import Resources
from howsmooth.studies.runs.run import read_run
from howsmooth.studies.runs.store import Store
from howsmooth.studies.settings import Windows

EXAMPLES = Path(__file__).parents[3] / "docs" / "examples"
SMALL = {"layers": "[0]", "lengths": "[8]", "sequences": "1"}


@pytest.fixture(scope="module")
def held():
    """Models and texts, loaded once for all studies here."""
    return Resources()


@pytest.fixture
def study(tmp_path):
    """Write a file with a comment, then one key on each line."""

    def write(**keys):
        path = tmp_path / "study.toml"
        path.write_text("# a study\n" + "".join(f"{key} = {value}\n" for key, value in keys.items()), encoding="utf-8")
        return path

    return write


@pytest.fixture
def at_text(study, folder_model, beginning):
    """Write a study of the small model and text."""

    def write(**keys):
        return study(**keys | {"models": f'["{folder_model}"]', "text": f'"{beginning}"'} | keys)

    return write


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "count", "values"),
    [
        ("encoder", 18, {"layer": {0, 5}, "length": {8, 16, 32}, "map": {"attention"}}),
        ("maps_and_seeds", 24, {"map": {"attention", "residual", "head:0"}, "length": {8, 16}}),
        ("bounds", 12, {"map": {"head:0", "head:1", "head:2"}, "radius": {6.0, 12.0}, "biases": {False}}),
    ],
)
def test_the_documented_examples_ask_what_they_say(name, count, values, held):
    asks = [ask for part in parts(read_study(EXAMPLES / f"{name}.toml"), held) for ask in part.asks]
    assert len({ask.key for ask in asks}) == len(asks) == count
    assert all({getattr(ask, field) for ask in asks} == found for field, found in values.items())


def test_every_key_of_a_study_at_a_text_is_documented():
    words = (EXAMPLES.parent / "studies.md").read_text(encoding="utf-8")
    every = settings_of(TextAsk).values()
    fields = [field for field in every if field.path[0] != "window" and field.name != "threads"]
    names = [*OWN, *settings_of(Windows)]
    assert [name for name in names if f"`{name}`" not in words] == []
    missing = [
        field.name
        for field in fields
        if not {f"`{name}`" for name in (field.name, plural(field), field.option)} & set(_codes(words))
    ]
    assert missing == []
    assert [name for name in kind_names() if f"`{name}`" not in words] == []


def _codes(words):
    return re.findall(r"`[^`]+`", words)


def test_lists_are_axes_and_single_values_are_points(at_text, held):
    path = at_text(layers="[0, 1]", lengths="[4, 6]", sequences="3", maps='["attention", "head:0"]', seeds="[0, 1]")
    made = parts(read_study(path), held)
    assert len(made) == 4  # one for each map and seed
    asks = [ask for part in made for ask in part.asks]
    assert len({ask.key for ask in asks}) == 2 * 2 * 3 * 2 * 2
    assert {ask.where.dtype for ask in asks} == {"float32"}
    one = parts(read_study(at_text(layer="1", lengths="[4]", sequences="1", map='"head:2"', rtol="0.01")), held)
    (ask,) = one[0].asks
    assert (ask.layer, ask.map, ask.solver.rtol) == (1, "head:2", 0.01)


def test_all_layers_are_the_default(at_text, held):
    (usual,) = parts(read_study(at_text(lengths="[4]", sequences="1")), held)
    (said,) = parts(read_study(at_text(lengths="[4]", sequences="1", layers='"all"')), held)
    assert usual.asks == said.asks
    assert [ask.layer for ask in usual.asks] == [0, 1]


def test_questions_without_a_text_take_matrices_in_place_of_a_model(study, held):
    path = study(kind='"regimes"', A="[[-1.0]]", V="[[1.0]]", lengths="[3, 10]", radii="[1.0, 1.5]")
    (part,) = parts(read_study(path), held)
    assert set(part.asks) == {RegimesAsk(length=n, radius=r, **ONE) for n in (3, 10) for r in (1.0, 1.5)}
    assert part.transformer is None


def test_questions_about_heads_name_a_model_and_layers(study, folder_model, held):
    path = study(
        kind='"extremal"', model=f'"{folder_model}"', layers="[0, 1]", points='"tied_pair"', length="5", radius="1"
    )
    (part,) = parts(read_study(path), held)
    assert [ask.layer for ask in part.asks] == [0, 1]
    assert {type(ask) for ask in part.asks} == {ExtremalAsk}


def test_a_byte_order_mark_and_other_line_endings_are_read(tmp_path):
    (tmp_path / "study.toml").write_bytes("\ufeffseeds = [1]\r\nsequences = 3\r\n".encode())
    found = read_study(tmp_path / "study.toml")
    assert (found.axes["seed"], found.windows.sequences) == ((1,), 3)


def test_a_study_is_kept_with_its_words_and_its_plan(at_text, held, tmp_path):
    study = read_study(at_text(layers="[0]", lengths="[4]", sequences="2", maps='["attention", "head:0"]'))
    made = parts(study, held, "howsmooth sweep study.toml")
    with Store(tmp_path / "run") as store:
        for part in made:
            part.begin(store)
    run = read_run(tmp_path / "run")
    assert (run.planned, len(run.plans), run.commands) == (4, 2, ("howsmooth sweep study.toml",))


MISTAKES = [
    # key, value, words; each stands in line 2
    ("layerz", "[0]", "did you mean layer"),
    ("squences", "3", "did you mean sequences"),
    ("zzz", "3", "known are name, kind"),
    ("radius", "3", "there is no key 'radius'"),
    ("digest", '"d"', "there is no key 'digest'"),
    ("index", "3", "there is no key 'index'"),
    ("name", "3", "'name' must be a text, got 3"),
    ("kind", "3", "'kind' must be a text, got 3"),
    ("kind", '"txt"', "there is no kind 'txt'; did you mean text?"),
    ("models", '"minilm"', "'models' must be a list, got 'minilm'"),
    ("models", "[1]", "'models' must be a text"),
    ("text", "3", "text must be a text"),
    ("layers", "0", "'layers' must be a list, got 0"),
    ("layers", "[0.5]", "'layers' must be a whole number"),
    ("layers", '"some"', "'layers' must be a list"),
    ("layers", "[true]", "'layers' must be a whole number"),
    ("layer", "[0]", "'layer' must be a whole number"),
    ("lengths", '["8"]', "must be a whole number"),
    ("lengths", "[[8]]", "must be a whole number"),
    ("lengths", "8", "lengths must be a list"),
    ("sequences", "1.5", "sequences must be a whole number"),
    ("sequences", "true", "sequences must be a whole number"),
    ("maps", '"attention"', "'maps' must be a list"),
    ("maps", "[0]", "'maps' must be a text"),
    ("seeds", "0", "'seeds' must be a list"),
    ("seeds", "[false]", "'seeds' must be a whole number"),
    ("seed", "-1", "seed must be between 0 and"),
    ("special_tokens", "1", "special_tokens must be true or false"),
    ("rtol", '"small"', "'rtol' must be a number"),
    ("rtol", "true", "'rtol' must be a number"),
    ("confidence", "[0.9]", "'confidence' must be a number"),
    ("certify", '"yes"', "'certify' must be true or false"),
    ("bracket", '"yes"', "'bracket' must be true or false"),
    ("released", "0", "'released' must be true or false"),
    ("certificate", "0", "'certificate' must be true or false"),
    ("models", "[]", "'models' is empty"),
    ("layers", "[]", "'layers' is empty"),
    ("lengths", "[]", "lengths must be"),
    ("maps", "[]", "'maps' is empty"),
    ("seeds", "[]", "'seeds' is empty"),
    ("rtol", "1979-05-27", "'rtol' must be a number"),
    ("max_steps", "0", "max_steps must be"),
    ("dtype", '"float8"', "dtype must be one of"),
    # what only the model and the text can tell
    ("models", '["minlm"]', "minilm"),
    ("models", '["no/such/folder"]', "no/such/folder"),
    ("layers", "[6]", "has the layers 0 to 1, got 6"),
    ("layers", "[-1]", "has the layers 0 to 1, got -1"),
    ("lengths", "[100_000]", "positions for 40 tokens"),
    ("lengths", "[0]", "lengths must be"),
    ("sequences", "0", "sequences must be at least 1"),
    ("sequences", "1_000_000", "fewer windows"),
    ("maps", '["everything"]', "map must be one of"),
    ("maps", '["head:x"]', "head:3"),
    ("maps", '["head:99"]', "head"),
    ("maps", '["normed"]', "normalises behind attention"),
    ("text", '"nowhere.txt"', "'nowhere.txt' is not there"),
    ("text", '"."', "is a folder"),
    ("rtol", "0", "rtol must be"),
    ("rtol", "nan", "rtol must be"),
    ("rtol", "1e-300", "rtol must be at least"),
    ("confidence", "1", "confidence must lie strictly between 0 and 1"),
    ("device", '"nope"', "the device 'nope'"),
]


@pytest.mark.parametrize(("key", "value", "words"), MISTAKES, ids=[f"{m[0]} = {m[1]}" for m in MISTAKES])
def test_a_mistake_is_one_line_that_names_file_and_line(key, value, words, at_text, held, monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    others = {name: small for name, small in SMALL.items() if name.rstrip("s") != key.rstrip("s")}
    path = at_text(**{key: value} | others)
    with pytest.raises(HowsmoothError) as refusal:
        parts(read_study(path), held)
    said = str(refusal.value)
    assert said.startswith(f"{path}, line 2: ")
    assert words in said
    assert len(said.splitlines()) == 1


HEADS = [
    ("radii", "[]", "'radii' is empty"),
    ("radii", "3", "'radii' must be a list, got 3"),
    ("raddi", "[1.0]", "did you mean radii"),
    ("A", "[[1.0], 2]", "must be a list, got [[1.0], 2]"),
    ("climb", "3", "there is no key 'climb'"),
    ("layers", '"all"', "'layers' must be a list, got 'all'"),
    ("sequences", "3", "there is no key 'sequences'"),
    ("rtol", "7", "rtol must be less than 1"),
]


@pytest.mark.parametrize(("key", "value", "words"), HEADS, ids=[f"{m[0]} = {m[1]}" for m in HEADS])
def test_a_mistake_in_a_study_of_heads_is_told_with_its_line_too(key, value, words, study, held):
    keys = {"kind": '"bounds"', "radius": "1.0", "length": "5", "A": "[[-1.0]]", "V": "[[1.0]]"}
    others = {name: entry for name, entry in keys.items() if name != key and name[:3] != key[:3]}
    path = study(**{key: value} | others)
    with pytest.raises(StudyError) as refusal:
        parts(read_study(path), held)
    assert words in str(refusal.value)
    assert str(refusal.value).startswith(f"{path}, line 2: ")


CONTENTS = {
    "a table": ("# mine\n\n[study]\nlayers = [0]\n", "line 3: there is no key 'study'"),
    "a table of a known name": ("[models]\na = 1\n", "line 1: 'models' must be a list"),
    "tables of tables": ("layers = [0]\n[[runs]]\na = 1\n", "line 2: there is no key 'runs'"),
    "a dotted key": ("layers = [0]\nsolver.rtol = 1e-3\n", "line 2: there is no key 'solver'"),
    "a quoted key": ('"layerz" = [0]\n', "line 1: there is no key 'layerz'; did you mean layer"),
    "a key after a list of many lines": (
        "lengths = [\n  8,\n  16,\n]\nsedes = [0]\n",
        "line 5: there is no key 'sedes'",
    ),
    "no value": ("layers = [0]\nlengths =\n", "line 2"),
    "no TOML": ("layers: [0]\n", "line 1"),
    "an open list": ("layers = [0\nlengths = [8]\n", "line 2"),
    "a key twice": ("layers = [0]\nlayers = [1]\n", "line 2"),
    "nested for ever": ("layers = " + "[" * 100_000, "it cannot be read"),
    "an integer of thousands of digits": ("layers = [1" + "0" * 9999 + "]", "it cannot be read"),
}


@pytest.mark.parametrize(("content", "words"), CONTENTS.values(), ids=CONTENTS)
def test_a_file_of_the_wrong_form_is_refused_with_its_line(content, words, tmp_path):
    (tmp_path / "study.toml").write_text(content, encoding="utf-8")
    with pytest.raises(StudyError) as refusal:
        read_study(tmp_path / "study.toml")
    assert "study.toml" in str(refusal.value)
    assert words in str(refusal.value)
    assert len(str(refusal.value).splitlines()) == 1
    assert len(str(refusal.value)) < 400


def test_a_file_that_is_not_there_or_not_text_is_refused(tmp_path):
    (tmp_path / "bytes.toml").write_bytes(b"layers = [0]\nname = '\xff\xfe'\n")
    (tmp_path / "folder.toml").mkdir()
    (tmp_path / "large.toml").write_bytes(b"#" * 2_000_000)
    for name, words in (
        (tmp_path / "missing.toml", "is not there"),
        (tmp_path / "folder.toml", "must be a file"),
        (tmp_path / "bytes.toml", "line 2: this is not UTF-8"),
        (tmp_path / "large.toml", "at most 1,000,000 bytes"),
        (Path("/dev/zero"), "must be a file"),
    ):
        with pytest.raises((FileError, StudyError), match=words) as refusal:
            read_study(name)
        assert str(name) in str(refusal.value)
        assert len(str(refusal.value).splitlines()) == 1


@pytest.mark.parametrize("name", kind_names())
def test_every_kind_can_be_asked_by_a_study(name):
    kind = kind_named(name)
    assert issubclass(kind.ask, Ask)
    plurals = [plural(setting) for setting in settings_of(kind.ask).values()]
    assert len(set(plurals)) == len(plurals)
    assert not set(plurals) & settings_of(kind.ask).keys()


def test_a_layer_that_a_model_does_not_have_is_told_for_heads_too(study, folder_model, held):
    path = study(kind='"bounds"', layers="[0, 7]", model=f'"{folder_model}"', length="5", radius="1.0")
    with pytest.raises(StudyError, match=r"line 3: .*has the layers 0 to 1, got 7"):
        parts(read_study(path), held)
    path = study(kind='"bounds"', maps='["residual"]', model=f'"{folder_model}"', length="5", radius="1.0")
    with pytest.raises(StudyError, match=r"line 3: .*about attention alone"):
        parts(read_study(path), held)


def test_a_study_calls_a_field_as_the_command_line_does(study):
    solvers = [read_study(study(**SMALL, **{key: "false"})).axes["certify"] for key in ("bracket", "certify")]
    assert solvers == [(False,), (False,)]
