"""Token ids, sentences and pictures in place of a text: measured as the same tokens alone, or refused at once."""

import json

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

import howsmooth as hs
from howsmooth.models.inputs.model_inputs import inputs
from howsmooth.models.inputs.sources import read_pictures
from howsmooth.models.inputs.text import Text, read_text
from howsmooth.studies.plans.study import parts, read_study
from howsmooth.studies.resources import Resources
from howsmooth.studies.runs.run import read_run

SENTENCES = ("Alice was here.", "The cat sat on the mat, and looked at the dog.", "Down, down, down.")
VISION = {"hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 16}
VISION |= {"image_size": 16, "patch_size": 8}


@pytest.fixture(scope="module")
def files(tmp_path_factory, tokenizer):
    """Files with the same tokens in many forms."""
    folder = tmp_path_factory.mktemp("inputs")
    (folder / "said.jsonl").write_text("\n".join(map(json.dumps, SENTENCES)), encoding="utf-8")
    rows = [tokenizer.encode(sentence, add_special_tokens=False) for sentence in SENTENCES]
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    pictures = folder / "pictures"
    pictures.mkdir()
    rng = np.random.default_rng(0)
    for i in range(3):
        Image.fromarray(rng.integers(0, 255, (20, 30, 3), dtype=np.uint8)).save(pictures / f"{i}.png")
    return folder


@pytest.fixture(scope="module")
def bare(module, tmp_path_factory):
    """A folder with weights and no tokenizer, and another whose config.json has no model_type."""
    folder = tmp_path_factory.mktemp("bare")
    module().save_pretrained(folder / "weights")
    module().save_pretrained(folder / "untyped")
    config = json.loads((folder / "untyped" / "config.json").read_text())
    del config["model_type"]
    (folder / "untyped" / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="module")
def seeing(tmp_path_factory):
    folder = tmp_path_factory.mktemp("seeing")
    torch.manual_seed(0)
    transformers.ViTModel(transformers.ViTConfig(**VISION)).save_pretrained(folder / "vit")
    words = VISION | {"vocab_size": 50, "max_position_embeddings": 8}
    config = transformers.CLIPConfig(text_config=words, vision_config=VISION, projection_dim=8)
    transformers.CLIPModel(config).save_pretrained(folder / "clip")
    return folder


def answers(measured):
    return [record.answer for record in measured.records]


@pytest.mark.slow
@pytest.mark.parametrize("special", [False, True])
def test_every_sentence_has_the_constant_that_it_has_alone(special, tiny, files, tokenizer):
    found = hs.measure(tiny, sentences=files / "said.jsonl", layers=[1], special_tokens=special)
    assert [r.ask.window.index for r in found.at(layer=1)] == [0, 1, 2]  # as in the file
    for record in found.records:
        tokens = tokenizer.encode(SENTENCES[record.ask.window.index], add_special_tokens=special)
        assert record.ask.length == len(tokens)
        f, X = tiny.activations(torch.tensor([tokens])).at(1)
        jacobian = torch.autograd.functional.jacobian(f, X).reshape(-1, X.numel())
        assert record.answer.lower == pytest.approx(float(torch.linalg.matrix_norm(jacobian, 2)), rel=1e-3)


def test_sentences_are_summed_up_together_and_say_how_long_they_are(tiny, files):
    found = hs.measure(tiny, sentences=files / "said.jsonl", layers=[0])
    (layer,) = found.layers
    lowers = [answer.lower for answer in answers(found)]
    assert (layer.shortest, layer.length, layer.windows) == (4, 13, 3)
    assert layer.growth is None
    assert (layer.least, layer.constant) == (min(lowers), pytest.approx(float(np.exp(np.mean(np.log(lowers))))))
    assert found.title.endswith("'attention' at 3 sentences of n = 4 to 13 tokens")
    assert found.openings[4, 0] == ("alice", "was", "here", ".")
    assert found.tokens[:2] == ("the", "cat")  # the longest


@pytest.mark.slow
def test_rows_of_token_ids_are_what_their_sentences_are(tiny, files):
    said = hs.measure(tiny, sentences=files / "said.jsonl", layers=[0])
    rows = hs.measure(tiny, token_ids=files / "rows.jsonl", layers=[0])
    assert [a.lower for a in answers(rows)] == pytest.approx([a.lower for a in answers(said)], rel=2e-3)
    assert [a.mean_radius for a in answers(rows)] == [a.mean_radius for a in answers(said)]
    assert not {r.ask.key for r in rows.records} & {r.ask.key for r in said.records}


@pytest.mark.slow
def test_one_row_of_token_ids_is_cut_as_its_text_is(tiny, small, usual, tokenizer, tmp_path):
    ids = tokenizer.encode(read_text(small["text"]).content, add_special_tokens=False)
    np.save(tmp_path / "ids.npy", ids)
    cut = hs.measure(tiny, token_ids=tmp_path / "ids.npy", **{k: v for k, v in small.items() if k != "text"})
    assert [a.mean_radius for a in answers(cut)] == [a.mean_radius for a in answers(usual)]
    assert [a.lower for a in answers(cut)] == pytest.approx([a.lower for a in answers(usual)], rel=2e-3)


@pytest.mark.slow
def test_a_model_without_a_tokenizer_reads_token_ids_or_with_the_tokenizer_of_another(
    bare, small, folder_model, tmp_path
):
    weights, few = str(bare / "weights"), small | {"layers": [0], "lengths": [4]}
    with pytest.raises(hs.errors.UnsupportedModelError, match=r"tokenizer=, or .* token_ids=") as refusal:
        hs.measure(weights, **few)
    assert refusal.value.field == "tokenizer"
    whole = hs.measure(folder_model, **few)
    lent = hs.measure(weights, tokenizer=folder_model, **few)
    assert [a.mean_radius for a in answers(lent)] == [a.mean_radius for a in answers(whole)]
    assert {r.ask.reading.tokenizer for r in lent.records} == {folder_model}
    assert lent.commands[0].endswith(f"--tokenizer {folder_model}")
    np.save(tmp_path / "ids.npy", np.arange(100))
    assert hs.measure(weights, token_ids=tmp_path / "ids.npy", layers=[0], lengths=[4], sequences=2).openings[4, 1] == (
        "4",
        "5",
        "6",
        "7",
    )


def test_a_text_that_is_mostly_unknown_to_the_tokenizer_is_refused(tiny, tmp_path):
    odd = Text(name="odd.txt", content="\u0d9a\u0dd1\u0db8 " * 30 + "the cat")
    with pytest.raises(
        hs.errors.UnsupportedModelError, match=r"tokens of 'odd.txt' are unknown.*token_ids="
    ) as refusal:
        tiny.windows(odd, length=4, count=1)
    assert refusal.value.field == "tokenizer"
    (tmp_path / "odd.jsonl").write_text(json.dumps(odd.content), encoding="utf-8")
    with pytest.raises(hs.errors.UnsupportedModelError, match="unknown"):
        hs.measure(tiny, sentences=tmp_path / "odd.jsonl")
    known = Text(name="known.txt", content="\u0d9a\u0dd1\u0db8 the cat sat")
    assert tiny.windows(known, length=4, count=1).shape == (1, 4)


def test_a_tokenizer_that_makes_nothing_of_a_text_is_refused_as_such(tiny):
    with pytest.raises(hs.errors.UnsupportedModelError, match="is nothing to the tokenizer"):
        tiny.windows(Text(name="blank", content="\u200b\u200b"), length=4, count=1)


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ("[1, 30522]", r"knows the tokens 0 to 30,521, but .* has 30522"),
        ("[1, -1]", "has -1"),
        (json.dumps(list(range(41))), "has positions for 40 tokens, but sequence 1 of .* has 41"),
    ],
)
def test_numbers_that_the_model_does_not_know_are_refused_before_it_runs(rows, words, tiny, tmp_path):
    (tmp_path / "ids.jsonl").write_text(f"[3]\n{rows}\n", encoding="utf-8")
    with pytest.raises(hs.errors.AssumptionError, match=words) as refusal:
        hs.measure(tiny, token_ids=tmp_path / "ids.jsonl", out=tmp_path / "run")
    assert refusal.value.field == "token_ids"
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_family_can_be_said_where_the_configuration_does_not(bare, files, small):
    untyped, few = str(bare / "untyped"), {"token_ids": files / "rows.jsonl", "layers": [0]}
    with pytest.raises(hs.errors.UnsupportedModelError, match=r"no model_type.*family='bert'") as refusal:
        hs.measure(untyped, **few)
    assert refusal.value.field == "family"
    said = hs.measure(untyped, family="bert", **few)
    assert answers(said)[0].mean_radius == answers(hs.measure(str(bare / "weights"), **few))[0].mean_radius
    with pytest.raises(hs.errors.UnsupportedModelError, match="did you mean bert"):
        hs.measure(untyped, family="brt", **few)


