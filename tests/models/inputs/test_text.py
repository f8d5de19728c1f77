"""Windows of a real book: exactly as long as asked for, one after another, none of them cut short."""

import pytest
import tokenizers
import torch

import howsmooth as hs
from howsmooth.models.inputs.text import Text, WordNumbers, cut, read_text
from howsmooth.models.loading.names import built_in_path


@pytest.fixture(scope="module")
def book():
    """Alice in MiniLM's tokens, by the tokenizers library alone."""
    own = tokenizers.Tokenizer.from_file(str(built_in_path("minilm") / "tokenizer.json"))
    own.no_truncation()
    own.no_padding()
    return own.encode(read_text().content, add_special_tokens=False).ids


@pytest.mark.parametrize(("length", "count"), [(1, 5), (8, 10), (128, 4), (300, 3), (512, 2)])
def test_windows_one_after_another_are_the_beginning_of_the_book(minilm, book, length, count):
    found = minilm.windows(read_text(), length=length, count=count)
    assert found.shape == (count, length)
    assert found.flatten().tolist() == book[: length * count]


def test_minilms_tokenizer_neither_truncates_nor_pads(minilm, book):
    # the file in its package asks for both, at 128
    assert minilm.tokenizer.encode(read_text().content) == book
    assert len(book) > 30_000
    assert len(minilm.tokenizer.encode("Alice")) == 1


@pytest.mark.parametrize("length", [3, 10, 200])
def test_special_tokens_frame_every_window_and_count_towards_its_length(minilm, book, length):
    found = minilm.windows(read_text(), length=length, count=4, special_tokens=True)
    assert found.shape == (4, length)
    for window in found:
        pieces = minilm.tokenizer.pieces(window.tolist())
        assert (pieces[0], pieces[-1]) == ("[CLS]", "[SEP]")
    assert found[:, 1:-1].flatten().tolist() == book[: 4 * (length - 2)]


def test_a_text_is_used_to_its_last_token(minilm):
    text = Text(name="note", content="alice was here")
    assert minilm.windows(text, length=3, count=1).shape == (1, 3)
    with pytest.raises(hs.errors.AssumptionError, match="has 3 tokens"):
        minilm.windows(text, length=4, count=1)


def test_pieces_are_the_words(minilm):
    text = Text(name="note", content="Alice was beginning")
    tokens = minilm.windows(text, length=3, count=1)[0].tolist()
    assert minilm.tokenizer.pieces(tokens) == ["alice", "was", "beginning"]


def test_words_are_numbered_by_their_first_appearance():
    tokenizer = WordNumbers(50)
    text = Text(name="note", content="the cat saw\n the  dog, the dog, saw")
    tokens = tokenizer.encode(text.content)
    assert cut(tokens, text.name, range(2), length=4) == [[0, 1, 2, 0], [3, 0, 3, 2]]
    assert tokenizer.pieces([0, 3, 2, 7]) == ["the", "dog,", "saw", "7"]
    assert tokenizer.frame() == ([], [])


def test_words_beyond_the_vocabulary_start_again():
    tokenizer = WordNumbers(2)
    assert tokenizer.encode("a b c d a") == [0, 1, 0, 1, 0]
    assert tokenizer.pieces([1, 0]) == ["b", "a"]


@pytest.mark.slow
def test_a_random_model_reads_the_book_by_word_numbers():
    transformer = hs.load("random:gpt2")
    found = transformer.windows(read_text(), length=64, count=3)
    words = read_text().content.split()[: 3 * 64]
    order = list(dict.fromkeys(words))
    assert found.flatten().tolist() == [order.index(word) for word in words]
    assert transformer.tokenizer.pieces(found[0].tolist()) == words[:64]
    assert "random" in transformer.notes[0]


def test_a_digest_tells_texts_apart(tmp_path):
    file = tmp_path / "note.txt"
    file.write_text("Alice was here")
    read = read_text(file)
    assert read.digest == Text(name="elsewhere", content="Alice was here").digest
    assert read.digest != read_text().digest
    assert (read.name, read.content) == (str(file), "Alice was here")


def test_alice_is_shipped_without_anybodys_licence_text():
    alice = read_text()
    assert alice == read_text("alice")
    assert alice.digest == read_text().digest
    assert "Gutenberg" not in alice.content
    assert "Alice was beginning to get very tired" in alice.content
    assert "Alice was" not in repr(alice)


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path):
    file = tmp_path / "note.txt"
    file.write_bytes("\ufeffAlice".encode())
    assert read_text(file).content == "Alice"


def test_words_keep_clear_of_special_tokens_and_start_again_beyond_the_vocabulary():
    tokenizer = WordNumbers(10, first=7)
    assert tokenizer.encode("a b a c d") == [7, 8, 7, 9, 7]
    assert tokenizer.pieces([7, 8]) == ["a", "b"]


@pytest.mark.slow
def test_random_weights_are_the_same_in_every_process():
    torch.manual_seed(1)
    first = hs.load("random:electra")  # the smallest
    torch.manual_seed(2)
    drawn = torch.rand(1)
    second = hs.load("random:electra")
    assert first.digest == second.digest
    torch.manual_seed(2)
    assert torch.rand(1) == drawn  # and loading leaves the caller's random numbers alone
