"""Models of timm and diffusers from ColossalAI's tests; behaviors_of_others.md has the table."""

import sys
import types

import analyzed
import pytest
import torch

import shadowgraph as sg

# A torchvision built for another torch fails when it registers its operators' fake kernels; no model here needs them.
sys.modules.setdefault("torchvision._meta_registrations", types.ModuleType("torchvision._meta_registrations"))
timm = pytest.importorskip("timm")
diffusers = pytest.importorskip("diffusers")

# The families in the analyzer's zoo, including those that its tests skip because they fail there.
ZOO = ["beit_base_patch16_224", "cait_xxs24_224", "convmixer_768_32", "deit_tiny_distilled_patch16_224", "dm_nfnet_f0",
       "dpn68", "efficientnet_lite0", "eca_nfnet_l0", "ghostnet_100", "gmixer_24_224", "levit_128s", "mixer_s32_224",
       "mobilenetv3_small_050", "nest_tiny", "resmlp_12_224", "resnest14d", "resnetv2_50", "visformer_tiny",
       "xcit_nano_12_p8_224"]  # fmt: skip
LEFT_OUT = ["ese_vovnet19b_dw", "hardcorenas_a", "inception_v3", "pit_ti_224", "regnetv_040", "skresnet18",
            "swin_tiny_patch4_window7_224", "tf_efficientnetv2_b0", "tnt_s_patch16_224"]  # fmt: skip


@pytest.mark.parametrize("name", ZOO + LEFT_OUT)
def test_analyzer_timm_has_shapes_figures_and_saved_tensors(name):
    report = sg.profile(lambda: timm.create_model(name), "f32[2,3,224,224]", loss=lambda out: out.sum())
    analyzed.check(report)
    with torch.device("meta"):
        real = timm.create_model(name)
    assert report.dict()["parameters"] == sum(parameter.numel() for parameter in real.parameters())


@pytest.mark.parametrize("name", ["ghostnet_100", "levit_128s", "resmlp_12_224", "swin_tiny_patch4_window7_224"])
def test_analyzer_timm_models_of_graphs_give_what_the_model_gives(name):
    torch.manual_seed(0)
    model = timm.create_model(name).eval()
    x = torch.rand(1, 3, 224, 224)
    with torch.no_grad():
        wanted = model(x)  # runs first, because LeViT caches values gathered from its parameters in a dict
        assert torch.equal(sg.capture(model, x, device="cpu").compile(model)(x)[0], wanted)


def test_analyzer_a_diffusers_autoencoder_is_its_graph():
    torch.manual_seed(0)
    model = diffusers.AutoencoderKL().eval()
    x = torch.rand(1, 3, 64, 64)
    graph = sg.capture(model, x, device="cpu")
    with torch.no_grad():
        assert torch.equal(graph.compile(model)(x)[0], model(x).sample)


def test_analyzer_a_diffusers_unet_is_its_graph():
    torch.manual_seed(0)
    model = diffusers.UNet2DModel(block_out_channels=(32, 64, 64, 128)).eval()
    x, times = torch.rand(2, 3, 64, 64), torch.tensor([3, 700])
    graph = sg.capture(model, x, times, device="cpu")
    with torch.no_grad():
        assert torch.equal(graph.compile(model)(x, times)[0], model(x, times).sample)


@pytest.mark.parametrize("make, inputs", [
    (diffusers.AutoencoderKL, "f32[1,3,128,128]"), (diffusers.UNet2DModel, ["f32[1,3,128,128]", "i64[1]"]),
], ids=["autoencoder", "unet"])  # fmt: skip
def test_analyzer_training_diffusers_models_has_figures(make, inputs):
    figures = sg.profile(make, inputs, loss=lambda out: out.sample.sum(), optimizer="adamw").dict()
    with torch.device("meta"):
        real = make()
    assert figures["parameters"] == sum(parameter.numel() for parameter in real.parameters())
    assert figures["peak"]["bytes"] > 4 * figures["parameter_bytes"] > 0
    assert 0 < figures["flops"]["forward"] < figures["flops"]["backward"]
