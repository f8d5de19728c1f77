"""Attention from its definition, one score at a time, for parameters of every kind drawn at random."""

import math

import torch
from draws import gaussian
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

import howsmooth as hs

MEMORIES = [2**30, 0]


def normalise(kind, x, gain, bias, eps):
    if kind == "layer":
        x = x - x.mean()
    x = x / torch.sqrt((x * x).mean() + eps) * gain
    return x if bias is None else x + bias


def rotate(x, position, *, base, dim, interleaved, frequencies):
    dim = x.shape[-1] if dim is None else dim
    out = list(x.unbind(-1))
    for t in range(dim // 2):
        frequency = base ** (-2 * t / dim) if frequencies is None else float(frequencies[t])
        angle = float(position) * frequency
        a, b = (2 * t, 2 * t + 1) if interleaved else (t, t + dim // 2)
        out[a] = x[a] * math.cos(angle) - x[b] * math.sin(angle)
        out[b] = x[a] * math.sin(angle) + x[b] * math.cos(angle)
    return torch.stack(out)


def at_batch(tensor, index, keep):
    """Take entry `index` of the batch axes (those before the last `keep`), which broadcast from the right."""
    axes = tensor.ndim - keep
    chosen = index[len(index) - axes :]
    return tensor[tuple(0 if size == 1 else i for i, size in zip(chosen, tensor.shape[:axes], strict=True))]


def naive_sequence(X, p, index=()):
    n, _d = X.shape
    heads, groups = p["query"].shape[0], p["key"].shape[0]
    k = p["query"].shape[1]
    scale = p.get("scale") or 1 / math.sqrt(k)
    pos = p.get("positions", {})
    outputs = []
    for h in range(heads):
        g = h // (heads // groups)
        q = [p["query"][h] @ X[i] for i in range(n)]
        key = [p["key"][g] @ X[i] for i in range(n)]
        v = [p["value"][g] @ X[i] for i in range(n)]
        if p.get("query_bias") is not None:
            q = [a + p["query_bias"][h] for a in q]
        if p.get("key_bias") is not None:
            key = [a + p["key_bias"][g] for a in key]
        if p.get("value_bias") is not None:
            v = [a + p["value_bias"][g] for a in v]
        if p.get("query_norm"):
            q = [normalise(*p["query_norm"][:1], a, *p["query_norm"][1:]) for a in q]
        if p.get("key_norm"):
            key = [normalise(*p["key_norm"][:1], a, *p["key_norm"][1:]) for a in key]
        if pos.get("rotary"):
            r = dict(pos["rotary"])
            places = r.pop("positions", None)
            places = torch.arange(n) if places is None else at_batch(places, index, 1)
            q = [rotate(a, places[i], **r) for i, a in enumerate(q)]
            key = [rotate(a, places[i], **r) for i, a in enumerate(key)]
        rows = []
        for i in range(n):
            scores, values = [], []
            for j in range(n):
                s = scale * (q[i] @ key[j])
                if p.get("softcap"):
                    s = p["softcap"] * torch.tanh(s / p["softcap"])
                if pos.get("causal") and j > i:
                    continue
                if pos.get("window") and abs(i - j) >= pos["window"]:
                    continue
                if pos.get("padding") is not None and not at_batch(pos["padding"], index, 1)[j]:
                    continue
                if pos.get("mask") is not None:
                    mask = pos["mask"]
                    entry = mask[i, j] if mask.ndim == 2 else at_batch(mask, index, 3)[min(h, mask.shape[-3] - 1), i, j]
                    if mask.dtype == torch.bool:
                        if not entry:
                            continue
                    elif entry == -math.inf:
                        continue
                    else:
                        s = s + entry
                if pos.get("relative_bias") is not None:
                    table = pos["relative_bias"]
                    length = (table.shape[-1] + 1) // 2
                    s = s + table[min(h, table.shape[0] - 1), length - 1 + j - i]
                if p.get("weights") is not None:
                    s = s + torch.log(at_batch(p["weights"], index, 1)[j])
                scores.append(s)
                values.append(v[j])
            rows.append(torch.softmax(torch.stack(scores), 0) @ torch.stack(values))
        mean = torch.stack(rows)
        outputs.append(mean if p.get("output") is None else mean @ p["output"][h].mT)
    if p.get("output") is None:
        return torch.cat(outputs, -1)
    total = sum(outputs)
    return total if p.get("output_bias") is None else total + p["output_bias"]


def ndindex(batch):
    return [()] if not batch else [(i, *rest) for i in range(batch[0]) for rest in ndindex(batch[1:])]


def naive(X, p):
    batch = X.shape[:-2]
    if not batch:
        return naive_sequence(X, p)
    rows = [naive_sequence(X[index], p, index) for index in ndindex(batch)]
    return torch.stack(rows).reshape(*batch, *rows[0].shape)


NORMS = {"layer": hs.maps.LayerNorm, "rms": hs.maps.RMSNorm}


def build(p):
    """The library's Attention for the oracle's parameters."""
    p = dict(p)
    pos = dict(p.pop("positions", {}))
    if pos.get("rotary"):
        pos["rotary"] = hs.maps.Rotary(**pos["rotary"])
    for name in ("query_norm", "key_norm"):
        if p.get(name):
            kind, gain, bias, eps = p[name]
            p[name] = NORMS[kind](gain=gain, bias=bias, eps=eps)
    return hs.Attention(**p, positions=hs.maps.Positions(**pos))


FEATURES = [
    "causal",
    "window",
    "padding",
    "padding_per_batch",
    "bool_mask",
    "float_mask",
    "mask_per_head",
    "mask_per_batch",
    "relative",
    "relative_long",
    "rotary",
    "rotary_interleaved",
    "rotary_positions",
    "rotary_frequencies",
    "biases",
    "no_output",
    "softcap",
    "query_norm",
    "key_norm",
    "weights",
    "weights_per_batch",
    "scale",
]


def draw_parameters(rng, heads, groups, n, d, k, v, out, batch, features):
    g = lambda *shape: gaussian(rng, *shape)  # noqa: E731
    coin = lambda *shape: torch.rand(*shape, generator=rng) < 0.6  # noqa: E731
    p = {"query": g(heads, k, d), "key": g(groups, k, d), "value": g(groups, v, d), "output": g(heads, out, v)}
    pos = {}
    if "no_output" in features:
        p["output"] = None
    if "biases" in features:
        p |= {"query_bias": g(heads, k), "key_bias": g(groups, k), "value_bias": g(groups, v)}
        if p["output"] is not None:
            p["output_bias"] = g(out)
    if "softcap" in features:
        p["softcap"] = 0.8
    if "scale" in features:
        p["scale"] = 0.37
    if "query_norm" in features:
        p["query_norm"] = ("rms", g(k), None, 1e-3)
    if "key_norm" in features:
        p["key_norm"] = ("layer", g(k), g(k), 1e-2)
    if "weights" in features:
        p["weights"] = torch.rand(n, generator=rng, dtype=torch.float64) + 0.1
    if "weights_per_batch" in features:
        p["weights"] = torch.rand(*batch, n, generator=rng, dtype=torch.float64) + 0.1
    if "causal" in features:
        pos["causal"] = True
    if "window" in features:
        pos["window"] = 2
    eye = torch.eye(n, dtype=torch.bool)
    if "bool_mask" in features:
        pos["mask"] = coin(n, n) | eye
    if "float_mask" in features:
        pos["mask"] = g(n, n).masked_fill(~(coin(n, n) | eye), -math.inf)
    if "mask_per_head" in features:
        pos["mask"] = coin(heads, n, n) | eye
    if "mask_per_batch" in features:
        pos["mask"] = coin(*batch, 1, n, n) | eye
    alone = pos.keys() & {"causal", "window", "mask"}  # a padded token would then see nothing
    if "padding" in features and not alone:
        pos["padding"] = coin(n)
        pos["padding"][0] = True
    if "padding_per_batch" in features and not alone:
        pos["padding"] = coin(*batch, n)
        pos["padding"][..., -1] = True
    if "relative" in features:
        pos["relative_bias"] = g(heads, 2 * n - 1)
    if "relative_long" in features:
        pos["relative_bias"] = g(1, 2 * (n + 3) - 1)
    if features & {"rotary", "rotary_interleaved", "rotary_positions", "rotary_frequencies"} and k > 1:
        dim = 2 if k == 5 else (None if "rotary" in features else k)
        rotary = {"base": 50.0, "dim": dim, "interleaved": "rotary_interleaved" in features, "frequencies": None}
        if "rotary_positions" in features:
            rotary["positions"] = torch.randint(0, 30, (*batch, n), generator=rng)
        if "rotary_frequencies" in features:
            rotary["frequencies"] = torch.rand((dim or k) // 2, generator=rng, dtype=torch.float64)
        pos["rotary"] = rotary
    p["positions"] = pos
    return p, gaussian(rng, *batch, n, d)


@st.composite
def problems(draw):
    groups = draw(st.sampled_from([1, 2, 3]))
    heads = groups * draw(st.sampled_from([1, 2]))
    n, d = draw(st.integers(1, 5)), draw(st.integers(1, 5))
    k, v, out = draw(st.sampled_from([1, 2, 4, 5])), draw(st.integers(1, 4)), draw(st.integers(1, 5))
    batch = draw(st.sampled_from([(), (2,), (1,), (2, 1), (1, 3)]))
    features = draw(st.sets(st.sampled_from(FEATURES), max_size=9))
    number = draw(st.integers(0, 2**31))
    return draw_parameters(torch.Generator().manual_seed(number), heads, groups, n, d, k, v, out, batch, features)


SEARCH = settings(
    max_examples=60,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
