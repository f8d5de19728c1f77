"""Small random classifiers of every shape."""

from draws import gaussian

import howsmooth as hs


def classifier(
    rng, *, d=8, heads=2, layers=2, hidden=12, n=5, activation="gelu", norm="layer", before=False, gated=False, **where
):
    """Return a classifier with two or three classes; ``before`` puts norms before attention and MLP."""

    def normed():
        kind = hs.maps.LayerNorm if norm == "layer" else hs.maps.RMSNorm
        return kind(gain=1 + 0.1 * gaussian(rng, d), bias=0.1 * gaussian(rng, d), eps=1e-6)

    def attention():
        k = d // heads
        q, key, v, out = (gaussian(rng, heads, k, d) / d**0.5 for _ in range(4))
        positions = hs.maps.Positions(**where)
        return hs.Attention(query=q, key=key, value=v, output=out.mT, query_bias=gaussian(rng, heads, k) / 4,
                            value_bias=gaussian(rng, heads, k) / 4, positions=positions)  # fmt: skip

    def mlp():
        up, down = gaussian(rng, hidden, d) / d**0.5, gaussian(rng, d, hidden) / hidden**0.5
        if gated:
            return hs.maps.GatedMLP(gate=gaussian(rng, hidden, d) / d**0.5, up=up, down=down, activation=activation)
        return hs.maps.MLP(up=up, down=down, up_bias=gaussian(rng, hidden) / 4, activation=activation)

    maps = [] if before else [normed()]
    for _ in range(layers):
        for part in (attention(), mlp()):
            maps += [hs.maps.Residual(hs.maps.Chain(normed(), part))] if before else [hs.maps.Residual(part), normed()]
    # the first token of a masked network sees nobody else
    pooled = (hs.maps.Pooling.last if where.get("causal") else hs.maps.Pooling.first)(n=n, like=gaussian(rng, 1))
    head = hs.maps.MLP(up=gaussian(rng, d, d) / d**0.5, down=gaussian(rng, 3, d) / d**0.5, activation="tanh")
    return hs.maps.Chain(*maps, *([normed()] if before else []), pooled, head)