@pytest.mark.parametrize(
    ("model", "words"), [("weights", "says model_type = 'bert', got the family 'gpt2'"), ("random:bert", "itself")]
)
def test_a_family_that_contradicts_the_model_is_refused(model, words, bare):
    name = model if ":" in model else str(bare / model)
    with pytest.raises(hs.errors.UnsupportedModelError, match=words) as refusal:
        hs.load(name, family="gpt2")
    assert refusal.value.field == "family"


def test_a_tokenizer_that_is_not_there_is_refused_by_its_name(bare, small):
    with pytest.raises(hs.errors.UnsupportedModelError, match="no tokenizer 'no/such/place'") as refusal:
        hs.measure(str(bare / "weights"), tokenizer="no/such/place", **small)
    assert refusal.value.field == "tokenizer"
    with pytest.raises(hs.errors.UnsupportedModelError, match="no tokenizer that knows a word"):
        hs.load(str(bare / "weights"), tokenizer=str(bare / "weights"))


@pytest.mark.slow
def test_a_picture_is_one_sequence_prepared_as_its_model_says(seeing, files, tmp_path):
    plain = hs.measure(str(seeing / "vit"), images=files / "pictures", layers=[0])
    assert [(r.ask.length, r.ask.window.index) for r in plain.records] == [(5, 0), (5, 1), (5, 2)]
    assert any("without an image processor" in note for note in plain.notes)
    assert plain.openings[5, 2] == ("2.png",)
    assert plain.title.endswith("at 3 pictures of n = 5 tokens")
    transformers.ViTModel.from_pretrained(seeing / "vit").save_pretrained(tmp_path)
    processor = ViTImageProcessorPil(size={"height": 16, "width": 16}, image_mean=[0.1, 0.2, 0.3])
    processor.save_pretrained(tmp_path)
    own = hs.measure(str(tmp_path), images=files / "pictures", layers=[0])
    assert own.notes == ()
    pixels = processor(images=[Image.open(files / "pictures" / "1.png")], return_tensors="pt")["pixel_values"]
    X = hs.load(str(tmp_path)).activations(pixels).attention[0][0]
    assert own.records[1].answer.mean_radius == pytest.approx(float(X.norm(dim=-1).square().mean().sqrt()), rel=1e-5)


