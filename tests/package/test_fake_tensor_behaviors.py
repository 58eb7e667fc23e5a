"""Claims of torch's own FakeTensor tests, checked for our fakes; fake_tensor_behaviors.md has the table.

Where eager can run on the CPU, the same program runs there and the results are compared.
"""

import contextlib
import copy
import gc
import pathlib
import pickle
import re
import subprocess
import sys
import weakref

import numpy
import pytest
import torch
import torch.nn.functional as F

import shadowgraph as sg

aten = torch.ops.aten
DEVICES = ("cpu", "cuda")
TABLE = pathlib.Path(__file__).parent / "fake_tensor_behaviors.md"


def described(tensor):
    """Describes all properties that a fake shares with the real tensor except the device."""
    return tuple(tensor.shape), tensor.stride(), tensor.storage_offset(), tensor.dtype, tensor.requires_grad


def leaves(value):
    return [each for each in torch.utils._pytree.tree_leaves(value) if isinstance(each, torch.Tensor)]


def in_process(code):
    """Runs the code in a separate process, because it may crash; returns its output."""
    code = "import torch, shadowgraph as sg\n" + code
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, f"exit status {done.returncode}: {done.stderr[-300:]}"
    return done.stdout


# ---- Programs whose fakes look like eager's tensors: run for real on the CPU, and as fakes on the CPU and on CUDA.


def square_of_a_product(d):
    p = torch.randn(4, 2, requires_grad=True, device=d)
    y = torch.mm(torch.randn(8, 4, device=d), p).square().sum()
    y.backward()
    return y, p.grad


def nan_to_num(d):
    made = (torch.rand(4, dtype=dtype, device=d) for dtype in (torch.float16, torch.float32))
    return [torch.nan_to_num(x, nan=nan) for x in made for nan in (None, 0.0)]


def setitem(d):
    x = torch.rand(16, 1, device=d)
    x[..., 0] = 0
    x[3] = torch.rand(1, device=d)
    return x


def half_of_overlapping(d):
    return torch.empty_strided((1, 3, 27, 40), (0, 1, 120, 3), device=d).half()


def upsample_of_few_channels(d):
    x = torch.empty_strided((3, 27, 40), (1, 120, 3), device=d)
    made = aten.upsample_bilinear2d(x.unsqueeze(0), [50, 75], False)
    assert made.is_contiguous()
    return made


def split_of_nothing(d):
    x = torch.empty(0, device=d)
    (part,) = torch.split(x, 0)
    assert part is not x and part._is_view()
    return part


def scalars_promote(d):
    counts, x = torch.zeros(2, dtype=torch.int32, device=d), torch.empty(2, 2, device=d)
    return counts * 2.0, counts + 1, x / x.long(), counts / counts, x * True, counts + 1j


def full(d):
    return [torch.full((4, 4), value, device=d) for value in (1, 1.0, True, 1j)]


def channels_last_through_pooling_backward(d):
    x = torch.rand(2, 3, 4, 4, device=d).to(memory_format=torch.channels_last)
    made = aten._adaptive_avg_pool2d_backward(torch.rand(2, 3, 4, 4, device=d), x)
    assert made.is_contiguous(memory_format=torch.channels_last)
    return made


def unsqueeze_copy(d):
    made = aten.unsqueeze_copy(torch.ones(2, 2, 7, device=d), 1)
    assert not made._is_view()
    return made


def forward_mode(d):
    with torch.autograd.forward_ad.dual_level():
        x = torch.randn(3, device=d)
        made = 4312491 * torch.autograd.forward_ad.make_dual(x, torch.ones_like(x))
        return made, torch.autograd.forward_ad.unpack_dual(made).tangent


def batch_norm_in_inference(d):
    net = torch.nn.Sequential(torch.nn.BatchNorm2d(10), torch.nn.ReLU()).eval().to(d)
    return net(torch.randn(2, 10, 8, 8, device=d))


def convolution_backward_of_one_channel(d):
    grad = torch.empty_strided((16, 1, 16, 16), (256, 256, 16, 1), device=d)
    x = torch.empty_strided((16, 8, 16, 16), (2048, 1, 128, 8), device=d)
    weight = torch.empty_strided((1, 8, 3, 3), (72, 9, 3, 1), device=d)
    ones = [1, 1]
    return aten.convolution_backward(grad, x, weight, [1], ones, ones, ones, False, [0, 0], 1, [True, True, False])[:2]


def antialiased_backward(d):
    x = torch.randn(1, 3, 201, 192, requires_grad=True, device=d)
    made = F.interpolate(x, size=[26, 26], mode="bilinear", align_corners=False, antialias=True)
    made.sum().backward()
    return made, x.grad


def hermitian_fft_into_out(d):
    out = torch.randn(5, 3, 10, device=d)
    made = torch._C._fft.fft_hfft2(torch.randn(5, 6, 7, device=d), s=(3, 10), dim=(1, 2), norm="ortho", out=out)
    assert made is out
    return made


def splits(d):
    return torch.split(torch.randn(6, 4, device=d), 2)


def randperm(d):
    return [torch.randperm(n, device=d) for n in (10, 5, 0)]


def recurrent_layer_with_projection(d):
    lstm = torch.nn.LSTM(2, 3, num_layers=2, proj_size=2, device=d)
    state = torch.randn(2, 5, 2, device=d), torch.randn(2, 5, 3, device=d)
    with torch.backends.cudnn.flags(enabled=False):
        output, (hidden, cell) = lstm(torch.randn(4, 5, 2, device=d), state)
    output.sum().backward()
    return [tuple(each.shape) for each in (output, hidden, cell, *(p.grad for p in lstm.parameters()))]


def conjugates_and_negatives(d):
    z = torch.randn(4, 3, dtype=torch.complex64, device=d)
    w = z.conj()
    made = w, torch._neg_view(z), w.imag, w + 1, w.T, w.clone(), w.resolve_conj()
    return made, [(each.is_conj(), each.is_neg()) for each in made]


LIKE_EAGER = (
    square_of_a_product, nan_to_num, setitem, half_of_overlapping, upsample_of_few_channels, split_of_nothing,
    scalars_promote, full, channels_last_through_pooling_backward, unsqueeze_copy, forward_mode,
    batch_norm_in_inference, convolution_backward_of_one_channel, antialiased_backward, hermitian_fft_into_out, splits,
    randperm, recurrent_layer_with_projection, conjugates_and_negatives,
)  # fmt: skip


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("program", LIKE_EAGER, ids=lambda program: program.__name__)
def test_as_eager(program, device):
    def answer(value):
        return torch.utils._pytree.tree_map_only(torch.Tensor, described, value)

    real = program("cpu")
    with sg.fake(device):
        fake = program(device)
    assert answer(fake) == answer(real)
    assert all(sg.is_fake(each) and each.device.type == device for each in leaves(fake))


