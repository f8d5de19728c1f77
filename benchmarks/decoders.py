"""Small decoders that are trained here, on Alice, letter by letter: a second opinion on what was found in SmolLM2."""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

import howsmooth as hs
from howsmooth.models.inputs.text import read_text

LAYERS, WIDTH, HEADS, LENGTH, LETTERS = 6, 96, 4, 128, 256
BATCH, RATE, STEPS = 8, 3e-3, 400
# The last tenth of the text is not learned from.
LEARNED = 0.9
END: dict[str, Any] = {"bos_token_id": 0, "eos_token_id": 0}


def letters() -> Tensor:
    """Return the text as bytes."""
    return torch.frombuffer(bytearray(read_text().content.encode()), dtype=torch.uint8).long()


def held_out(count: int, length: int) -> Tensor:
    """Return windows of the part of the text that is not learned from."""
    text = letters()
    rest = text[int(LEARNED * len(text)) :]
    return rest[: count * length].view(count, length)


def untrained(family: str) -> Any:
    """Return a decoder like GPT-2 or Llama that knows nothing yet."""
    torch.manual_seed(0)
    if family == "gpt2":
        gpt2 = GPT2Config(
            vocab_size=LETTERS, n_positions=LENGTH, n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS, **END,
            resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
        )  # fmt: skip
        return GPT2LMHeadModel(gpt2)
    config = LlamaConfig(
        vocab_size=LETTERS,
        hidden_size=WIDTH,
        intermediate_size=256,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS // 2,
        max_position_embeddings=LENGTH,
        **END,
    )
    return LlamaForCausalLM(config)


def trained(family: str, steps: int = STEPS) -> hs.Transformer:
    """Train a decoder, and print its loss on what it has not seen; a minute or two on one core."""
    model = untrained(family)
    text = letters()
    text = text[: int(LEARNED * len(text))]
    optimiser = torch.optim.AdamW(model.parameters(), lr=RATE)
    generator = torch.Generator().manual_seed(0)
    for step in range(steps):
        for group in optimiser.param_groups:
            group["lr"] = RATE * min((step + 1) / 50, 1 - step / steps)
        starts = torch.randint(len(text) - LENGTH, (BATCH,), generator=generator)
        tokens = torch.stack([text[start : start + LENGTH] for start in starts.tolist()])
        loss = model(tokens, labels=tokens).loss
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
    model.eval().requires_grad_(False)
    tokens = held_out(8, LENGTH)
    print(f"{family}, {steps} steps: {float(model(tokens, labels=tokens).loss):.2f} nats a letter on held-out text")
    return hs.load(model)
