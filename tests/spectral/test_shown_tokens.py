"""Words shaded by their share of the worst perturbation, for notebooks."""

import re

import pytest
import torch

import howsmooth as hs


@pytest.fixture
def estimate(rng):
    f = hs.Attention.single_head(A=torch.eye(3, dtype=torch.float64), V=torch.eye(3, dtype=torch.float64))
    return hs.local_lipschitz(f, torch.randn(4, 3, dtype=torch.float64, generator=rng))


def test_words_are_shaded_by_the_share_of_the_worst_perturbation_that_they_hold(estimate):
    html = estimate.show_tokens(["a", "b", "c", "d"])._repr_html_()
    shades = [float(shade) for shade in re.findall(r"35, ([\d.]+)\)", html)]
    shares = estimate.token_sensitivity
    expected = (shares / shares.max()).sqrt()
    torch.testing.assert_close(torch.tensor(shades, dtype=torch.float64), expected, rtol=0.0, atol=0.005)  # two digits
    assert re.findall(r">(\w)</span>", html) == ["a", "b", "c", "d"]


def test_plain_text_names_the_words_that_hold_most_first(estimate):
    first = int(estimate.token_sensitivity.argmax())
    assert repr(estimate.show_tokens(["a", "b", "c", "d"])).startswith(f"ShownTokens: {'abcd'[first]!r} ({first}) ")


def test_words_made_of_tags_stay_text(estimate):
    html = estimate.show_tokens(['<b class="x">', "&", "'", "</p>"])._repr_html_()
    assert "&lt;b class=&quot;x&quot;&gt;" in html
    assert html.count("<") == 10  # a paragraph of four words


def test_a_batch_or_too_few_words_are_refused(estimate):
    with pytest.raises(hs.errors.AssumptionError, match="one for each of the 4 tokens, got 2") as refused:
        estimate.show_tokens(["a", "b"])
    assert refused.value.field == "words"
    batch = hs.local_lipschitz(hs.Attention.single_head(A=torch.eye(2), V=torch.eye(2)), torch.ones(2, 3, 2))
    with pytest.raises(hs.errors.AssumptionError, match=r"choose one of the batch, as in estimate\[0\]"):
        batch.show_tokens(["a", "b", "c"])