# ---- Creating tensors


def test_factories_and_what_is_computed_from_them_are_fake():
    with sg.fake("cpu"):
        x = torch.rand(4, 4, device="cpu")
        assert sg.is_fake(x) and sg.is_fake(x + x)
    assert x.device.type == "cpu"


def test_cuda_is_there_without_being_initialized():
    with sg.fake("cuda"):
        made = [factory(10, device="cuda") for factory in (torch.empty, torch.ones, torch.zeros, torch.rand)]
        made += [torch.tensor(3.14, device="cuda"), torch.tensor([[3.14, 2], [1, 2]], device="cuda")]
    assert all(sg.is_fake(x) and x.device == torch.device("cuda:0") for x in made)
    if torch.version.cuda is None:
        assert not torch.cuda.is_available()


@pytest.mark.parametrize("make", [torch.nn.Parameter, "flat"])
def test_parameters_are_parameters(make):
    if make == "flat":
        make = pytest.importorskip("torch.distributed.fsdp._flat_param").FlatParameter
    real = make(torch.rand(2, 2), requires_grad=True)
    with sg.fake("cpu"):
        fake = make(torch.rand(2, 2), requires_grad=True)
    assert isinstance(fake, make) and isinstance(fake, torch.nn.Parameter) and type(fake) is type(real)
    assert sg.is_fake(fake) and described(fake) == described(real)


@pytest.mark.parametrize("name", ["zeros", "ones", "empty", "rand", "randn", "full", "randint"])
def test_likes_go_where_they_are_told(name):
    more = {"full": (3,), "randint": (9,)}.get(name, ())
    real = getattr(torch, name + "_like")(torch.rand(4, 4), *more)
    with sg.fake("cuda"):
        x = torch.rand(4, 4)
        for device in (None, "cpu", "cuda"):
            fake = getattr(torch, name + "_like")(x, *more, device=device)
            assert sg.is_fake(fake) and fake.device.type == (device or "cpu") and described(fake) == described(real)


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.tensor(numpy.zeros([4, 4])), lambda: torch.from_numpy(numpy.zeros(3)),
        lambda: torch.as_tensor(numpy.zeros(3)), lambda: torch.Tensor([1, 2, 3]), lambda: torch.LongTensor(3),
    ],
)  # fmt: skip
def test_arrays_and_lists_become_fakes(make):
    real = make()
    with sg.fake("cpu"):
        fake = make()
        assert sg.is_fake(fake) and described(fake) == described(real)
        assert "Long" in fake.type() or fake.tolist() == real.tolist()


@pytest.mark.parametrize(
    "make",
    [lambda x: x.new(10, 10), lambda x: x.new([1, 2, 3, 4]), lambda x: x.new(), lambda x: x.new(x.new_empty(1))],
)
def test_new(make):
    real = make(torch.rand(16, 1))
    for device in DEVICES:
        with sg.fake(device):
            fake = make(torch.rand(16, 1, device=device))
            assert sg.is_fake(fake) and fake.device.type == device and described(fake) == described(real)


@pytest.mark.parametrize("real_tensors", ["constant", "convert", "refuse"])
def test_an_operator_of_numbers_alone_gives_a_fake(real_tensors):
    with sg.fake("cuda", real_tensors=real_tensors):
        made = torch.div(3, 2)
        assert sg.is_fake(made) and made.item() == 1.5 and described(made) == described(torch.tensor(1.5))
        assert made.device.type == "cpu" and (made + torch.rand(2, device="cuda")).is_cuda


@pytest.mark.parametrize("make", [torch.randn, lambda *size, dtype: torch.empty(*size, dtype=dtype).normal_()])
def test_normal_numbers_are_floating_point(make):
    with pytest.raises(NotImplementedError, match="not implemented for 'Long'"):
        make(2, dtype=torch.int64)
    with sg.fake("cpu"), pytest.raises(RuntimeError, match="not implemented for 'Long'"):
        make(2, dtype=torch.int64)


# ---- Devices


@pytest.mark.parametrize(
    "dtype",
    [torch.uint8, torch.int64, torch.bool, torch.float16, torch.bfloat16, torch.float32, torch.complex64]
    + [torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz],
)
def test_indices_may_be_on_the_cpu(dtype):
    real = torch.ones(2048, dtype=dtype)[torch.zeros(36, dtype=torch.int64)]
    with sg.fake("cuda"):
        made = torch.ones(2048, device="cuda", dtype=dtype)[torch.zeros(36, dtype=torch.int64)]
    assert made.is_cuda and described(made) == described(real)


def test_shapes_and_types_are_taken_without_devices():
    with sg.fake("cuda"):
        x, y = torch.empty(1), torch.empty(8, 8, device="cuda")
        assert x.resize_as_(y) is x and x.shape == (8, 8) and x.device.type == "cpu"
        moved = torch.rand(16, 1, dtype=torch.float64).type_as(y)
        assert moved.is_cuda and moved.dtype == torch.float32 and moved.shape == (16, 1)


def test_numbers_on_the_cpu_go_with_any_device():
    with sg.fake("cuda"):
        y = torch.rand(4, 4, device="cuda")
        for made in (torch.tensor(0.0) + y, y + torch.tensor(0.0, dtype=torch.float64)):
            assert made.shape == (4, 4) and made.device == y.device and made.dtype == torch.float32


@pytest.mark.parametrize(
    "call",
    [
        lambda x, y: torch.lerp(torch.tensor(0.0), y, x), lambda x, y: torch.sin(x, out=y), lambda x, y: x.add_(y),
        lambda x, y: x + y, lambda x, y: x[torch.tensor([0], device="cuda")],
    ],
)  # fmt: skip
def test_two_devices_are_a_typed_error(call):
    with sg.fake("cuda"), pytest.raises(sg.Error, match="cuda:0 and cpu|either on cpu or on the same"):
        call(torch.rand(4, 4), torch.rand(4, 4, device="cuda"))


def test_copies_go_anywhere():
    with sg.fake("cuda"):
        x, y = torch.rand(8, 8), torch.rand(8, 8, device="cuda")
        assert x.copy_(y).device.type == "cpu" and y.copy_(x).is_cuda
        assert aten.copy(x, y).device.type == "cpu" and aten.copy(y, x).is_cuda
        assert aten.slice_scatter(x, y[2:], start=2).device.type == "cpu"
        assert aten.slice_scatter(y, x[2:], start=2).is_cuda


@pytest.mark.parametrize("out_on", DEVICES)
@pytest.mark.parametrize("name", ["copy", "slice_scatter"])
def test_copies_into_out_go_anywhere(name, out_on):
    # The generated CompositeExplicitAutograd kernels do not check devices.
    with sg.fake("cuda"):
        x, y, out = torch.rand(8, 8), torch.rand(8, 8, device="cuda"), torch.empty(8, 8, device=out_on)
        assert getattr(aten, name).out(x, y, out=out) is out and out.device.type == out_on


