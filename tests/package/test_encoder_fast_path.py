"""The inference fast path of nn.MultiheadAttention and nn.TransformerEncoder: FLOPs, time, and the padding mask."""

import pytest
import torch

import shadowgraph as sg


def encoder(width=256, **options):
    layer = torch.nn.TransformerEncoderLayer(width, 8, 4 * width, batch_first=True, **options)
    return torch.nn.TransformerEncoder(layer, 2).eval()


@pytest.fixture(params=["cpu", "cuda"])
def device(request):
    return request.param


def both_paths(make, inputs, **options):
    """Profiles of the fast path and of the parts that it fuses."""
    found = []
    for fast in (True, False):
        torch.backends.mha.set_fastpath_enabled(fast)
        try:
            found.append(sg.profile(make, inputs, mode="infer", **options).dict())
        finally:
            torch.backends.mha.set_fastpath_enabled(True)
    return found


@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("norm_first", [False, True])
def test_a_layer_has_the_flops_of_its_parts(device, activation, norm_first):
    fast, slow = both_paths(lambda: encoder(activation=activation, norm_first=norm_first), "f32[8,128,256]",
                            device=device)  # fmt: skip
    assert fast["operators"]["aten::_transformer_encoder_layer_fwd"] == 2
    assert fast["flops"]["forward"] == slow["flops"]["forward"]
    assert fast["elementwise_flops"]["forward"] == pytest.approx(slow["elementwise_flops"]["forward"], rel=0.1)
    assert fast["uncovered_operators"] == []


@pytest.mark.parametrize("batch", [1, 8])
def test_a_layer_has_about_the_time_of_its_parts(batch):
    fast, slow = both_paths(lambda: encoder(1024), f"f16[{batch},512,1024]", device="cuda", dtype=torch.float16,
                            spec="h100")  # fmt: skip
    assert 0.5 < fast["time"]["device_seconds"] / slow["time"]["device_seconds"] < 1.1


def test_attention_alone(device):
    class Attend(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = torch.nn.MultiheadAttention(256, 8, batch_first=True)

        def forward(self, x):
            return self.attention(x, x, x, need_weights=False)[0]

    fast, slow = both_paths(lambda: Attend().eval(), "f32[4,64,256]", device=device)
    assert fast["operators"]["aten::_native_multi_head_attention"] == 1
    # 2 * 4*64 * 4*256^2 for four projections, 4 * 4*64*64*256 for scores and values
    assert fast["flops"]["forward"] == slow["flops"]["forward"] == 134217728 + 16777216


def test_what_has_no_formula_marks_flops_and_time():
    def program(x):
        return torch.linalg.matrix_exp(x) @ x

    report = sg.profile(sg.capture(program, "f32[8,8]", device="cuda"), spec="h100")
    assert [row["op"] for row in report.dict()["uncovered_operators"]] == ["aten::linalg_matrix_exp"]
    assert [row["op"] for row in report.dict()["time"]["uncovered"]] == ["aten::linalg_matrix_exp"]
    text = str(report)
    flops, time = text.index("\nFLOPs"), text.index("\ntime ")
    assert "lower bound: FLOPs of 1 call" in text[flops:time]
    assert "lower bound: part of the time of 1 call" in text[time:]
    plain = sg.profile(sg.capture(lambda x: x @ x, "f32[8,8]", device="cuda"), spec="h100")
    assert "lower bound" not in str(plain) and plain.dict()["time"]["uncovered"] == []


class Padded(torch.nn.Module):
    def __init__(self, **options):
        super().__init__()
        layer = torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
        self.encoder = torch.nn.TransformerEncoder(layer, 2, **options)

    def forward(self, x, mask):
        return self.encoder(x, src_key_padding_mask=mask)


def profile_padded(mask, options=(), **more):
    make = lambda: Padded(**dict(options)).eval()  # noqa: E731
    return sg.profile(make, (torch.randn(3, 16, 64), mask), device="cuda", mode="infer", **more).dict()


def test_a_padding_mask_and_its_way_out():
    mask = torch.arange(16)[None] >= torch.tensor([16, 9, 5])[:, None]
    with pytest.raises(sg.Error, match="enable_nested_tensor=False"):
        profile_padded(mask)
    dense = profile_padded(mask, {"enable_nested_tensor": False})
    for reads in ({"left_aligned0": False}, {"bool": False}):
        assert profile_padded(mask, host_reads=reads)["peak"]["bytes"] == dense["peak"]["bytes"]
    with pytest.raises(sg.NoRuleError, match="nested tensor.*enable_nested_tensor=False"):
        profile_padded(mask, host_reads={"left_aligned0": True})


def test_a_known_mask_that_is_not_left_aligned_stays_dense_as_in_eager():
    with sg.fake("cuda"):
        mask = torch.zeros(3, 16, dtype=torch.bool, device="cuda")
        mask[:, 0] = True  # padding at the start
        assert Padded().cuda().eval()(torch.randn(3, 16, 64, device="cuda"), mask).shape == (3, 16, 64)
