"""In a notebook every result shows itself, and what it shows is escaped."""

import pytest
import torch
from measured import grid, measurement

import howsmooth as hs
from howsmooth.markup import paragraph, table

ONE = torch.ones(1, 1, dtype=torch.float64)
F = hs.Attention.single_head(A=-2 * torch.eye(2), V=torch.eye(2))
X = torch.tensor([[0.0, 1.0], [1.0, 0.5], [-1.0, 2.0]])
MU = hs.transport.DiscreteMeasure(X)
RESULTS = {
    "estimate": lambda: hs.local_lipschitz(F, X),
    "batch": lambda: hs.local_lipschitz(F, X.expand(3, 3, 2)),
    "singular values": lambda: hs.singular_values(F.jacobian(X), k=2),
    "bound": lambda: hs.bounds.sharp_upper(F, n=5, radius=1.0),
    "table": lambda: hs.bounds.table(F, n=5, radius=1.0),
    "witness": lambda: hs.inputs.tied_pair(F, 5, 1.0),
    "bracket": lambda: hs.bracket(F, n=5, radius=1.0),
    "splitting": lambda: hs.splitting(F, MU),
    "attack": lambda: hs.split_attack(F, MU, eps=1e-3),
    "map": lambda: hs.search.splitting_map(A=-1.0, step=2.0),
    "regimes": lambda: hs.regimes(hs.Attention.single_head(A=-ONE, V=ONE), 1.0, [3, 10]),
    "typical gain": lambda: hs.typical_gain(F, X),
    "tokens": lambda: hs.local_lipschitz(F, X).show_tokens(["down", "the", "hole"]),
    "measurement": lambda: measurement(grid()),
    "growth": lambda: hs.growth({n: [2.0 * n**0.3] * 2 for n in (4, 8)}),
}


@pytest.mark.parametrize("name", RESULTS)
def test_every_result_shows_itself_in_a_notebook(name):
    html = RESULTS[name]()._repr_html_()
    assert html.startswith(("<p>", "<table>"))
    assert any(character.isdigit() for character in html)
    assert html.count("<") == html.count(">")


def test_singular_values_are_a_row_each():
    assert RESULTS["singular values"]()._repr_html_().count("<tr>") == 3


def test_strings_are_escaped():
    assert table(["<a>"], [["&", 3]], caption="<b>") == (
        "<table><caption>&lt;b&gt;</caption><tr><th>&lt;a&gt;</th></tr><tr><td>&amp;</td><td>3</td></tr></table>"
    )
    assert paragraph("</p>") == "<p>&lt;/p&gt;</p>"