def test_a_device_without_an_index_is_the_current_one():
    with sg.fake("cuda"):
        x, y = torch.empty(1, device="cuda"), torch.empty(1, device=f"cuda:{torch.cuda.current_device()}")
        assert (x + y).device == x.device == y.device == torch.device("cuda:0")


def test_moving_to_where_it_is_gives_the_tensor_itself():
    with sg.fake("cuda"):
        x = torch.rand(16, 1)
        y = x.to(torch.device("cuda"))
        assert x.to(torch.device("cpu")) is x and y.is_cuda and y.to(torch.device("cuda:0")) is y


def test_index_put_takes_numbers_and_indices_from_the_cpu():
    with sg.fake("cuda"):
        x, index = torch.randn(2, 2, 3, device="cuda"), torch.tensor([1, 1])
        for where in (index, index.cuda()):
            assert described(aten.index_put(x, [where], torch.tensor(5.0))) == described(x)
            assert aten.index_put_(x, [where], torch.tensor(5.0)) is x
            assert aten.index_put(x, [where], torch.randn(2, 2, 3, device="cuda")).is_cuda


@pytest.mark.parametrize("accumulate", [False, True])
def test_index_put_refuses_values_from_the_cpu(accumulate):
    with sg.fake("cuda"):
        x, y, index = torch.randn(2, 2, 3, device="cuda"), torch.randn(2, 2, 3), torch.tensor([1, 1])
        with pytest.raises(sg.Error):
            aten.index_put(x, [index], y, accumulate)
        with pytest.raises(sg.Error):
            x[[1, 1]] = y
        # A scalar CPU tensor is accepted where a mask selects: then the call is masked_fill_.
        mask = torch.ones(2, dtype=torch.bool, device="cuda")
        assert aten.index_put(x, [mask], torch.tensor([5.0])).is_cuda
        with pytest.raises(sg.Error):
            aten.index_put(x, [index], torch.tensor([5.0]))


def test_index_put_takes_indices_from_cuda_on_the_cpu():
    # Eager moves indices, and a value of zero dimensions, to the device of the indexed tensor (make_info).
    with sg.fake("cuda"):
        x, index = torch.rand(4, 4), torch.tensor([2], device="cuda")
        assert aten.index_put(x, [index], torch.rand(4)).device.type == "cpu"
        assert aten.index_put(x, [index], torch.tensor(5.0, device="cuda")).device.type == "cpu"
        with pytest.raises(sg.Error):
            aten.index_put(x, [index], torch.rand(4, device="cuda"))


@pytest.mark.parametrize("kind", ["made in the mode", "real"])
def test_meta_tensors_stay_meta_until_moved(kind):
    def make():
        return torch.rand(4, device="meta")

    x = make() if kind == "real" else None
    with sg.fake("cpu"):
        x = make() if x is None else x
        assert sg.is_fake(x + x) and (x + x).device.type == "meta"
        assert x.to("cpu").device.type == "cpu" and sg.is_fake(x.to("cpu"))
        with pytest.raises(sg.Error):
            x + torch.rand(4)


def test_embedding_bag_on_meta_takes_indices_from_the_cpu():
    def run():
        bag = torch.nn.EmbeddingBag(10, 3, mode="sum", device="meta")
        return bag(torch.tensor([1, 2, 4, 5, 4, 3, 2, 9]), torch.tensor([0, 4]))

    real = run()
    with sg.fake("cpu"):
        fake = run()
    assert described(fake) == described(real) and fake.device == real.device


@pytest.mark.parametrize("program", ["dtype", "device"])
def test_defaults_are_asked_at_every_call(program):
    x = torch.tensor([1, 2], dtype=torch.int32)
    try:
        with sg.fake("cuda"):
            if program == "dtype":
                for dtype in (torch.float32, torch.float16, torch.float32):
                    torch.set_default_dtype(dtype)
                    assert (x + 1.0).dtype == dtype
            else:
                for device in ("cpu", "cuda", "cpu"):
                    torch.set_default_device(device)
                    assert torch.tensor([1, 2]).device.type == (torch.rand(2) + 1).device.type == device
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_default_device(None)


# ---- Kernels of libraries


@pytest.mark.parametrize("mode", [0, 1, 2])
def test_embedding_bag_with_all_its_results(mode):
    def run():
        indices, offsets = torch.randint(0, 6, (6,)), torch.arange(2)
        return aten._embedding_bag(torch.ones(6, 1), indices, offsets, False, mode)

    real = run()
    with sg.fake("cpu"):
        assert [described(each) for each in run()] == [described(each) for each in real]


def test_convolutions_check_their_channels():
    with sg.fake("cuda"):
        made = F.conv2d(torch.randn(1, 4, 5, 5).cuda(), torch.randn(8, 4, 3, 3).cuda(), padding=1)
        assert made.shape == (1, 8, 5, 5) and made.is_cuda
    for device in DEVICES:
        with sg.fake(device), pytest.raises(RuntimeError, match="to have 20 channels, but got 7"):
            F.conv2d(torch.randn(1, 7, 10, 5, device=device), torch.randn(8, 20, 3, 3, device=device), padding=1)
    with pytest.raises(RuntimeError, match="to have 20 channels, but got 7"):
        F.conv2d(torch.randn(1, 7, 10, 5), torch.randn(8, 20, 3, 3), padding=1)


@pytest.mark.parametrize("with_cell", [True, False])
def test_cudnn_rnn_returns_its_weights(with_cell):
    with sg.fake("cuda"):

        def make(*sizes):
            return torch.randn(*sizes, device="cuda")

        layers = [make(64, width) if width else make(64) for width in [16, 16, 0, 0] * 2 + [32, 16, 0, 0] * 2]
        buffer, hidden = make(10240), make(4, 8, 16)
        cell = make(4, 8, 16) if with_cell else None
        options = 2, 16, 0, 2, False, 0.0, False, True, [], None
        made = aten._cudnn_rnn(make(9, 8, 16), layers, 4, buffer, hidden, cell, *options)
    assert made[4] is buffer and made[0].shape == (9, 8, 32) and made[1].shape == (4, 8, 16)
    assert made[2].shape == ((4, 8, 16) if with_cell else (0,))
    assert all(sg.is_fake(x) and x.is_cuda for x in made)


