"""Costs of operators that are not PyTorch's plain ones: FlexAttention, packed sequences, 4- and 8-bit products, copies.

Sums are written out, or compared with PyTorch's kernels and FlopCounterMode.
"""

import numpy as np
import pytest
import torch
import torch.nn.attention.flex_attention as flex
from torch import nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.attention.varlen import varlen_attn

import shadowgraph as sg


def profile(program, device="cuda", **how):
    with sg.Capture(device) as session:
        kept = program()
        graph = session.finish()
    del kept
    return graph, sg.profile(graph, **how).dict()


def flops(report):
    return sum(report["flops"].values())


def causal(b, h, q, kv):
    return q >= kv


def window(b, h, q, kv):
    return (q >= kv) & (q - kv < 256)


def attended(mask, batch=2, heads=4, of_keys=4, length=2048, width=64, attend=None, **how):
    def program():
        query = torch.randn(batch, length, heads, width, device="cuda", requires_grad=True).transpose(1, 2)
        key, value = (torch.randn(batch, of_keys, length, width, device="cuda", requires_grad=True) for _ in "kv")
        blocks = create_block_mask(mask, None, None, length, length, device="cuda") if mask else None
        out = (attend or torch.compile(flex_attention))(query, key, value, block_mask=blocks, **how)
        out.sum().backward()
        return out

    return program


@pytest.mark.parametrize("mask, blocks", [(causal, 136), (window, 45), (None, 256)])  # of 16 x 16
def test_compiled_flex_attention_is_one_kernel(mask, blocks):
    graph, report = profile(attended(mask))
    scores = 2 * 4 * blocks * 128 * 128
    assert report["flops"]["forward"] == 2 * scores * (64 + 64)
    assert report["flops"]["backward"] == 2 * scores * (3 * 64 + 2 * 64)
    assert report["uncovered_operators"] == []
    calls = [node for node in graph if node.target == "shadowgraph::flex_attention"]
    out, logsumexp, _ = calls[0].outputs
    assert out.shape == (2, 4, 2048, 64) and out.stride == (2048 * 4 * 64, 64, 4 * 64, 1)  # as the query's
    assert (logsumexp.shape, logsumexp.dtype) == ((2, 4, 2048), torch.float32)
    largest = max(value.storage.nbytes for node in graph for value in node.outputs if value.storage)
    assert largest < 4 * (2 * 4 * 2048 * 2048), "no scores"


def test_a_compiled_mask_is_not_in_memory():
    def program():
        return torch.compile(create_block_mask)(causal, None, None, 8192, 8192, device="cuda")

    before = flex.create_mask
    _, report = profile(program)
    assert report["peak"]["bytes"] < 2**20 < 8192 * 8192
    assert flex.create_mask is before, "torch.compile traces PyTorch's own function outside of modes"


def test_flex_attention_with_fewer_heads_of_keys():
    _, report = profile(attended(causal, of_keys=2, enable_gqa=True))
    assert report["flops"]["forward"] == 2 * (2 * 4 * 136 * 128 * 128) * 128


# Without torch.compile PyTorch computes all scores, and warns about it.
def test_uncompiled_flex_attention_has_all_scores():
    graph, report = profile(attended(causal, batch=1, heads=1, of_keys=1, attend=flex_attention))
    assert not any("flex_attention" in node.target for node in graph)
    assert report["flops"]["forward"] == 2 * 2048 * 2048 * 128


def test_a_mask_of_unknown_data_is_named():
    def program():
        query = torch.randn(1, 2, 512, 64, device="cuda", requires_grad=True)
        documents = torch.randint(0, 4, (512,), device="cuda")
        slopes = nn.Parameter(torch.ones(2, device="cuda"))
        blocks = create_block_mask(lambda b, h, q, k: documents[q] == documents[k], None, None, 512, 512, device="cuda")
        attend = torch.compile(flex_attention)
        out = attend(query, query, query, lambda s, b, h, q, k: s + slopes[h] * (q - k), block_mask=blocks)
        out.sum().backward()
        assert slopes.grad.shape == (2,) and query.grad.shape == query.shape
        return out

    _, report = profile(program)
    assert flops(report) == 2 * (2 * 512 * 512) * (2 + 5) * 64
    assert any("FlexAttention's mask" in each for each in report["assumptions"])


LENGTHS = [100, 30, 70]


