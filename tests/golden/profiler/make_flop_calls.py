#!/usr/bin/env python3
"""Writes flop_calls.jsonl: random calls of every operator in torch.utils.flop_counter.flop_registry, with its FLOPs.

    .venv/bin/python tests/golden/profiler/make_flop_calls.py > tests/golden/profiler/flop_calls.jsonl

Only shapes are drawn; nothing is computed. The file is made once a libtorch version.
"""

import json
import random

import torch
from torch.utils.flop_counter import flop_registry

random.seed(20130)
CALLS = 25


def size():
    return random.randint(1, 9)


def tensor(*shape):
    return {"shape": list(shape)}


def product():
    m, k, n = size(), size(), size()
    return m, k, n


def mm():
    m, k, n = product()
    return [tensor(m, k), tensor(k, n)], [tensor(m, n)]


def addmm():
    args, out = mm()
    return [tensor(out[0]["shape"][1]), *args], out


def bmm():
    (b, (m, k, n)) = size(), product()
    return [tensor(b, m, k), tensor(b, k, n)], [tensor(b, m, n)]


def baddbmm():
    args, out = bmm()
    return [out[0], *args], out


def scaled_mm():
    args, out = mm()
    return [*args, tensor(1), tensor(1)], out


def geometry():
    dims, groups, transposed = random.randint(1, 3), random.randint(1, 3), random.random() < 0.4
    ci, co, batch = groups * size(), groups * size(), size()
    window = [random.randint(1, 3) for _ in range(dims)]
    stride = [random.randint(1, 2) for _ in range(dims)]
    points = [random.randint(4, 9) for _ in range(dims)]
    x = torch.empty(batch, ci, *points, device="meta")
    weight_shape = (ci, co // groups, *window) if transposed else (co, ci // groups, *window)
    w = torch.empty(weight_shape, device="meta")
    out = torch.ops.aten.convolution(x, w, None, stride, [0] * dims, [1] * dims, transposed, [0] * dims, groups)
    return x, w, out, stride, dims, transposed, groups


def convolution():
    x, w, out, stride, dims, transposed, groups = geometry()
    args = [tensor(*x.shape), tensor(*w.shape), None, stride, [0] * dims, [1] * dims, transposed, [0] * dims, groups]
    return args, [tensor(*out.shape)]


def cudnn_convolution():
    while True:
        x, w, out, stride, dims, transposed, groups = geometry()
        if not transposed:
            args = [tensor(*x.shape), tensor(*w.shape), [0] * dims, stride, [1] * dims, groups, False, False, False]
            return args, [tensor(*out.shape)]


def convolution_backward():
    x, w, out, stride, dims, transposed, groups = geometry()
    mask = [random.random() < 0.7 for _ in range(3)]
    args = [tensor(*out.shape), tensor(*x.shape), tensor(*w.shape), None, stride, [0] * dims, [1] * dims, transposed,
            [0] * dims, groups, mask]
    outs = [tensor(*x.shape) if mask[0] else None, tensor(*w.shape) if mask[1] else None,
            tensor(out.shape[1]) if mask[2] else None]
    return args, outs


def qkv():
    b, kv, group, sq, sk, d, dv = (size() for _ in range(7))
    return tensor(b, kv * group, sq, d), tensor(b, kv, sk, d), tensor(b, kv, sk, dv), tensor(b, kv * group, sq, dv)


def attention():
    q, k, v, out = qkv()
    return [q, k, v], [out]


def attention_backward():
    q, k, v, out = qkv()
    return [out, q, k, v], [q, k, v]


def packed(rank):
    heads, d, sequences = size(), size(), size()
    tokens_q, tokens_k = random.randint(9, 30), random.randint(9, 30)
    lead = (1,) if rank == 4 else ()
    q, k = tensor(*lead, tokens_q, heads, d), tensor(*lead, tokens_k, heads, d)
    offsets = [tensor(sequences + 1), tensor(sequences + 1), size(), size()]
    return q, k, offsets


def varlen(rank, backward):
    if random.random() < 0.5:
        q, k, v, out = qkv()
        offsets = [None, None, 0, 0]
    else:
        q, k, offsets = packed(rank)
        v, out = k, q
    extra = [None] if rank == 4 else []
    if backward:
        # flash: out, logsumexp; efficient: bias, out
        return [out, q, k, v, None, None, *offsets], [q, k, v]
    return [q, k, v, *extra, *offsets], [out]


MAKERS = {
    "mm": mm, "addmm": addmm, "bmm": bmm, "baddbmm": baddbmm, "_scaled_mm": scaled_mm,
    "convolution": convolution, "_convolution": convolution, "convolution_overrideable": convolution,
    "cudnn_convolution": cudnn_convolution, "convolution_backward": convolution_backward,
    "_scaled_dot_product_efficient_attention": attention, "_scaled_dot_product_flash_attention": attention,
    "_scaled_dot_product_cudnn_attention": attention,
    "_scaled_dot_product_efficient_attention_backward": attention_backward,
    "_scaled_dot_product_flash_attention_backward": attention_backward,
    "_scaled_dot_product_cudnn_attention_backward": attention_backward,
    "_flash_attention_forward": lambda: varlen(3, False), "_flash_attention_backward": lambda: varlen(3, True),
    "_efficient_attention_forward": lambda: varlen(4, False), "_efficient_attention_backward": lambda: varlen(4, True),
}


def to_value(item):
    if isinstance(item, dict):
        return torch.empty(item["shape"], device="meta")
    return item


def main():
    for name, maker in MAKERS.items():
        formula = flop_registry[getattr(torch.ops.aten, name)]
        for _ in range(CALLS):
            args, out = maker()
            values = [to_value(item) for item in out]
            out_val = values[0] if len(values) == 1 else tuple(values)
            flops = formula(*[to_value(item) for item in args], out_val=out_val)
            print(json.dumps({"op": f"aten::{name}", "args": args, "out": out, "flops": flops}))


if __name__ == "__main__":
    main()