@pytest.mark.parametrize(
    "size, strides", [((1, 48, 64, 64), (0, 4096, 64, 1)), ((4, 2, 16, 32), (1024, 512, 32, 1))]
)
def test_flash_attention_has_the_layout_of_its_query(size, strides):
    with sg.fake("cuda"):
        query, key, value = (torch.empty_strided(size, strides, dtype=torch.float16, device="cuda") for _ in range(3))
        made = aten._scaled_dot_product_flash_attention(query, key, value, scale=0.17)
        # The kernel allocates a tensor like the query with heads and sequence transposed, and returns it transposed
        # back.
        like = torch.empty_like(query.transpose(1, 2)).transpose(1, 2)
    assert described(made[0]) == described(like)
    assert made[1].shape == size[:3] and made[1].dtype == torch.float32
    assert all(sg.is_fake(x) and x.is_cuda for x in leaves(made))


# ---- Real tensors


def test_real_tensors_are_converted_when_they_meet_fakes():
    x, y = torch.empty(2, 2), torch.rand(4, 2, 2, requires_grad=True)
    with sg.fake("cpu") as mode:
        made = mode.from_real(x) + mode.from_real(y)
        assert sg.is_fake(made) and described(made) == described(x + y)
        assert sg.is_fake(x[0]) and described(x[0]) == ((2,), (1,), 0, torch.float32, False)
    with sg.fake("cpu", real_tensors="refuse"), pytest.raises(sg.UnsupportedError, match="does not allow"):
        x[0]
    assert not sg.is_fake(x[0])


@pytest.mark.parametrize("make", [torch.tensor, torch.as_tensor, torch.asarray])
def test_literals_are_not_refused(make):
    with sg.fake("cpu", real_tensors="refuse"):
        assert sg.is_fake(make([1, 2]))


def test_real_tensors_stay_as_they_are():
    x = torch.ones(20)
    with sg.fake("cpu"):
        x + 1
        x[0:10].mul(2)
        assert str(x[:0]) != "" and "fake" not in repr(x) and repr(x).startswith("tensor([1.")
        with pytest.raises(sg.UnsupportedError, match="write to a real tensor"):
            x.add_(1)
    assert torch.equal(x[0:10], torch.ones(10)) and not sg.is_fake(x[0:10])


def test_gradients_are_converted_with_their_tensors():
    x = torch.rand(4, 4, requires_grad=True)
    x.grad = torch.rand(4, 4)
    with sg.fake("cpu") as mode:
        fake = mode.from_real(x)
    assert sg.is_fake(fake.grad) and described(fake) == described(x) and described(fake.grad) == described(x.grad)
    assert fake.requires_grad and fake.is_leaf


def test_a_real_parameter_gets_no_fake_gradient():
    net = torch.nn.Linear(4, 3)
    history = net.weight * 2
    with sg.fake("cpu"):
        with pytest.raises(sg.UnsupportedError, match="a real tensor .* a fake gradient"):
            net(torch.randn(2, 4)).sum().backward()
        with pytest.raises(sg.UnsupportedError, match="history consists of real tensors"):
            (history * torch.randn(3, 4)).sum().backward()
        (gradient,) = torch.autograd.grad(net(torch.randn(2, 4)).sum(), net.weight)  # no gradient is left elsewhere
        assert sg.is_fake(gradient)
    assert net.weight.grad is None
    net(torch.randn(2, 4)).sum().backward()
    assert not sg.is_fake(net.weight.grad)


@pytest.mark.parametrize("view", [lambda x: x[0], lambda x: x.detach(), lambda x: x.T[1], lambda x: x.view(4)[1:]])
def test_a_real_tensor_gets_no_history_through_a_view(view):
    x = torch.rand(2, 2)
    with sg.fake("cpu"):
        with pytest.raises(sg.UnsupportedError, match="would write to a view .* of a real tensor"):
            view(x).add_(torch.randn((), requires_grad=True))
        with torch.no_grad(), pytest.raises(sg.UnsupportedError):
            view(x).zero_()
        assert sg.is_fake(view(x) + 1)
    assert not x.requires_grad and x.grad_fn is None and x._version == 0


def test_the_fake_of_a_parameter_is_a_parameter():
    parameter = torch.nn.Parameter(torch.randn(4))
    view = parameter.view(4)
    with sg.fake("cpu") as mode:
        fake_view, fake = mode.from_real(view), mode.from_real(parameter)
        assert type(fake) is torch.nn.Parameter and type(fake_view) is torch.Tensor
        assert fake.is_leaf and fake.requires_grad and fake_view._base is fake
        inside = torch.nn.Parameter(torch.randn(4))
        assert mode.from_real(inside) is inside


def test_the_same_tensor_gives_the_same_fake():
    x, meta = torch.rand(2, 2, 2), torch.rand(2, 2, device="meta")
    with sg.fake("cpu") as mode:
        assert mode.from_real(x) is mode.from_real(x)
        assert mode.from_real(meta, "cpu") is mode.from_real(meta, "cpu")
        assert mode.from_real(meta, "cpu").device.type == "cpu"


@pytest.mark.parametrize("first, then", [("cpu", "cuda"), ("cuda", "cpu")])
def test_one_tensor_on_two_devices(first, then):
    x = torch.rand(2)
    with sg.fake("cuda") as mode:
        assert mode.from_real(x, first).device.type == first
        assert mode.from_real(x, then).device.type == then


def test_views_share_their_fakes_storage():
    x = torch.rand(2, 2, 2)
    y = x[0]
    with sg.fake("cpu") as mode:
        base, view = mode.from_real(x), mode.from_real(y)
        assert view._base is base and view.untyped_storage()._cdata == base.untyped_storage()._cdata


def test_tensors_of_one_storage_share_their_fakes_storage():
    x, y = torch.rand(2, 2, 2), torch.rand(4, 2)
    y.set_(x.untyped_storage(), 0, (4, 2), (2, 1))
    with sg.fake("cpu") as mode:
        first, second = mode.from_real(x), mode.from_real(y)
        assert first.untyped_storage()._cdata == second.untyped_storage()._cdata and not second._is_view()


def test_a_storage_outlives_the_fake_it_was_made_for():
    x = torch.rand(2, 2, 2)
    y = x[0]
    with sg.fake("cpu") as mode:
        storage = mode.from_real(x).untyped_storage()
        gc.collect()
        assert mode.from_real(y).untyped_storage()._cdata == storage._cdata


def test_converting_keeps_no_real_tensor():
    x = torch.rand(2)
    gone = weakref.ref(x)
    with sg.fake("cpu") as mode:
        mode.from_real(x)
        del x
        gc.collect()
        assert gone() is None


@pytest.mark.parametrize("holder", ["Python", "C++"])
def test_converting_keeps_no_fake_of_a_dead_tensor(holder):
    x = torch.rand(2)
    with sg.fake("cpu") as mode:
        if holder == "C++":  # Python drops x, its gradient function keeps it alive, and it returns to Python
            fake, grown = mode.from_real(x.requires_grad_()), None
            with sg.unfake():
                grown = x * x
            del x
            gc.collect()
            assert mode.from_real(grown.grad_fn._saved_self) is fake
            return
        gone = weakref.ref(mode.from_real(x))
        del x
        gc.collect()
        assert gone() is None


