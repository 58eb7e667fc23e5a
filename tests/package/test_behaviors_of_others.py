"""Behaviors that the tests of torchdistx, ColossalAI's analyzer, FlopCounterMode and make_fx check;
behaviors_of_others.md has the table."""

import pathlib
import re
import sys
import types

import analyzed
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import shadowgraph as sg

# A torchvision built for another torch fails when it registers its operators' fake kernels; no model here needs them.
sys.modules.setdefault("torchvision._meta_registrations", types.ModuleType("torchvision._meta_registrations"))
torchvision = pytest.importorskip("torchvision")

aten = torch.ops.aten
TABLE = pathlib.Path(__file__).parent / "behaviors_of_others.md"


class Program(nn.Module):
    """Wraps a function as a module; the function may run backward itself."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *inputs):
        with torch.enable_grad():
            return self.function(*inputs)


def module_in(figures, path):
    """Returns the module's entry in the tree of a report."""
    open_ones = [figures["modules"]]
    for module in open_ones:
        if module["path"] == path:
            return module
        open_ones += module.get("children", [])
    raise AssertionError(path)


# ---- torchdistx: tests/python


class TwoParameters(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Parameter(torch.ones(5))
        self.second = nn.Parameter(torch.ones(5))
        self.tied = self.first


def test_torchdistx_a_real_tensor_is_given_back():
    real = torch.ones(10)
    assert sg.materialize_tensor(real) is real


def test_torchdistx_a_tensor_is_the_same_however_often_it_is_made():
    module = sg.deferred_init(TwoParameters)
    made = sg.materialize_tensor(module.first)
    assert made is module.first and sg.materialize_tensor(module.first) is made
    assert sg.materialize_tensor(module.tied) is made


def test_torchdistx_a_module_is_deferred_while_any_tensor_is():
    assert not sg.is_deferred(TwoParameters())
    module = sg.deferred_init(TwoParameters)
    assert sg.is_deferred(module)
    sg.materialize_module(module)
    assert not sg.is_deferred(module)
    module = sg.deferred_init(TwoParameters)
    sg.materialize_tensor(module.first)
    assert sg.is_deferred(module)
    sg.materialize_tensor(module.second)
    assert not sg.is_deferred(module)


def test_torchdistx_cuda_is_pretended_inside_a_mode_alone():
    with sg.fake():
        assert torch.ones(10, device="cuda").device.type == "cuda"
    if not torch.cuda.is_available():
        with pytest.raises((AssertionError, RuntimeError)):
            torch.ones(10, device="cuda")


def test_torchdistx_a_machine_without_cuda_refuses_it():
    with sg.fake(device_count=0), pytest.raises(sg.Error):
        torch.ones(10, device="cuda")


def test_torchdistx_a_fake_goes_to_meta():
    with sg.fake("cuda"):
        fake = torch.ones(10, dtype=torch.float16, device="cuda")
    meta = fake.to("meta")
    assert meta.device.type == "meta" and fake.device.type == "cuda"
    assert (meta.dtype, meta.shape, meta.stride()) == (fake.dtype, fake.shape, fake.stride())
    assert torch.ones(3).to("meta").device.type == "meta"  # so does a real tensor


# ---- ColossalAI: tests/test_analyzer


class LinearOrConvolution(nn.Module):
    def __init__(self, bias):
        super().__init__()
        strided = {"bias": bias, "padding": 1, "stride": 2, "dilation": 2, "groups": 3}
        self.linear = nn.Linear(7, 7, bias=bias)
        self.forwards = nn.Conv2d(3, 6, 3, **strided)
        self.backwards = nn.ConvTranspose2d(3, 6, 3, **strided)

    def forward(self, x, select=0):
        return checkpoint(self.backwards if select else self.forwards, self.linear(x), use_reentrant=False)


@pytest.mark.parametrize("select", [0, 1])
@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_analyzer_biases_are_split_on_request(bias, split, select):
    model = LinearOrConvolution(bias)
    x = torch.rand(2, 3, 7, 7)
    graph = sg.capture(model, x, select)
    if split:
        graph.run_passes("split-bias")
    additions = [node for node in graph if node.target.startswith("aten::add.")]
    assert len(additions) == (2 if bias and split else 0)
    (result,) = graph.compile(model)(x)
    assert torch.allclose(result, model(x, select), atol=1e-6)


@pytest.mark.parametrize("alpha", [1, 2])
@pytest.mark.parametrize("beta", [1, 2])
@pytest.mark.parametrize("split", [False, True])
def test_analyzer_weighted_products_are_split(alpha, beta, split):
    def program(x):
        return torch.addmm(x, x, x, alpha=alpha, beta=beta)

    x = torch.rand(5, 5)
    graph = sg.capture(program, x)
    if split:
        graph.run_passes("split-bias")
    targets = [node.target for node in graph]
    assert ("aten::addmm" in targets) != split
    assert any(target.startswith("aten::add.") for target in targets) == split
    assert torch.allclose(graph.compile()(x)[0], program(x))


class Loop(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
        self.convolutions = nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.ConvTranspose2d(6, 6, 3, padding=1))

    def forward(self, x):
        for _ in range(x.shape[0]):
            x = self.second(self.first(x))
        return self.convolutions(x)


def test_analyzer_every_node_knows_its_module():
    graph = sg.capture(Loop(), torch.rand(2, 3, 3, 3))
    calls = [node for node in graph if not node.target.startswith("sg::")]
    modules = [node.module for node in calls]
    assert set(modules) == {"first", "second", "convolutions.0", "convolutions.1"}
    assert modules.index("second") > modules.index("first")


class NestedCheckpoints(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c, self.d, self.e = (nn.Linear(10, 10) for _ in range(5))

    def inner(self, x):
        return self.b(x)

    def middle(self, x):
        return self.a(x) + checkpoint(self.inner, x, use_reentrant=False)

    def left(self, x):
        return checkpoint(self.middle, x, use_reentrant=False) + self.b(x) + self.c(x)

    def outer(self, x):
        return checkpoint(self.left, x, use_reentrant=False) + checkpoint(self.d, x, use_reentrant=False) + self.e(x)

    def forward(self, x):
        return checkpoint(self.outer, x, use_reentrant=False)


def test_analyzer_nested_checkpoints_are_nested_regions():
    model = NestedCheckpoints()
    x = torch.rand(10, 10, requires_grad=True)
    graph = sg.capture(model, x)

    def around(region):
        return 0 if region is None else around(region.parent) + (region.kind == "checkpoint")

    checkpoints = [region for region in graph.regions if region.kind == "checkpoint"]
    assert sorted(around(region) for region in checkpoints) == [1, 2, 2, 3, 4]
    assert torch.equal(graph.compile(model)(x)[0], model(x).detach())


# Small models, one of each family in the analyzer's zoo.
ZOO = ["alexnet", "densenet121", "mobilenet_v2", "mobilenet_v3_small", "mnasnet0_5", "resnet18", "regnet_x_400mf",
       "resnext50_32x4d", "shufflenet_v2_x0_5", "squeezenet1_0", "vgg11", "vit_b_16", "wide_resnet50_2",
       "convnext_tiny"]  # fmt: skip


@pytest.mark.parametrize("name", ZOO)
def test_analyzer_a_zoo_has_shapes_figures_and_saved_tensors(name):
    report = sg.profile(getattr(torchvision.models, name), "f32[8,3,224,224]", loss=lambda out: out.sum())
    analyzed.check(report)


@pytest.mark.parametrize("name", ["resnet18", "squeezenet1_0", "shufflenet_v2_x0_5"])
def test_analyzer_fakes_look_like_what_a_real_model_gives(name):
    def run():
        torch.manual_seed(0)
        model = getattr(torchvision.models, name)()
        x = torch.rand(2, 3, 64, 64, requires_grad=True)
        out = model(x)
        out.sum().backward()
        return [(t.shape, t.dtype, t.stride()) for t in (out, x.grad, *(p.grad for p in model.parameters()))]

    with sg.fake("cpu"):
        faked = run()
    assert faked == run()


LAYERS = [
    *((kind, (3, 4, 2), {"padding": 1, "dilation": 2}, (2, 3, *[4] * size))
      for size, kind in ((1, nn.Conv1d), (2, nn.Conv2d), (3, nn.Conv3d),
                         (1, nn.ConvTranspose1d), (2, nn.ConvTranspose2d), (3, nn.ConvTranspose3d))),
    (nn.BatchNorm1d, (4,), {}, (2, 4)), (nn.BatchNorm2d, (4,), {}, (1, 4, 4, 4)),
    (nn.BatchNorm3d, (4,), {}, (1, 4, 4, 4, 4)), (nn.LayerNorm, (4,), {}, (1, 2, 3, 4)),
    *((kind, (3,), {"stride": 2}, (4, 5, 5)) for kind in (nn.MaxPool1d, nn.AvgPool1d)),
    *((kind, (3,), {}, (4, 5, 5)) for kind in (nn.AdaptiveMaxPool1d, nn.AdaptiveAvgPool1d)),
    *((kind, ((3, 2),), {"stride": (2, 1)}, (2, 4, 5, 5)) for kind in (nn.MaxPool2d, nn.AvgPool2d)),
    *((kind, ((3, 2),), {}, (2, 4, 5, 5)) for kind in (nn.AdaptiveMaxPool2d, nn.AdaptiveAvgPool2d)),
    *((kind, (), {}, (4, 3, 1, 2)) for kind in (nn.ReLU, nn.LeakyReLU, nn.SiLU, nn.GELU, nn.ELU, nn.Sigmoid, nn.Tanh,
                                                nn.Hardswish)),
]  # fmt: skip


@pytest.mark.parametrize("kind, args, kwargs, shape", LAYERS, ids=lambda value: getattr(value, "__name__", ""))
def test_analyzer_layers_on_fakes_are_as_eager(kind, args, kwargs, shape):
    def run():
        layer = kind(*args, **kwargs)
        x = torch.rand(shape, requires_grad=True)
        out = layer(x)
        out.sum().backward()
        return [(t.shape, t.dtype, t.stride()) for t in (out, x.grad)]

    with sg.fake("cpu"):
        faked = run()
    assert faked == run()


@pytest.mark.parametrize("function, arguments", [
    (lambda x: F.relu(x * 1, inplace=True), ["f32[2,3,224,224]"]),
    (lambda x: F.max_pool2d(x, kernel_size=3, stride=2, padding=1, dilation=2), ["f32[2,3,224,224]"]),
    (lambda x, y: torch.where(x > 0.5, x, y), ["f32[2,3,224,224]", "f32[2,3,224,224]"]),
], ids=["relu", "max_pool2d", "where"])  # fmt: skip
def test_analyzer_functions_without_products_have_work_too(function, arguments):
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, x, *others):
            return function(x * self.scale, *others)

    figures = sg.profile(Scaled(), arguments, device="cpu", loss=lambda out: out.sum()).dict()
    # FlopCounterMode counts matrix products and convolutions only
    assert figures["flops"] == {"forward": 0, "backward": 0, "optimizer": 0}
    assert figures["elementwise_flops"]["forward"] > 0 and figures["elementwise_flops"]["backward"] > 0


# ---- PyTorch: test/test_flop_counter.py


def flops_of(function, *inputs, device="cpu"):
    return sum(sg.profile(Program(function), list(inputs), device=device, mode="infer").dict()["flops"].values())


def T(*shape, requires_grad=False):
    return torch.randn(*shape, requires_grad=requires_grad)


def variety():
    linear = nn.Linear(9, 10)
    torch.mm(T(4, 5), T(5, 6))
    torch.addmm(T(4, 6), T(4, 5), T(5, 6), beta=0.5, alpha=0.5)
    torch.matmul(T(5, 6), T(6, 7))
    torch.einsum("ab,bc->ac", T(6, 7), T(7, 8))
    linear(T(8, 9))


def backward():
    a = torch.mm(T(4, 5, requires_grad=True), T(5, 6))
    torch.bmm(a.unsqueeze(0).expand(7, 4, 6), T(7, 6, 7)).sum().backward()


def backward_twice():
    a = T(4, 5, requires_grad=True)
    for _ in range(2):
        a.mm(a.t()).sum().backward()


class Products(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return torch.mm(x, x)

    @staticmethod
    def backward(ctx, gradient):
        return torch.mm(gradient, gradient) + torch.mm(gradient, gradient)


def autograd_function():
    Products.apply(T(5, 5, requires_grad=True)).sum().backward()


def transposed_in_a_loop():
    model = nn.ConvTranspose2d(4, 8, (2, 2), stride=2)
    x = torch.rand(1, 4, 30, 2)
    for _ in range(50):
        model(x).sum().backward()


def scripted():
    torch.jit.script(lambda_free_product)(T(5, 5))


def lambda_free_product(x):
    return torch.mm(x, x)


def into_out():
    x = T(10, 10)
    torch.mm(x, x, out=torch.zeros(10, 10))


# The program, and its FLOPs at 2 per multiply-add.
COUNTED = [
    (variety, 3012),  # 2 * (4*5*6 + 4*5*6 + 5*6*7 + 6*7*8 + 8*9*10)
    (lambda: torch.mm(T(4, 5), T(5, 6)), 2 * 4 * 5 * 6),
    (lambda: torch.bmm(T(3, 4, 5), T(3, 5, 6)), 2 * 3 * 4 * 5 * 6),
    (lambda: torch.addmm(T(4, 1), T(4, 5), T(5, 6)), 2 * 4 * 5 * 6),
    (lambda: torch.addmm(T(6), T(4, 5), T(5, 6)), 2 * 4 * 5 * 6),
    (lambda: torch.baddbmm(T(3, 4, 6), T(3, 4, 5), T(3, 5, 6)), 2 * 3 * 4 * 5 * 6),
    (lambda: torch.conv2d(T(2, 3, 6, 6), T(6, 3, 4, 4), padding=1), 2 * (2 * 5 * 5) * (4 * 4) * 3 * 6),
    (lambda: torch.conv1d(T(2, 3, 6), T(6, 3, 4), padding=1), 2 * (2 * 5) * 4 * 3 * 6),
    (backward, 5184),
    (backward_twice, 960),
    (autograd_function, 750),
    (transposed_in_a_loop, 1536000),
    (scripted, 250),
    (into_out, 2000),
    (lambda: T(4, 5).cos(), 0),
]


@pytest.mark.parametrize("program, flops", COUNTED, ids=[getattr(p, "__name__", "") for p, _ in COUNTED])
def test_flop_counter_programs(program, flops):
    assert flops_of(program) == flops
    with FlopCounterMode(display=False) as counter:
        program()
    assert counter.get_total_flops() == flops


def test_flop_counter_convolutions_and_their_backward():
    def total(convolve, x, weight):
        def program():
            convolve(torch.rand(x), torch.rand(weight)).sum()

        def step():
            convolve(torch.rand(x, requires_grad=True), torch.rand(weight, requires_grad=True)).sum().backward()

        forward = flops_of(program)
        assert flops_of(step) == 3 * forward
        return forward

    assert total(F.conv_transpose2d, (1, 1, 2, 2), (1, 1, 2, 2)) == 32
    assert total(F.conv2d, (1, 1, 2, 2), (1, 1, 1, 1)) == 8
    for given, made in ((1, 1), (1, 3), (3, 1), (3, 7), (2, 4), (4, 2)):
        assert total(F.conv2d, (1, given, 4, 4), (made, given, 2, 2)) > 0
        assert total(F.conv_transpose2d, (1, given, 4, 4), (given, made, 2, 2)) > 0


def test_flop_counter_a_whole_model_and_its_modules():
    class Trained(nn.Module):
        """The input requires grad, as in the upstream test."""

        def __init__(self):
            super().__init__()
            self.net = torchvision.models.resnet18()
            self.shift = nn.Parameter(torch.zeros(1, 3, 1, 1))

        def forward(self, x):
            return self.net(x + self.shift)

    report = sg.profile(Trained, "f32[1,3,224,224]", device="cpu", loss=lambda out: out.sum())
    figures = report.dict()
    assert figures["flops"]["forward"] + figures["flops"]["backward"] == 10884440064
    assert module_in(figures, "net.layer1")["flops"] == {"forward": 924844032, "backward": 1849688064}


def attend(tokens, keys, heads, key_heads, backend, backward, device="cuda"):
    from torch.nn.attention import sdpa_kernel

    def program():
        options = {"device": device, "dtype": torch.float16, "requires_grad": True}
        q = torch.randn(4, heads, tokens, 64, **options)
        k, v = (torch.randn(4, key_heads, keys, 64, **options) for _ in range(2))
        with sdpa_kernel(backend):
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=heads != key_heads)
            if backward:
                out.sum().backward()

    return flops_of(program, device="cuda")


def test_flop_counter_attention_by_any_kernel():
    from torch.nn.attention import SDPBackend

    math, flash, efficient, cudnn = (SDPBackend.MATH, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION,
                                     SDPBackend.CUDNN_ATTENTION)  # fmt: skip
    assert {attend(128, 128, 8, 8, kind, False) for kind in (math, flash, efficient, cudnn)} == {134217728}
    assert attend(128, 128, 8, 8, math, True) == 3 * 134217728
    assert {attend(128, 128, 8, 8, kind, True) for kind in (flash, efficient, cudnn)} == {134217728 * 7 // 2}
    assert {attend(128, 256, 8, 8, kind, False) for kind in (math, efficient)} == {268435456}
    assert attend(128, 256, 8, 8, math, True) == 805306368
    assert attend(128, 256, 8, 8, efficient, True) == 939524096
    # Grouped-query attention costs as many FLOPs as attention with as many key heads as query heads.
    assert attend(128, 128, 32, 8, flash, False) == attend(128, 128, 32, 32, flash, False)


def test_flop_counter_packed_sequences_by_flash():
    lengths = (30, 30, 30, 33)
    x = ["bf16[123,4,16]", torch.tensor([0, 30, 60, 90, 123], dtype=torch.int32)]

    def packed(x, offsets):
        return aten._flash_attention_forward(x, x, x, offsets, offsets, 40, 40, 0.0, False, False)[0]

    def alone(x):
        return aten._flash_attention_forward(x, x, x, None, None, x.shape[1], x.shape[1], 0.0, False, False)[0]

    # The lengths are known from the offsets, a real tensor.
    assert flops_of(packed, *x, device="cuda") == 4 * 4 * 16 * sum(length**2 for length in lengths)
    with FlopCounterMode(display=False) as counter:
        alone(torch.empty(2, 128, 8, 64, dtype=torch.bfloat16, device="meta"))
    assert flops_of(alone, "bf16[2,128,8,64]", device="cuda") == counter.get_total_flops()


def test_flop_counter_products_of_eight_bits():
    def program():
        a = torch.randn(48, 80).to(torch.float8_e4m3fn)
        b = torch.randn(112, 80).to(torch.float8_e4m3fn).t()
        one = torch.ones(())
        torch._scaled_mm(a, b, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)

    assert flops_of(program, device="cuda") == 860160


def test_flop_counter_structures_between_modules():
    class Product(nn.Module):
        def forward(self, given):
            x = given["a"].relu_()
            return {"a": torch.mm(x, x)}

    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = Product(), Product()
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, x):
            return self.b(self.a({"a": x * self.scale}))["a"]

    report = sg.profile(Two(), "f32[10,10]", device="cpu", loss=lambda out: out.sum()).dict()
    assert report["flops"]["forward"] + report["flops"]["backward"] == 12000
    for path in ("a", "b"):
        assert sum(module_in(report, path)["flops"].values()) == 6000


def test_flop_counter_inference_mode_counts_alike():
    net = torchvision.models.resnet18().eval()

    def inference(x):
        with torch.inference_mode():
            return net(x)

    x = "f32[1,3,224,224]"
    assert flops_of(inference, x) == flops_of(net, x) == 3628146688


# ---- PyTorch: test/test_proxy_tensor.py, its checks of programs and of their traces


def grad_of(x):
    x = x.detach().requires_grad_()
    return torch.autograd.grad(x.cos().cos().sum(), x)


def backward_of(x):
    x = x.detach().requires_grad_()
    x.cos().cos().sum().backward()
    return x.grad


def metadata_in_place(x):
    x = x.clone()
    x.unsqueeze_(-1)
    assert x.shape[-1] == 1
    return x


def written_constant(x):
    value = torch.tensor(1.0)
    value.add_(2)
    return torch.full((100, 100), value.item()) + x.sum()


def no_grad_in_between(x):
    b = x.sin()
    torch.set_grad_enabled(False)
    c = b.cos()
    torch.set_grad_enabled(True)
    return b + c.sin()


def strides(x):
    assert x.is_contiguous() and not x[:, ::2].is_contiguous() and not x[:, 1].is_contiguous()
    y = x.permute(0, 3, 1, 2)
    assert y.is_contiguous(memory_format=torch.channels_last) and not y.is_contiguous()
    return y


def copied_zeros(x):
    y = x.new_zeros(x.size())
    y.copy_(x)
    return y


def set_to_its_size(x):
    x = x.clone()
    x[0] = x.size(0)
    return x


def written_in_part(x):
    rows, columns = x.size()
    tokens = torch.zeros(rows, columns + 64).to(x).fill_(0)
    tokens[:, :columns] = x.repeat_interleave(1, 0)
    return tokens


def twice_normalized(x):
    layer = nn.LayerNorm(6)
    return layer(layer(x))


TRACED = [
    (torch.sin, [T(3)]),
    (lambda a, b: a + b, [T(3), torch.tensor(5)]),
    (F.linear, [T(4, 4), T(4, 4), T(4)]),
    (no_grad_in_between, [T(4)]),
    (copied_zeros, [T(2)]),
    (lambda x: aten.norm.Scalar(x, 2.0), [T(3)]),
    (lambda *args: sum(args), [T(2), T(2)]),
    (grad_of, [T(3)]),
    (backward_of, [T(3)]),
    (metadata_in_place, [T(5)]),
    (lambda x: torch.full((10, 10), float("inf")) + x.sum(), [T(3)]),
    (written_constant, [T(3)]),
    (lambda x: x * torch.unbind(torch.tensor([2]), 0)[0].item(), [T(3)]),
    (F.silu, [T(4, 4)]),
    (lambda a, b, c: torch.addmm(a, b, c) + torch.addmm(a, b, c, beta=2, alpha=1), [T(5, 5), T(5, 5), T(5, 5)]),
    (strides, [T(2, 3, 4, 5)]),
    (lambda a: aten.nll_loss_forward(a, torch.zeros(1, dtype=torch.long), None, 1, 10)[0], [T(1, 10)]),
    (lambda x, y: x + y + torch.tensor([2.0, 3.0]), [T(2), T(2)]),
    (aten.alias, [T(2)]),
    (lambda x: torch.var_mean(x.cos(), dim=0)[0] * 2, [T(5, 5)]),
    (twice_normalized, [T(3, 6)]),
    (set_to_its_size, [T(10)]),
    (written_in_part, [T(4, 6)]),
    (lambda x: x.new_empty(0).resize_(x.size(0)).fill_(2), [T(3)]),
    (lambda a, b: a.repeat_interleave(b.size(0), 0), [T(4, 6), T(5)]),
    (lambda a, b: a * b, [T(1, 2), T(3, 1)]),
    (lambda a: a / a.size(-1) ** 0.5, [T(4)]),
    (lambda a: a / a.shape[0], [T(4)]),
    (lambda x: x.size(0) + x, [T(5)]),
    (lambda a, b: a.view(b.shape[0]) + b.sum(), [T(4, 2), T(8)]),
    (lambda x, y: x + y, [T(8)[3:], T(5)]),
]


@pytest.mark.parametrize("program, inputs", TRACED, ids=[getattr(program, "__name__", "") for program, _ in TRACED])
def test_proxy_a_capture_computes_what_the_program_does(program, inputs):
    graph = sg.capture(program, *inputs)
    others = [torch.randn_like(x) if x.is_floating_point() else x + 1 for x in inputs]
    # Views of other storages keep the captured offsets.
    others = [x.as_strided(x.shape, x.stride()) if x.storage_offset() == given.storage_offset() else given
              for x, given in zip(others, inputs)]  # fmt: skip
    torch.manual_seed(0)
    expected = program(*others)
    torch.manual_seed(0)
    found = graph.compile()(*others)
    torch.manual_seed(0)
    by_fx = graph.to_fx()
    names = [node.target for node in by_fx.graph.nodes if node.op == "placeholder"]
    assert len(names) == len(others)
    for result in (found, by_fx(*others)):
        result = result[0] if isinstance(result, (tuple, list)) else result
        assert torch.equal(result.detach(), (expected[0] if isinstance(expected, tuple) else expected).detach())


def test_proxy_factories_are_traced_and_overloads_named():
    graph = sg.capture(lambda x: x.cos() + torch.randn(x.shape), "f32[3]")
    assert [node.target for node in graph if node.target.startswith("aten::")] == \
        ["aten::cos", "aten::randn", "aten::add.Tensor"]  # fmt: skip


def test_proxy_captures_inside_captures_stay_apart():
    def inner():
        value = torch.tensor(1.0)
        value.add_(2)
        return torch.full((10, 10), 3.0).sum()

    def outer(x):
        graphs.append(sg.capture(inner))
        return torch.sigmoid(x)

    graphs = []
    targets = [node.target for node in sg.capture(outer, "f32[3]")]
    assert "aten::sigmoid" in targets and "aten::sum" not in targets
    assert "aten::sum" in [node.target for node in graphs[0]]


def test_proxy_what_data_decides_is_a_typed_error():
    for read in (lambda x: torch.allclose(x, torch.rand(3)),
                 lambda x: torch.tensor([2.0]).normal_().item() == 2.1):  # fmt: skip
        with pytest.raises(sg.DataDependentError):
            sg.capture(lambda x, read=read: x if read(x) else -x, "f32[3]")
    # Known contents work at any size; make_fx gives up on 1000 elements.
    graph = sg.capture(lambda: torch.full((2,), torch.tensor([2]).repeat(1000).sum().item()))
    assert torch.equal(graph.compile()()[0], torch.tensor([2000, 2000]))


def test_proxy_values_keep_what_they_were_when_metadata_changes():
    def program(x):
        y = x.clone()
        y.unsqueeze_(0)
        return y

    shapes = [tuple(value.shape) for node in sg.capture(program, "f32[3]") for value in node.results]
    assert shapes == [(3,), (3,), (1, 3)]


def test_proxy_a_step_with_its_update_is_the_programs():
    net = torchvision.models.resnet18()
    graph = sg.capture_training_step(net, "f32[2,3,64,64]", loss=lambda out: out.sum(),
                                     optimizer=lambda p: torch.optim.SGD(p, lr=1e-4))  # fmt: skip
    x = torch.randn(2, 3, 64, 64)
    reference = torchvision.models.resnet18()
    reference.load_state_dict(net.state_dict())
    step = graph.compile(net)
    replay = step.run(x)
    reference(x).sum().backward()
    torch.optim.SGD(reference.parameters(), lr=1e-4).step()
    for name, parameter in reference.named_parameters():
        assert torch.equal(replay.gradients[name], parameter.grad), name
        assert torch.equal(net.get_parameter(name), parameter), name


def test_proxy_inputs_can_be_pickled_afterwards():
    import pickle

    x = torch.randn(2)
    sg.capture(lambda x: x * 2, x)
    assert torch.equal(pickle.loads(pickle.dumps(x)), x)


def test_proxy_a_branch_on_a_size_is_taken_as_it_is():
    def program(x):
        return x.cos() if x.shape[0] < 20 else x

    for rows, calls in ((3, ["aten::cos"]), (25, [])):
        graph = sg.capture(program, f"f32[{rows},4]")
        assert [node.target for node in graph if node.target.startswith("aten::")] == calls


def test_proxy_sizes_that_data_decides_have_names():
    def program(x):
        y = x.clone()
        first, again = y.nonzero(), y.nonzero()
        assert first.shape == again.shape
        y.normal_()
        return first, y.nonzero()

    with pytest.raises(sg.DataDependentError):
        sg.capture(program, "f32[4]")
    graph = sg.capture(program, "f32[4]", options={"data_sizes": {"nonzero0": 3, "nonzero1": 2}})
    assert [tuple(value.shape) for node in graph for value in node.results if "nonzero" in node.target] == \
        [(3, 1), (3, 1), (2, 1)]  # fmt: skip


# ---- The table


def rows():
    return re.findall(r"^\| `(\w+)` \| (holds|otherwise|open|no counterpart) \| (.*)\|$", TABLE.read_text(), re.M)


def test_the_tables_tests_exist():
    here = set(globals())
    for name, state, why in rows():
        tests = re.findall(r"`(test_\w+)", why)
        assert state in ("open", "no counterpart") or tests, f"{name}: no test"
        for test in tests:
            assert test in here or any(f"def {test}(" in file.read_text()
                                       for file in TABLE.parent.glob("test_*.py")), f"{name}: no {test}"  # fmt: skip


def test_the_tables_counts_are_its_rows():
    text = TABLE.read_text()
    for state in ("holds", "otherwise", "open", "no counterpart"):
        (said,) = re.findall(rf"^- {state}: (\d+)", text, re.M)
        assert int(said) == sum(row[1] == state for row in rows()), state
    assert len(rows()) == len(re.findall(r"^\| `test_", text, re.M))