def test_without_a_processor_pictures_are_brought_to_between_minus_one_and_one(seeing, tmp_path):
    for name, colour in (("a.png", "black"), ("b.png", "white")):
        Image.new("RGB", (5, 9), colour).save(tmp_path / name)
    transformer = hs.load(str(seeing / "vit"), dtype=torch.float64)
    found = inputs(read_pictures(tmp_path), transformer).at([0, 1], length=5, stride=0)
    assert found.shape == (2, 3, 16, 16)
    assert found.dtype == torch.float64
    assert found[0].unique().tolist() == [-1.0]
    assert found[1].unique().tolist() == [1.0]


@pytest.mark.slow
def test_of_a_model_of_both_the_tower_of_pictures_is_named(seeing, files):
    with pytest.raises(hs.errors.UnsupportedModelError, match="family='clip_vision_model'"):
        hs.measure(str(seeing / "clip"), images=files / "pictures")
    found = hs.measure(str(seeing / "clip"), family="clip_vision_model", images=files / "pictures", layers=[0])
    assert len(found.records) == 3


def test_words_and_pictures_are_not_mistaken(seeing, tiny, files):
    with pytest.raises(hs.errors.UnsupportedModelError, match="reads words, not pictures"):
        hs.measure(tiny, images=files / "pictures")
    with pytest.raises(hs.errors.UnsupportedModelError, match=r"model of pictures.*images="):
        hs.measure(str(seeing / "vit"))