def test_fakes_keep_no_mode():
    mode = sg.fake("cpu")
    with mode:
        fake = mode.from_real(torch.rand(4))
    gone = weakref.ref(mode), weakref.ref(fake)
    del mode, fake
    gc.collect()
    assert [each() for each in gone] == [None, None]


def test_inference_tensors_stay_so():
    with torch.inference_mode():
        real = torch.randn(4, 3)
    with sg.fake("cpu") as mode:
        assert mode.from_real(real).is_inference()
        x = torch.randn(4, 3)
        for inside in (False, True, False, True):
            with torch.inference_mode(inside):
                assert (x + x).is_inference() == inside and described(x + x) == described(real)


def test_batched_tensors_are_refused_and_transforms_run():
    x = torch.rand(3, 4, 5)
    with sg.fake("cpu") as mode:
        with pytest.raises(sg.UnsupportedError, match="functorch"):
            mode.from_real(torch._C._functorch._add_batch_dim(x, 0, 0))
        made = torch.vmap(lambda row: row.sum(0))(torch.rand(3, 4, 5))
    assert sg.is_fake(made) and described(made) == described(torch.vmap(lambda row: row.sum(0))(x))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested")
def test_nested_tensors_are_refused_and_made_inside():
    parts = [torch.randn(3, 4), torch.randn(4, 4)]
    with sg.fake("cpu") as mode:
        for layout in (torch.jagged, torch.strided):
            with sg.unfake():
                nested = torch.nested.nested_tensor(parts, layout=layout)
            with pytest.raises(sg.UnsupportedError, match="dense strided"):
                mode.from_real(nested)
        inside = torch.nested.nested_tensor([torch.randn(3, 4), torch.randn(4, 4)], layout=torch.jagged)
        assert inside.layout == torch.jagged and sg.is_fake(inside._values)


WRAPPER = """
class Wrapper(torch.Tensor):
    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, device="cpu")
    def __init__(self, inner):
        self.inner = inner
    @classmethod
    def __torch_dispatch__(cls, func, types, args, kwargs=None):
        return func(*(each.inner if isinstance(each, cls) else each for each in args), **(kwargs or {}))
"""


def test_wrappers_made_inside_wrap_fakes():
    said = in_process(WRAPPER + """
with sg.fake("cuda"):
    x = Wrapper(torch.ones(2, 7, device="cuda"))
    print(x.is_cpu, x.inner.is_cuda, sg.is_fake(x), sg.is_fake(x + 1), (x + 1).device)
""")
    assert said.split() == ["True", "True", "False", "True", "cuda:0"]


@pytest.mark.parametrize("make", ["Wrapper(torch.ones(2, 7))", "torch._efficientzerotensor(3)"])
def test_real_tensors_without_memory_are_converted_or_refused(make):
    in_process(WRAPPER + f"""
x = {make}
with sg.fake("cpu") as mode:
    try:
        assert mode.from_real(x).shape == x.shape
    except sg.UnsupportedError:
        pass
""")


def test_mixed_programs_may_read_real_modules_and_not_train_them():
    net = torch.nn.Sequential(torch.nn.Conv2d(1, 1, 1), torch.nn.BatchNorm2d(1))
    with sg.fake("cpu"):
        with pytest.raises(sg.UnsupportedError, match="write to a real tensor"):
            net(torch.randn(1, 1, 3, 3))  # increments num_batches_tracked
        made = net.eval()(torch.randn(1, 1, 3, 3))
    assert sg.is_fake(made) and described(made) == described(net(torch.randn(1, 1, 3, 3)))
    assert net[1].num_batches_tracked == 0


# ---- Modes


def test_fakes_work_where_no_mode_is_active():
    with sg.fake("cpu"):
        x, y = torch.empty(2, 2), torch.empty(2, 2)
    assert sg.is_fake(x + y) and (x + y).device.type == "cpu"


def test_backward_on_cuda_outside_a_mode_is_a_typed_error():
    with sg.fake("cuda"):
        x = torch.empty(2, device="cuda", requires_grad=True)
        losses = [x.sum(), x.sum().cpu()]
    for loss in losses:
        with pytest.raises(sg.Error, match="on cuda outside a mode"):
            loss.backward(retain_graph=True)
        with pytest.raises(sg.Error, match="on cuda outside a mode"):
            torch.autograd.grad(loss, x, retain_graph=True)
    with sg.fake("cuda"):
        losses[0].backward()
    assert sg.is_fake(x.grad)
    with pytest.raises(RuntimeError, match="does not require grad"):  # other errors are unchanged
        torch.ones(()).backward()


def test_fakes_of_two_modes_go_together():
    t = torch.rand(4)
    with sg.fake("cpu") as outer, sg.fake("cpu") as inner:
        x, y = outer.from_real(t), inner.from_real(t)
        assert x is not y and sg.is_fake(x + y)
    with sg.fake("cpu"):
        assert sg.is_fake(x + torch.rand(4))


def test_another_modes_fake_is_converted_or_refused_in_our_words():
    with sg.fake("cpu") as first:
        x = torch.randn(3)
        assert first.from_real(x) is x
    with sg.fake("cpu") as second, contextlib.suppress(sg.Error):
        assert sg.is_fake(second.from_real(x))


def test_modes_of_python_see_fakes():
    class Counting(torch.utils._python_dispatch.TorchDispatchMode):
        seen = ()

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.seen += tuple(sg.is_fake(each) for each in args)
            return func(*args, **(kwargs or {}))

    with sg.fake("cpu"):
        x = torch.randn(2)
        with Counting() as mode:
            with torch.utils._mode_utils.no_dispatch():
                assert sg.is_fake(torch.zeros_like(x))
            assert mode.seen == ()
            assert sg.is_fake(torch.zeros_like(x)) and mode.seen == (True,)


def test_dispatch_keys_are_those_of_the_pretended_device():
    def keys(tensor):
        return set(re.findall(r"\w+", str(torch._C._dispatch_key_set(tensor))))

    for inference in (False, True):
        with torch.inference_mode(inference):
            real = keys(torch.rand(4) + 1)
            with sg.fake("cuda"):
                assert keys(torch.rand(4) + 1) == real | {"Fake"}
                on_cuda = keys(torch.rand(4, device="cuda") + 1)
            assert on_cuda == {key.replace("CPU", "CUDA") for key in real} | {"Fake"}


# ---- Contents


