"""Every scheme against a plain reference, number by number."""

import gguf
import pytest
import torch
from torch.testing import assert_close

import howsmooth as hs
from howsmooth.budgets import scheme
from howsmooth.budgets.schemes import nf4_levels

# As printed in the paper of QLoRA.
NF4 = [-1.0, -0.6961928, -0.5250731, -0.39491749, -0.28444138, -0.18477343, -0.09105004, 0.0]
NF4 += [0.0795803, 0.1609302, 0.2461123, 0.33791524, 0.44070983, 0.5626170, 0.72295684, 1.0]


@pytest.fixture
def W(rng):
    W = torch.randn(6, 40, generator=rng).double()
    W[2, :16] = 0
    return W


def by_loops(groups, bits, *, asymmetric=False):
    """Round the numbers of each group one by one."""
    found = []
    for group in groups:
        numbers = [float(x) for x in group]
        if asymmetric:
            low, high = min(0.0, *numbers), max(0.0, *numbers)
            s = (high - low) / (2**bits - 1) or 1.0
            z = round(-low / s)
            found.append([(min(max(round(x / s) + z, 0), 2**bits - 1) - z) * s for x in numbers])
        else:
            s = max(map(abs, numbers)) * (2 / (2**bits - 1)) or 1.0
            found.append([min(max(round(x / s), -(2 ** (bits - 1))), 2 ** (bits - 1) - 1) * s for x in numbers])
    return torch.tensor(found, dtype=torch.float64)


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("options", ["", ":asym"])
def test_integers_are_rounded_by_row_group_and_tensor(bits, options, W):
    asymmetric = bool(options)
    rounded = scheme(f"int{bits}{options}").rounded
    assert_close(rounded(W, ""), by_loops(W, bits, asymmetric=asymmetric))
    groups = by_loops(W.reshape(-1, 8), bits, asymmetric=asymmetric).reshape(6, 40)
    assert_close(scheme(f"int{bits}:g8{options}").rounded(W, ""), groups)
    whole = by_loops(W.reshape(1, -1), bits, asymmetric=asymmetric).reshape(6, 40)
    assert_close(scheme(f"int{bits}:tensor{options}").rounded(W, ""), whole)
    # the last group is short
    left = by_loops(W[:, 32:], bits, asymmetric=asymmetric)
    assert_close(scheme(f"int{bits}:g16{options}").rounded(W, "")[:, 32:], left)


def test_floats_are_those_of_torch_and_of_the_paper(W):
    assert_close(nf4_levels(), torch.tensor(NF4, dtype=torch.float64), rtol=0, atol=2e-7)
    assert torch.equal(scheme("bf16").rounded(W, ""), W.bfloat16().double())
    assert torch.equal(scheme("fp16").rounded(W, ""), W.half().double())
    top = W.abs().max() / 448
    assert_close(scheme("fp8").rounded(W, ""), (W / top).to(torch.float8_e4m3fn).double() * top)
    rows = W.abs().amax(1, keepdim=True) / 57344
    assert_close(scheme("e5m2:channel").rounded(W, ""), (W / rows).to(torch.float8_e5m2).double() * rows)
    groups = W.reshape(-1, 8)
    scale = groups.abs().amax(1, keepdim=True)
    levels = torch.tensor(NF4, dtype=torch.float64)
    nearest = levels[(groups[..., None] / scale.clamp(min=1e-9)[..., None] - levels).abs().argmin(-1)] * scale
    assert_close(scheme("nf4:g8").rounded(W, ""), nearest.reshape(6, 40), rtol=1e-5, atol=1e-6)


def test_pruning_keeps_the_largest(W):
    half = scheme("prune:0.5").rounded(W, "")
    assert (half == 0).sum() == 120
    assert half[half != 0].abs().min() >= W[half == 0].abs().max()
    kept = scheme("prune:2:4").rounded(W, "").reshape(-1, 4)
    for group, left in zip(W.reshape(-1, 4), kept, strict=True):
        order = group.abs().argsort(descending=True)[:2]
        assert_close(left[order], group[order])
        assert (left != 0).sum() <= 2


GGUF_BITS = {"F16": 16, "BF16": 16, "Q4_0": 4.5, "Q4_1": 5, "Q5_0": 5.5, "Q5_1": 6, "Q8_0": 8.5, "TQ2_0": 2.0625}


@pytest.mark.parametrize("kind", GGUF_BITS)
def test_types_of_gguf_are_its_own(kind, rng):
    W = torch.randn(3, 256, generator=rng)
    type_ = gguf.GGMLQuantizationType[kind]
    expected = gguf.dequantize(gguf.quantize(W.numpy(), type_), type_)
    assert_close(scheme(f"gguf:{kind}").rounded(W, ""), torch.from_numpy(expected))
    assert scheme(f"gguf:{kind}").bits(W) == GGUF_BITS[kind]


def test_types_of_gguf_that_do_not_fit_are_refused():
    for kind in ("Q4_0", "Q8_0"):
        with pytest.raises(hs.errors.AssumptionError, match="multiple of 32 long, but 'w' has 40 columns"):
            scheme(f"gguf:{kind}").rounded(torch.zeros(2, 40), "w")
    with pytest.raises(hs.errors.AssumptionError, match="no quantiser for Q4_K"):
        scheme("gguf:Q4_K")


def test_bits_count_scales_and_masks(W):
    bits = {
        "int4": 4 + 16 / 40,
        "int4:g8": 6,
        "int4:g16": 4 + 16 * 3 / 40,
        "int4:g8:asym": 6.5,
        "int8:tensor": 8 + 16 / 240,
    }
    bits |= {"bf16": 16, "nf4": 4.4, "prune:0.5": 9, "prune:2:4": 9, "gguf:Q4_0": 4.5}
    for name, expected in bits.items():
        assert_close(scheme(name).bits(W), float(expected), msg=name)


def test_a_function_of_ones_own_is_a_scheme(W, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "def third(W):\n    return W / 3\nthird.bits = 3\ndef short(W):\n    return W[:1]\n", encoding="utf-8"
    )
    found = scheme(f"{file}:third")
    assert_close(found.error(W), -2 * W / 3)
    assert found.bits(W) == 3
    with pytest.raises(hs.errors.AssumptionError, match=r"must keep the shape \(6, 40\)"):
        scheme(f"{file}:short").error(W)
    with pytest.raises(hs.errors.AssumptionError, match="has no function 'fourth'"):
        scheme(f"{file}:fourth")