def packed(lengths):
    def program():
        offsets = torch.tensor([0, *np.cumsum(LENGTHS).tolist()], dtype=torch.int32, device="cuda")
        if not lengths:
            offsets = (torch.rand(4, device="cuda") * 200).to(torch.int32)
        query, key, value = (
            torch.randn(200, 4, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in "qkv"
        )
        varlen_attn(query, key, value, offsets, offsets, 100, 100).sum().backward()

    return program


def test_packed_sequences_by_their_lengths():
    _, report = profile(packed(LENGTHS), spec="h100")
    scores = 4 * sum(length**2 for length in LENGTHS)
    assert report["flops"]["forward"] == 2 * scores * 128 and report["flops"]["backward"] == 2 * scores * 320
    assert "assumptions" not in report and report["uncovered_operators"] == []
    assert report["time"]["classes"].keys() >= {"attention", "attention_backward"}


def test_packed_sequences_of_unknown_length_are_named():
    _, report = profile(packed(None))
    assert report["flops"]["forward"] == 2 * (4 * 3 * 100 * 100) * 128
    assert any("each assumed to be the longest, 100 queries" in each for each in report["assumptions"])


def test_products_of_bitsandbytes():
    bnb = pytest.importorskip("bitsandbytes")
    ops = torch.ops.bitsandbytes
    assert bnb is not None

    def program():
        x = torch.randn(1, 1, 1024, device="cuda", dtype=torch.bfloat16)
        packed, absmax = ops.quantize_4bit(
            torch.randn(2048, 1024, device="cuda", dtype=torch.bfloat16), 64, "nf4", torch.uint8
        )
        code = torch.randn(16, device="cuda")
        ops.gemv_4bit(x, packed, [2048, 1024], absmax, code, 64)
        ops.dequantize_4bit(packed, absmax, 64, "nf4", [2048, 1024], torch.bfloat16)
        a, b = (torch.zeros(64, 1024, device="cuda", dtype=torch.int8) for _ in "ab")
        ops.int8_linear_matmul(a, b)

    _, report = profile(program, spec="h100")
    assert flops(report) == 2 * 2048 * 1024 + 2 * 64 * 64 * 1024
    assert report["uncovered_operators"] == [] and report["time"]["uncovered"] == []


def test_int8_products_run_at_their_rate():
    def program(dtype):
        a = torch.zeros(8192, 8192, device="cuda", dtype=dtype)
        return lambda: (torch._int_mm if dtype == torch.int8 else torch.mm)(a, a.t())

    def seconds(dtype):
        with sg.Capture("cuda") as session:
            program(dtype)()
            graph = session.finish()
        return sg.profile(graph, spec="h100").dict()["time"]["classes"]["matmul"]

    assert seconds(torch.int8) < 0.7 * seconds(torch.bfloat16)


# 1 GiB each way over a link of 54 GB/s (h100.json).
def test_copies_take_the_hosts_link():
    def program():
        host = torch.empty(256, 1024, 1024)
        device = host.to("cuda")
        return device.cpu()

    _, report = profile(program, spec="h100")
    assert report["time"]["seconds"] == pytest.approx(2 * 2**30 / 54e9, rel=0.01)


WAYS = {
    "tensor": lambda n: torch.tensor([[0.5] * 64] * n),
    "from_numpy": lambda n: torch.from_numpy(np.zeros((n, 64), dtype="float32")),
    "as_tensor": lambda n: torch.as_tensor(np.zeros((n, 64), dtype="float32")),
    "asarray": lambda n: torch.asarray(np.zeros((n, 64), dtype="float32")),
    "asarray of a buffer": lambda n: torch.asarray(bytearray(n * 256), dtype=torch.float32).view(n, 64),
    "frombuffer": lambda n: torch.frombuffer(buffer=bytearray(n * 256), dtype=torch.float32).view(n, 64),
    "from_dlpack": lambda n: torch.from_dlpack(np.zeros((n, 64), dtype="float32")),
    "FloatTensor": lambda n: torch.FloatTensor([[0.5] * 64] * n),
    "new_tensor": lambda n: torch.zeros(1).new_tensor([[0.5] * 64] * n),
    "strided": lambda n: torch.from_numpy(np.zeros((n, 128), dtype="float32")[:, ::2]),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_host_values_live_as_in_eager(way, device):
    def loop(make, steps):
        def program():
            model = nn.Linear(64, 64).to(device)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for _ in range(steps):
                x = make(1024).to(device)
                optimizer.zero_grad()
                model(x).mean().backward()
                optimizer.step()

        return profile(program, device)[1]["peak"]["bytes"]

    # These allocate as much, where they are called, and free it with the last reference.
    own = (lambda n: torch.empty_strided((n, 64), (128, 2))) if way == "strided" else (lambda n: torch.randn(n, 64))
    peaks = [loop(WAYS[way], steps) for steps in (1, 2, 4)]
    assert peaks == [loop(own, steps) for steps in (1, 2, 4)] and peaks[1] == peaks[2]


def test_host_values_are_the_programs_own():
    with sg.Capture("cpu") as session:
        x = torch.tensor([1.0, 2.0])
        x.add_(1)
        assert x.tolist() == [2.0, 3.0]
        leaf = torch.tensor([1.0, 2.0], requires_grad=True)
        (leaf * x).sum().backward()
        assert leaf.is_leaf and leaf.grad.shape == (2,)
        viewed = torch.from_numpy(np.ones(3, dtype="float32"))
        viewed[0] = 5
        buffer = torch.frombuffer(bytearray(8), dtype=torch.float32, requires_grad=True)
        (buffer * x).sum().backward()
        assert buffer.is_leaf and buffer.tolist() == [0, 0] and buffer.grad.shape == (2,)
        graph = session.finish([x, viewed])
    graph.verify()
    replayed = graph.compile(None)
    for _ in range(2):  # the second run starts from the same values
        first, second = replayed()
        assert first.tolist() == [2.0, 3.0] and second.tolist() == [5.0, 1.0, 1.0]