def test_literals_are_known_and_follow_writes():
    with sg.fake("cpu"):
        x = torch.tensor(4.0)
        assert x.item() == 4.0
        y = x.add_(1)
        assert y is x and x.item() == 5.0
        x = torch.tensor([4.0])
        view = x[:]
        x.add_(1)
        assert view.item() == 5.0 and view.untyped_storage()._cdata == x.untyped_storage()._cdata
        assert torch.div(4, 4, rounding_mode="trunc").item() == 1


@pytest.mark.parametrize(
    "write",
    [
        lambda x: x.add_(torch.rand(1)), lambda x: x[:].add_(torch.rand(1)), lambda x: x.resize_([2])[1],
        lambda x: x.set_(torch.rand(1)),
    ],
)  # fmt: skip
def test_contents_end_with_what_is_not_known(write):
    with sg.fake("cpu"):
        x = torch.tensor([1.0])
        assert x.item() == 1.0
        write(x)
        with pytest.raises(sg.DataDependentError):
            x.sum().item()


def test_a_write_through_an_expanded_view_is_followed():
    def run():
        x = torch.tensor([1])
        y = x.expand([4])
        y[0] = 7
        return x.tolist(), y.tolist()

    real = run()
    with sg.fake("cpu"):
        assert run() == real


def test_sizes_may_come_from_literals():
    def run(batch):
        size = torch.tensor([80, 121])
        return batch[0].new_full([len(batch)] + list(batch[0].shape[:-2]) + list(size), 0.0)

    real = run([torch.randn(3, 80, 119), torch.randn(3, 80, 80)])
    with sg.fake("cpu"):
        assert described(run([torch.randn(3, 80, 119), torch.randn(3, 80, 80)])) == described(real)
        with pytest.raises(sg.DataDependentError):
            torch.randn(3).new_full([2, torch.randint(1, 3, ())], 0.0)


def test_sizes_that_depend_on_data_are_given_or_an_error():
    with sg.fake("cpu"), pytest.raises(sg.DataDependentError, match="nonzero0"):
        torch.nonzero(torch.rand(10, 10))
    with sg.fake("cpu"), pytest.raises(sg.DataDependentError, match="tolist"):
        torch.rand(10).tolist()
    real = torch.ones(5).nonzero()
    with sg.fake("cpu", data_sizes={"nonzero0": 5, "nonzero1": 5}):
        for _ in range(2):
            made = torch.rand(5).nonzero()
            assert type(made.shape[0]) is int and described(made) == described(real)
            assert made.T.is_contiguous() == real.T.is_contiguous()


def test_smoothed_cross_entropy_counts_its_targets_only_for_weights():
    def run(weight):
        return F.cross_entropy(torch.randn(3, 5), torch.randint(5, (3,)), weight, label_smoothing=0.5)

    real = run(torch.rand(5))
    with sg.fake("cpu"):
        assert described(run(None)) == described(real)
        with pytest.raises(sg.DataDependentError, match="masked_select.*mask full"):
            run(torch.rand(5))
    with sg.fake("cpu", host_reads="mask full"):
        assert described(run(torch.rand(5))) == described(real)


# ---- Operators


def test_an_operator_without_a_rule_is_a_typed_error():
    with torch.library._scoped_library("sg_behaviors", "DEF") as library:
        library.define("foo(Tensor self) -> Tensor")
        library.impl("foo", lambda x: x.cos(), "CPU")
        with sg.fake("cpu"), pytest.raises(sg.NoRuleError, match="sg_behaviors::foo"):
            torch.ops.sg_behaviors.foo(torch.empty(2, 2))


def test_a_rule_that_is_registered_after_the_first_call_counts():
    with torch.library._scoped_library("sg_behaviors_late", "DEF") as library:
        library.define("foo(Tensor self) -> Tensor")
        library.impl("foo", lambda x: x.cos(), "CPU")
        with sg.fake("cpu"), pytest.raises(sg.NoRuleError):
            torch.ops.sg_behaviors_late.foo(torch.empty(2, 2))
        torch.library.register_fake("sg_behaviors_late::foo", lambda x: torch.empty_like(x), lib=library)
        with sg.fake("cpu"):
            assert described(torch.ops.sg_behaviors_late.foo(torch.empty(2, 2))) == described(torch.empty(2, 2))


def custom_operators():
    from torch.testing._internal.custom_op_db import custom_op_db

    return [pytest.param(op, id=op.name) for op in custom_op_db]


@pytest.mark.parametrize("operator", custom_operators())
def test_operators_registered_in_python(operator):
    for sample in operator.sample_inputs("cpu", torch.float32, requires_grad=False):
        args = (sample.input, *sample.args)
        real = operator(*args, **sample.kwargs)
        with sg.fake("cpu", real_tensors="convert") as mode:
            try:
                made = operator(*torch.utils._pytree.tree_map_only(torch.Tensor, mode.from_real, args), **sample.kwargs)
            except sg.DataDependentError as error:
                assert operator.name in ("NumpyNonzeroCustomOp", "NumpyNMSCustomOp") and "data_sizes" in str(error)
                continue
        assert [described(each) for each in leaves(made)] == [described(each) for each in leaves(real)]
        assert all(sg.is_fake(each) for each in leaves(made))


def test_sizes_of_operators_registered_in_python():
    nonzero = torch.ops._torch_testing.numpy_nonzero
    with sg.fake("cuda", data_sizes={"numpy_nonzero0": 5, "numpy_nonzero1": 0}):
        x = torch.rand(3, 4, device="cuda")
        assert nonzero(x).shape == nonzero(x).shape == (5, 2)  # repeated calls give the same size
        assert nonzero(x + 1).shape == (0, 2)
        with pytest.raises(sg.DataDependentError, match="numpy_nonzero2"):
            nonzero(x + 2)
    with pytest.raises(RuntimeError, match="use FakeTensors"):  # meta tensors are not fakes
        nonzero(torch.rand(3, 4, device="meta"))


def control_flow():
    from torch._higher_order_ops import associative_scan, map, while_loop
    from torch._higher_order_ops.scan import scan
    from torch.nn.attention.flex_attention import flex_attention

    def add(x, y):
        return x + y, x * y

    def halve(i, x):
        return i + 1, x / 2

    x = torch.randn(3, 5, 7)
    programs = {
        "cond": lambda: torch.cond(torch.tensor(True), lambda x: x[0] + 1, lambda x: x[0] - 1, (x,)),
        "map": lambda: map(lambda row, y: row.sum(0) + y, x, torch.ones(7)),
        "while_loop": lambda: while_loop(lambda i, x: i < 3, halve, (torch.tensor(0), x)),
        "scan": lambda: scan(add, torch.randn(3, 7), x, dim=1),
        "associative_scan": lambda: associative_scan(torch.add, x, dim=1, combine_mode="generic"),
        "flex_attention": lambda: flex_attention(*3 * [torch.randn(2, 4, 128, 16)], lambda s, b, h, q, k: s + q - k),
    }
    return [pytest.param(program, id=name) for name, program in programs.items()]