def test_pictures_of_another_size_are_refused(seeing, files, tmp_path):
    transformers.ViTModel.from_pretrained(seeing / "vit").save_pretrained(tmp_path)
    ViTImageProcessorPil(size={"height": 24, "width": 24}).save_pretrained(tmp_path)
    with pytest.raises(hs.errors.AssumptionError, match=r"16 × 16 pixels, but .* makes 24 × 24"):
        hs.measure(str(tmp_path), images=files / "pictures")


def test_labels_of_sentences_are_not_used_and_that_is_said(tiny, tmp_path):
    (tmp_path / "said.jsonl").write_text('{"text": "Down, down, down.", "label": 1}\n', encoding="utf-8")
    found = hs.measure(tiny, sentences=tmp_path / "said.jsonl", layers=[0])
    assert "labels" in found.notes[-1]
    assert "not used" in found.notes[-1]


@pytest.mark.slow
def test_a_run_at_sentences_is_read_back_and_done_once(tiny, files, tmp_path):
    asked = {"sentences": files / "said.jsonl", "out": tmp_path, "layers": [0]}
    first, steps = hs.measure(tiny, **asked), []
    assert hs.measure(tiny, progress=steps.append, **asked) == first
    assert steps == []
    assert read_run(tmp_path).measurements == (first,)


@pytest.mark.slow
def test_a_run_does_not_go_on_with_another_tokenizer_under_the_same_name(tiny, small, tmp_path, module, tokenizer):
    hs.measure(tiny, out=tmp_path, **small)

    class Shifted:
        """Words one number further on."""

        all_special_ids, unk_token_id = tokenizer.all_special_ids, tokenizer.unk_token_id

        def __call__(self, text, **how):
            return {"input_ids": [token + 1 for token in tokenizer(text, **how)["input_ids"]]}

        def convert_ids_to_tokens(self, tokens):
            return tokenizer.convert_ids_to_tokens(tokens)

    other = hs.load(module(), dtype=torch.float64, tokenizer=Shifted())
    assert other.name == tiny.name
    with pytest.raises(hs.errors.FileError, match="begun with another tokenizer") as refusal:
        hs.measure(other, out=tmp_path, **small)
    assert refusal.value.field == "out"


@pytest.mark.slow
@pytest.mark.parametrize("part", ["attention", "block"])
def test_weights_in_half_precision_are_measured_in_float32_and_the_result_says_so(part, module, files, tmp_path):
    module().to(torch.bfloat16).save_pretrained(tmp_path)
    found = hs.measure(str(tmp_path), token_ids=files / "rows.jsonl", layers=[0], map=part)
    assert {record.ask.where.dtype for record in found.records} == {"float32"}
    assert len(found.records) == 3
    assert any("float32" in note for note in found.notes)
    assert "Note: " in repr(found)


def test_a_study_takes_every_input(bare, folder_model, files, tmp_path):
    model = folder_model
    study = tmp_path / "study.toml"
    study.write_text(
        f"model = {json.dumps(str(bare / 'untyped'))}\nfamily = 'bert'\ntokenizers = [{json.dumps(model)}]\n"
        f"sentences = {json.dumps(str(files / 'said.jsonl'))}\nlayers = [0]\n",
        encoding="utf-8",
    )
    (part,) = parts(read_study(study), Resources())
    assert [(ask.window.length, ask.reading.family, ask.reading.tokenizer) for ask in part.asks] == [
        (n, "bert", model) for n in (4, 13, 6)
    ]
