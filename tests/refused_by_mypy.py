"""What mypy must refuse of users' code: checked with the sources, where an unused ``type: ignore`` is an error.

Nothing here is run.
"""

from typing import assert_type

import torch

import howsmooth as hs

f = hs.Attention.random(heads=2, d=4, seed=0)
X = torch.randn(3, 4)

assert_type(hs.local_lipschitz(f, X, seed=0), hs.NormEstimate)
assert_type(hs.maximise(f, n=3, domain=hs.domains.Ball(1.0), seed=torch.Generator()), hs.Witness)
assert_type(hs.bracket(f, n=3, radius=1.0), hs.Bracket)
assert_type(hs.bounds.sharp_upper(f, n=3, radius=1.0), hs.Bound)
assert_type(hs.measure("reviews", layers=[0], lengths=[8], sequences=1), hs.Measurement)
assert_type(hs.load("reviews"), hs.Transformer)

hs.nope  # type: ignore[attr-defined] # noqa: B018
hs.maps.Atention  # type: ignore[attr-defined] # noqa: B018
hs.bounds.sharp_uper(f, n=3, radius=1.0)  # type: ignore[attr-defined]
hs.local_lipschitz(f, X, generator=torch.Generator())  # type: ignore[call-arg]
hs.local_lipschitz(f, X, seed="0")  # type: ignore[arg-type]
hs.maximise(f, n=3, radius=1.0)  # type: ignore[call-arg]
hs.attack(f, X, epsilon=0.1)  # type: ignore[call-arg]
hs.measure("reviews", layer=0)  # type: ignore[call-arg]
hs.certify("reviews", sentence="a gripping film")  # type: ignore[call-arg]
hs.local_lipschitz(f, X).value_of  # type: ignore[attr-defined] # noqa: B018