@pytest.mark.filterwarnings("ignore:flex_attention called without")
@pytest.mark.parametrize("program", control_flow())
def test_control_flow(program):
    real = program()
    with sg.fake("cpu", real_tensors="constant"):
        fake = program()
    assert all(sg.is_fake(each) for each in leaves(fake))
    assert [described(each) for each in leaves(fake)] == [described(each) for each in leaves(real)]


def test_control_flow_that_data_decides():
    def run(x):
        return torch.cond(x.sum() > 0, lambda x: x[0], lambda x: x - 1, (x,))

    with sg.fake("cpu"), pytest.raises(sg.DataDependentError, match="host_reads.*item0"):
        run(torch.randn(3, 7))
    for answer, shape in ((True, (7,)), (False, (3, 7))):
        with sg.fake("cpu", host_reads={"bool": answer}):
            x = torch.randn(3, 7, requires_grad=True)
            made = run(x)
            assert made.shape == shape
            made.sum().backward()
            assert described(x.grad) == ((3, 7), (7, 1), 0, torch.float32, False)


def test_an_operator_of_higher_order_that_has_no_eager_form_is_a_typed_error():
    class Unknown(torch._ops.HigherOrderOperator):
        def __init__(self):
            super().__init__("sg_unknown")

        def __call__(self, x):
            return super().__call__(x)

    with sg.fake("cpu"), pytest.raises(sg.NoRuleError, match="higher-order operator sg_unknown"):
        Unknown()(torch.rand(2))


def test_in_place_calls_give_the_tensor_itself():
    with sg.fake("cpu"):
        x, y = torch.randn(1, 2), torch.randn(1, 2)
        assert x.add_(y) is x and x.add_(y) is x


def test_views_stay_views_under_in_place_calls():
    def run():
        x, y = (torch.ones(2, requires_grad=True).clone() for _ in range(2))
        view = y.view(-1)
        return [each.mul_(2)._is_view() for each in (x, view, view, x)]

    real = run()
    with sg.fake("cpu"):
        assert run() == real == [False, True, True, False]


def test_zero_tensors_have_no_memory_and_stay_zero_tensors():
    def run():
        zero, x = torch._efficientzerotensor((3, 4)), torch.ones(3, 4)
        square = torch._efficientzerotensor((4, 4))
        results = [zero, zero.t(), zero.view(4, 3), zero[1:], zero.detach(), zero.expand(2, 3, 4), zero * x, x * zero,
                   zero / x, zero + x, zero - x, zero + zero, zero.clone(), zero.sum(), zero.exp(), x @ square,
                   zero.double(), torch.zeros_like(zero), zero.to(torch.float16), x.clone().copy_(zero)]  # fmt: skip
        with pytest.raises(RuntimeError, match="ZeroTensors are immutable"):
            zero.add_(1)
        return [(described(each), each._is_zerotensor()) for each in results]

    real = run()
    for device in ("cpu", "cuda"):
        with sg.fake(device), torch.device("cpu"):
            assert run() == real


def test_forward_mode():
    """Tangents as in eager, and no memory for those of parameters, which are zero."""

    class Jvp(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.Tanh(), torch.nn.Linear(128, 1))

        def forward(self, x):
            return torch.func.jvp(self.net, (x,), (torch.ones_like(x),))[1]

    graph = sg.capture(Jvp().eval(), torch.randn(64, 64))
    zeros = graph.find("aten::_efficientzerotensor")
    assert zeros and all(node.outputs[0].storage.nbytes == 0 for node in zeros)
    graph.verify()
    assert not sg.Graph.parse(graph.text()).difference(graph)

    def tangents():
        from torch.autograd import forward_ad

        with forward_ad.dual_level():
            x = forward_ad.make_dual(torch.randn(1, 2, 6), torch.ones(1, 2, 6))
            pooled = [torch.max_pool1d(x, 3), torch.nn.functional.max_pool1d(x, 2, return_indices=True)[0]]
            with torch.no_grad():
                pooled.append(torch.max_pool1d(x, 3))
            return [described(forward_ad.unpack_dual(each).tangent) for each in pooled]

    expected = tangents()
    with sg.fake("cpu"):
        assert tangents() == expected


def test_batch_norm_in_training_is_refused_in_forward_mode():
    def run():
        net, x = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8)), torch.randn(4, 3, 8, 8)
        return torch.func.jvp(net, (x,), (x,))

    for context in (contextlib.nullcontext(), sg.fake("cpu"), sg.fake("cuda")):
        with context, pytest.raises(RuntimeError, match="in-place operation .aten::add_.Tensor. that would mutate"):
            run()


def test_sparse_tensors_are_refused():
    with sg.fake("cpu"), pytest.raises(sg.NoRuleError, match="_to_sparse"):
        torch.randn(1).to_sparse()
    real = torch.randn(2, 2).to_sparse()
    with sg.fake("cpu"), pytest.raises(sg.UnsupportedError, match="layout Sparse"):
        real + real


@pytest.mark.parametrize(
    "program",
    [
        "x = torch.sparse_coo_tensor(torch.zeros(1, 1, dtype=torch.int64), torch.randn(1), (2,)); x + x",
        "x = torch.sparse_coo_tensor((2, 3)); assert x.is_sparse",
        "torch.zeros(2, 2, layout=torch.sparse_csr)",
        "e = torch.nn.Embedding(9, 3, sparse=True); e(torch.randint(0, 9, (4,))).sum().backward()\n"
        "    torch.optim.SparseAdam(e.parameters()).step()",
    ],
    ids=["add", "empty", "csr", "embedding"],
)
def test_sparse_constructors_are_refused(program):
    said = in_process(f"""
try:
  with sg.fake("cpu"):
    {program}
except sg.Error as error:
    print("refused", error)
""")
    assert said.startswith("refused")


# ---- Copies, storages, files


