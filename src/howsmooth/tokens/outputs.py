"""The output of a model as a function of its tokens, and sequences tried by forward passes, which are counted."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from howsmooth.errors import AssumptionError
from howsmooth.maps.composition import Chain
from howsmooth.maps.protocols import Map
from howsmooth.models.activations import Activations
from howsmooth.models.map_names import MapName
from howsmooth.models.parts.block import chain, entering
from howsmooth.models.parts.embedding import Lexicon, entrance, lexicon
from howsmooth.models.transformer import Transformer
from howsmooth.tokens.replacements import Replacements

# So many tokens go through the model together.
TOKENS = 2048


@dataclass(frozen=True, kw_only=True, eq=False)
class Outputs:
    """The output of a map, for sequences of tokens of one length.

    Attributes:
        model: The model.
        map: Which map.
        layer: Of which layer, where it is a map of one.
        lexicon: Every input that a position can have; none where it is not known how the model embeds.
        chain: From the sum of the embeddings to the output, in closed form; none where there is no such form, and the
            model is run.
    """

    model: Transformer
    map: str
    layer: int
    lexicon: Lexicon | None
    chain: Chain | None

    @classmethod
    def of(cls, model: Transformer, tokens: Int[Tensor, " n"], *, name: str, layer: int) -> "Outputs":
        """Read the map once.

        Raises:
            AssumptionError: If the model has no such map or layer, or the tokens hold padding.
        """
        begins = model.check_map(name, layer)
        layer = begins if MapName.parse(name).spans_layers else layer
        if model.ends.stem is None:
            return cls(model=model, map=name, layer=layer, lexicon=None, chain=None)
        known = lexicon(model, len(tokens))
        summed = model.embed(tokens)
        if not torch.allclose(known(tokens), summed, rtol=1e-4, atol=1e-4 * float(summed.abs().max())):
            raise AssumptionError(
                "tokens must not hold padding, which shifts the others; leave it out.", field="tokens"
            )
        found = model.activations(tokens[None])
        return cls(model=model, map=name, layer=layer, lexicon=known, chain=_chain(model, found, name, layer))

    @torch.no_grad()
    def __call__(self, rows: Int[Tensor, "b n"]) -> Float[Tensor, "b m out"]:
        """Return the outputs of sequences: one forward pass for each."""
        parts = rows.split(max(1, TOKENS // rows.shape[-1]))
        return torch.cat([self._some(part) for part in parts])

    def _some(self, rows: Tensor) -> Tensor:
        if self.chain is not None and self.lexicon is not None:
            return self.chain(self.lexicon(rows.to(self.lexicon.words.device)))
        f, X = self.model.activations(rows).at(self.layer, self.map)
        return f(X)


def _chain(model: Transformer, found: Activations, name: str, layer: int) -> Chain | None:
    """Return the map from the sum of the embeddings, with all that stands in front; none if a part has no form."""
    if name == "network":
        f, _X = found.at(0, name)
        return f if isinstance(f, Chain) else None
    maps: list[Map] = list(entrance(model, "block"))
    if layer > 0:
        front, _X = found.at(0, f"to:{layer - 1}")
        if not isinstance(front, Chain):
            return None
        maps.extend(front.maps)
    last = _from_block(found, name, layer)
    return None if last is None else Chain(*maps, *last.maps)


def _from_block(found: Activations, name: str, layer: int) -> Chain | None:
    """Return the map itself, from what enters its block."""
    part, parsed = found.layers[layer], MapName.parse(name)
    f, _X = found.at(layer, name)
    if parsed.spans_layers:
        return f if isinstance(f, Chain) else None
    if name == "mlp":
        front = entering(part, part.closed_form)
        return chain(*(front.maps if isinstance(front, Chain) else ()), part.map(name))
    if name == "block" and part.feed_forward is None:
        return None
    return chain(None if parsed.reads_block else part.pre_norm, part.map(name))


class Trials:
    """Sequences tried by forward passes: the best is kept, and every pass is counted.

    Attributes:
        outputs: The map.
        replacements: Which tokens may replace which.
        tokens: The given sequence.
        edits: How many tokens may be swapped.
        budget: How many passes may be taken.
        passes: How many were taken: forward passes of one sequence, and products with its Jacobian.
        best: The sequence with the largest displacement so far.
        displacement: That displacement of the output.
        trace: The largest displacement after each batch of trials.
    """

    def __init__(
        self, outputs: Outputs, replacements: Replacements, tokens: Tensor, *, edits: int, budget: int
    ) -> None:
        self.outputs, self.replacements, self.tokens = outputs, replacements, tokens
        self.edits, self.budget, self.passes, self.tried = edits, budget, 1, 0
        (self.at_text,) = outputs(tokens[None])
        self.best, self.displacement, self.trace = tokens, 0.0, [0.0]

    @property
    def left(self) -> int:
        """How many passes are left."""
        return max(0, self.budget - self.passes)

    def take(self, passes: int) -> None:
        """Count passes that were taken elsewhere."""
        self.passes += passes

    def run(self, rows: Int[Tensor, "b n"]) -> Float[Tensor, " c"]:
        """Try the sequences that text can spell, as many as passes are left for; return their displacements."""
        rows = self.replacements.fitting(rows)[: self.left]
        self.tried += len(rows)
        if len(rows) == 0:
            return self.at_text.new_zeros(0)
        moved = (self.outputs(rows) - self.at_text).flatten(1).norm(dim=1)
        self.passes += len(rows)
        most = int(moved.argmax())
        if float(moved[most]) > self.displacement:
            self.best, self.displacement = rows[most], float(moved[most])
        self.trace.append(self.displacement)
        return moved

    def swapped(
        self, base: Int[Tensor, " n"], places: Int[Tensor, " b"], incoming: Int[Tensor, " b"]
    ) -> Int[Tensor, "b n"]:
        """Return a sequence with one token swapped, once for each pair."""
        rows = base.expand(len(places), -1).clone()
        rows[torch.arange(len(places)), places] = incoming
        return rows