def test_fakes_and_their_modules_are_copied_with_what_they_share():
    class Shared(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.a = torch.rand(10, 2)
            self.b, self.c = self.a, self.a[0]
            self.norm = torch.nn.BatchNorm2d(10)

    real = copy.deepcopy(Shared())
    with sg.fake("cpu"):
        fake = copy.deepcopy(Shared())
    assert fake.a is fake.b and sg.is_fake(fake.a)
    assert fake.c.untyped_storage()._cdata == fake.a.untyped_storage()._cdata
    ours, theirs = fake.state_dict(keep_vars=True), real.state_dict(keep_vars=True)
    assert list(ours) == list(theirs)
    for name in ours:
        assert sg.is_fake(ours[name]) and type(ours[name]) is type(theirs[name])
        assert described(ours[name]) == described(theirs[name])


REAL, REAL_NORM = torch.arange(3.0), torch.nn.BatchNorm2d(3)


@pytest.mark.parametrize(
    "program",
    [
        lambda: copy.deepcopy(REAL_NORM).running_var, lambda: copy.deepcopy(REAL_NORM).weight,
        lambda: pickle.loads(pickle.dumps(REAL)), lambda: str(REAL.storage()), lambda: REAL.storage()[1],
        lambda: torch.ByteTensor(torch.UntypedStorage.from_buffer(b"12", dtype=torch.uint8)),
        lambda: torch.empty(0).set_(REAL.untyped_storage()),
        lambda: torch.empty(0).set_(REAL.untyped_storage(), 1, (2,), (1,)),
    ],
    ids=["deepcopy", "parameter", "pickle", "str", "item", "from_buffer", "set_", "part"],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
def test_tensors_of_real_storages_are_fake(program):
    real = program()
    with sg.fake("cpu"):
        fake = program()
        if not isinstance(real, torch.Tensor):
            assert fake == real
            return
        assert sg.is_fake(fake) and type(fake) is type(real) and described(fake) == described(real)
        assert fake.tolist() == real.tolist()
        with torch.no_grad():
            assert fake.zero_().sum().item() == 0  # from_real makes a copy, or returns the existing fake
    assert REAL.tolist() == [0, 1, 2] and REAL_NORM.weight.sum() == 3


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
def test_real_storages_stay_real():
    with sg.fake("cpu"):
        with sg.unfake():
            x, large = torch.zeros(3), torch.arange(100_000)
        x.storage()[1] = 5.0
        assert x.storage()[1] == 5.0 and large.storage()[99_999] == 99_999
        copied = torch.UntypedStorage(x.untyped_storage().nbytes()).copy_(x.untyped_storage())
        with pytest.raises(sg.Error, match="devices must match"):
            torch.empty(0, device="cuda").set_(x.untyped_storage())
    assert x.tolist() == [0, 5, 0] and torch.empty(0).set_(copied).tolist() == [0, 5, 0]


def test_pickles_are_read_for_real_under_unfake():
    with sg.fake("cpu"), sg.unfake():
        made = pickle.loads(pickle.dumps(REAL))
    assert not sg.is_fake(made) and torch.equal(made, REAL)


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
def test_storages_of_fakes_are_meta():
    with sg.fake("cuda"):
        x = torch.randn(3, device="cuda")
        for _ in range(2):
            assert str(x.storage()).split("\n") == [
                "...", "[torch.storage.TypedStorage(dtype=torch.float32, device=meta) of size 3]"
            ]  # fmt: skip


def test_texts_name_shape_and_device():
    with sg.fake("cuda"):
        assert repr(torch.empty(2, 2)) == "<fake Float[2, 2] on cpu>"
        assert repr(torch.empty(2, 2, device="meta")) == "<fake Float[2, 2] on meta>"
        assert str(torch.empty(2, device="cuda", requires_grad=True)) == "<fake Float[2] on cuda:0, requires_grad>"


@pytest.mark.parametrize("place, device", [(None, "cpu"), ("cuda", "cuda"), ("meta", "meta")])
def test_files_give_fakes(place, device, tmp_path):
    net = torch.nn.Linear(5, 10)
    torch.save(net.state_dict(), tmp_path / "state.pt")
    with sg.fake("cuda"):
        state = torch.load(tmp_path / "state.pt", map_location=place)
    assert all(sg.is_fake(each) and each.device.type == device for each in state.values())
    assert described(state["weight"]) == described(net.weight.detach())


# ---- Graphs of torch.fx


def test_graphs_of_fx_run_on_fakes():
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = torch.nn.Linear(4, 3), torch.nn.Linear(3, 2)

        def forward(self, value, other=None):
            if other is None:
                other = torch.rand_like(value)
            return self.second(torch.relu(self.first(value + other)))

    from torch.fx.passes.shape_prop import ShapeProp

    net = Net()
    graph = torch.fx.symbolic_trace(net, concrete_args={"other": None})
    real = net(torch.randn(5, 4))
    for _ in range(2):  # each in a separate mode
        with sg.fake("cpu"):
            value = torch.randn(5, 4)
            made = torch.fx.Interpreter(graph).run(value, None)
            assert sg.is_fake(made) and described(made) == described(real)
            ShapeProp(graph).propagate(value, None)
    shapes = [tuple(node.meta["tensor_meta"].shape) for node in graph.graph.nodes if "tensor_meta" in node.meta]
    assert shapes[-1] == (5, 2)


def test_export_inside_a_mode():
    class Net(torch.nn.Module):
        def forward(self, x):
            x = x.numpy()
            return x + numpy.random.randn(*x.shape)

    with sg.fake("cpu"):
        program = torch.export.export(Net(), args=(torch.randn(10),), strict=True)
    assert isinstance(program, torch.export.ExportedProgram)


# ---- The table


def rows():
    return re.findall(r"^\| `(\w+)` \| (holds|otherwise|no counterpart) \| (.*) \|$", TABLE.read_text(), re.M)


def test_the_tables_tests_exist():
    table = rows()
    assert len({name for name, _, _ in table}) == len(table) > 100
    programs = {program.__name__ for program in LIKE_EAGER}
    for name, here, why in table:
        tests = re.findall(r"`(test_\w+)(?:\[(\w+)\])?`", why)
        assert tests or here == "no counterpart", f"{name}: no test"
        for test, program in tests:
            assert callable(globals().get(test)), f"{name}: no {test}"
            assert test != "test_as_eager" or program in programs, f"{name}: no program {program}"


def test_the_tables_counts_are_its_rows():
    text = TABLE.read_text()
    for here in ("holds", "otherwise", "no counterpart"):
        (said,) = re.findall(rf"^- {here}: (\d+)", text, re.M)
        assert int(said) == sum(row[1] == here for row in rows()), here
    assert len(rows()) == len(re.findall(r"^\| `test_", text, re.M))


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_converted_parameter_is_a_parameter(device):
    real = torch.nn.Linear(2, 3)
    for make in (lambda: sg.fake(device), lambda: sg.Capture(device)):
        with make() as mode:
            fake = mode.from_real(real.weight, device)
            assert isinstance(fake, torch.nn.Parameter) and fake.requires_grad and fake.is_leaf
            assert fake is mode.from_real(real.weight, device)
            del fake
            assert isinstance(mode.from_real(real.weight, device), torch.nn.Parameter)  # also when made again
            assert type(mode.from_real(real.weight.detach(), device)) is torch.Tensor
            layer = torch.nn.Linear(2, 3)
            layer.bias = mode.from_real(real.bias, device)
            assert dict(layer.named_parameters())["bias"] is mode.from_real(real.bias, device)
