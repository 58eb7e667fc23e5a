"""Single operators to time on a GPU. Each entry creates its tensors and returns the function to time.

Most access at least 100 MB, so that they exceed the L2 cache and are not host bound.
"""

import itertools
import json
import pathlib
import statistics

import torch
from torch.nn import functional as F

OPERATORS = {}
BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
E4, E5 = torch.float8_e4m3fn, torch.float8_e5m2
NAMES = {BF16: "bf16", F16: "f16", F32: "f32", torch.int64: "i64", E4: "e4m3", E5: "e5m2"}


def of(*sizes, dtype=BF16, grad=False):
    return torch.randn(sizes, device="cuda", dtype=dtype).requires_grad_(grad)


def whole(high, *sizes):
    return torch.randint(high, sizes, device="cuda")


def add(name, make):
    """Registers an operator. `make` returns the function to time."""
    assert name not in OPERATORS, name
    OPERATORS[name] = make


def on(function, *given):
    return lambda: function(*given)


def plain(name, function, *sizes, dtypes=(BF16, F32)):
    """Registers a function of tensors with these sizes."""
    for dtype in dtypes:

        def make(dtype=dtype):
            given = [of(*each, dtype=dtype) for each in sizes]
            return lambda: function(*given)

        add(f"{name} {NAMES[dtype]} {' '.join('x'.join(map(str, each)) for each in sizes)}", make)


def both_ways(name, function, *sizes, dtypes=(BF16, F32)):
    """Registers a function twice: only forward, and forward with backward."""
    plain(name, function, *sizes, dtypes=dtypes)
    for dtype in dtypes:

        def make(dtype=dtype):
            given = [of(*each, dtype=dtype, grad=True) for each in sizes]
            seed = torch.ones_like(function(*given))
            return lambda: torch.autograd.grad(function(*given), given, seed)

        add(f"{name} both ways {NAMES[dtype]} {' '.join('x'.join(map(str, each)) for each in sizes)}", make)


for rows, inner, columns in [
    (4096, 4096, 4096),
    (8192, 8192, 8192),
    (16384, 4096, 4096),
    (2048, 4096, 14336),
    (2048, 14336, 4096),
    (4096, 1024, 1024),
    (1024, 4096, 4096),
    (256, 4096, 4096),
    (16, 4096, 14336),
    (4096, 8192, 28672),
    (2048, 4096, 128256),
    (8192, 768, 3072),
    (8192, 3072, 768),
    (12608, 1024, 4096),
    (512, 512, 512),
    (3000, 1000, 2500),
]:
    plain("mm", torch.mm, (rows, inner), (inner, columns), dtypes=(BF16,))

    def linear(rows=rows, inner=inner, columns=columns):
        x, weight, bias = of(rows, inner), of(columns, inner), of(columns)
        return lambda: F.linear(x, weight, bias)

    add(f"linear bf16 {rows}x{inner}x{columns}", linear)

    def weights(rows=rows, inner=inner, columns=columns):
        x, gradient = of(rows, inner), of(rows, columns)
        return lambda: gradient.t() @ x

    add(f"mm of a weight bf16 {rows}x{inner}x{columns}", weights)
for size in (2048, 4096, 8192):
    plain("mm", torch.mm, (size, size), (size, size), dtypes=(F32, F16))
plain("bmm", torch.bmm, (256, 1024, 64), (256, 64, 1024))
plain("bmm", torch.bmm, (256, 1024, 1024), (256, 1024, 64))
plain("bmm", torch.bmm, (32, 2048, 128), (32, 128, 2048), dtypes=(BF16,))


def tf32(size):
    def make():
        torch.backends.cuda.matmul.allow_tf32 = True
        a, b = of(size, size, dtype=F32), of(size, size, dtype=F32)
        return lambda: a @ b

    return make


for size in (4096, 8192):
    add(f"mm tf32 {size}", tf32(size))


def scaled(rows, inner, columns, left, right, per_row=False):
    def make():
        a = of(rows, inner, dtype=F32).to(left)
        b = of(columns, inner, dtype=F32).to(right).t()
        one = torch.ones((), device="cuda")
        scales = (torch.ones(rows, 1, device="cuda"), torch.ones(1, columns, device="cuda")) if per_row else (one, one)
        return lambda: torch._scaled_mm(a, b, *scales, out_dtype=BF16)

    return make


for rows, inner, columns in [(4096, 4096, 4096), (8192, 8192, 8192), (8192, 4096, 14336), (16384, 8192, 8192)]:
    for left, right in [(E4, E4), (E5, E4)]:
        add(
            f"_scaled_mm {NAMES[left]} {NAMES[right]} {rows}x{inner}x{columns}",
            scaled(rows, inner, columns, left, right),
        )
    add(f"_scaled_mm by row e4m3 {rows}x{inner}x{columns}", scaled(rows, inner, columns, E4, E4, per_row=True))


def grouped(groups, rows, inner, columns):
    def make():
        x, weights = of(rows, inner), of(groups, columns, inner).transpose(1, 2)
        ends = torch.arange(1, groups + 1, device="cuda", dtype=torch.int32) * (rows // groups)
        return lambda: torch._grouped_mm(x, weights, ends)

    return make


for groups, rows, inner, columns in [
    (8, 16384, 4096, 14336),
    (32, 16384, 2048, 1408),
    (64, 8192, 2048, 1024),
    (256, 32768, 7168, 2048),
]:
    add(f"_grouped_mm bf16 {groups} x {rows}x{inner}x{columns}", grouped(groups, rows, inner, columns))


def add_attention(backend, causal, *sizes):
    def attend(q, k, v):
        from torch.nn.attention import SDPBackend, sdpa_kernel

        with sdpa_kernel(getattr(SDPBackend, backend)):
            return F.scaled_dot_product_attention(q, k, v, is_causal=causal)

    both_ways(f"{backend.lower()}{' causal' if causal else ''}", attend, *3 * [sizes], dtypes=(BF16,))


for batch, heads, length, width, causal in [
    (4, 32, 4096, 128, True),
    (4, 32, 4096, 128, False),
    (1, 32, 8192, 128, True),
    (16, 16, 1024, 64, True),
    (16, 16, 1024, 64, False),
    (64, 12, 512, 64, False),
    (8, 16, 2048, 96, True),
    (4, 8, 2048, 256, True),
    (256, 12, 197, 64, False),
]:
    for backend in ("FLASH_ATTENTION", "EFFICIENT_ATTENTION", "CUDNN_ATTENTION"):
        if backend != "CUDNN_ATTENTION" or (length != 197 and width not in (96, 256)):
            add_attention(backend, causal, batch, heads, length, width)
both_ways(
    "efficient_attention f32",
    lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
    *3 * [(4, 16, 1024, 64)],
    dtypes=(F32,),
)

BIG, WIDE = (8192, 8192), (16384, 4096)
both_ways("add", torch.add, BIG, BIG)
both_ways("mul", torch.mul, BIG, BIG)
plain("add to a row", torch.add, BIG, (8192,))
both_ways("gelu", F.gelu, BIG)
both_ways("gelu tanh", lambda x: F.gelu(x, approximate="tanh"), BIG)
both_ways("silu", F.silu, BIG)
both_ways("relu", F.relu, BIG)
both_ways("sigmoid", torch.sigmoid, BIG)
both_ways("tanh", torch.tanh, BIG)
plain("exp", torch.exp, BIG)
plain("rsqrt", torch.rsqrt, BIG)
plain("pow 2", lambda x: x.pow(2), BIG)
plain("where", lambda x, y: torch.where(x > 0, x, y), BIG, BIG)
plain("to float", lambda x: x.float(), BIG, dtypes=(BF16,))
plain("to bf16", lambda x: x.bfloat16(), BIG, dtypes=(F32,))
plain("clone", torch.clone, BIG)
plain("contiguous transposed", lambda x: x.t().contiguous(), BIG)
plain("heads apart", lambda x: x.transpose(1, 2).contiguous(), (8, 2048, 32, 128))
plain("channels last", lambda x: x.contiguous(memory_format=torch.channels_last), (32, 256, 56, 56))
plain("cat", lambda x, y: torch.cat([x, y], -1), BIG, BIG)
plain("cat of rows", lambda x, y: torch.cat([x, y]), BIG, BIG)
plain("rotate half", lambda x: torch.cat([-x[..., 64:], x[..., :64]], -1), (8, 32, 2048, 128))
plain("fill", lambda x: x.zero_(), BIG)
plain("add in place", lambda x, y: x.add_(y), BIG, BIG)
plain("masked_fill", lambda x, y: x.masked_fill(y > 0, 0.0), BIG, BIG)
plain("tril", torch.tril, BIG)
plain("roll", lambda x: torch.roll(x, (3, 3), (1, 2)), (32, 56, 56, 512))
plain("pad", lambda x: F.pad(x, (1, 1, 1, 1)), (32, 256, 56, 56))
both_ways("dropout", lambda x: F.dropout(x, 0.1), BIG)
plain("randn", lambda x: torch.randn_like(x), BIG)
plain("bernoulli", lambda x: torch.empty_like(x).bernoulli_(0.5), BIG)

for size in [BIG, (65536, 1024), (2048, 32000), (512, 128256)]:
    both_ways("softmax", lambda x: F.softmax(x, -1), size)
    both_ways("log_softmax", lambda x: F.log_softmax(x, -1), size)
plain("softmax over rows", lambda x: F.softmax(x, 0), BIG)
for size in [BIG, (65536, 768), WIDE, (32 * 56 * 56, 128)]:
    both_ways("layer_norm", lambda x, w, b: F.layer_norm(x, x.shape[-1:], w, b), size, size[-1:], size[-1:])
    both_ways("rms_norm", lambda x, w: F.rms_norm(x, x.shape[-1:], w, 1e-5), size, size[-1:])
both_ways(
    "batch_norm", lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True), (64, 256, 56, 56), (256,), (256,)
)
both_ways("group_norm", lambda x, w, b: F.group_norm(x, 32, w, b), (16, 320, 64, 64), (320,), (320,))
plain("sum", torch.sum, BIG)
plain("sum of rows", lambda x: x.sum(-1), BIG)
plain("sum of columns", lambda x: x.sum(0), BIG)
plain("mean of squares", lambda x: x.pow(2).mean(-1, keepdim=True), BIG)
plain("max of rows", lambda x: x.max(-1)[0], BIG)
plain("argmax", lambda x: x.argmax(-1), BIG)
plain("norm", torch.linalg.vector_norm, BIG)
plain("var", lambda x: x.var(-1), BIG)
plain("cumsum", lambda x: x.cumsum(-1), BIG, dtypes=(F32,))
plain("cumsum of columns", lambda x: x.cumsum(0), BIG, dtypes=(F32,))
plain("sort", lambda x: x.sort(-1)[0], (4096, 4096), dtypes=(F32,))
plain("sort short", lambda x: x.sort(-1)[0], (65536, 128), dtypes=(F32,))
plain("sort one", lambda x: x.sort(-1)[0], (1 << 24,), dtypes=(F32,))
plain("topk 8 of 256", lambda x: x.topk(8, -1)[0], (65536, 256), dtypes=(F32, BF16))
plain("topk 50", lambda x: x.topk(50, -1)[0], (512, 128256), dtypes=(F32,))
add("argsort i64 131072", lambda: on(lambda x: x.argsort(stable=True), whole(256, 131072)))
add("bincount i64 131072", lambda: on(lambda x: torch.bincount(x, minlength=256), whole(256, 131072)))
both_ways("max_pool2d", lambda x: F.max_pool2d(x, 3, 2, 1), (64, 64, 112, 112))
both_ways("avg_pool2d", lambda x: F.avg_pool2d(x, 2), (64, 64, 112, 112))
both_ways("adaptive_avg_pool2d", lambda x: F.adaptive_avg_pool2d(x, 1), (64, 2048, 7, 7))
both_ways("interpolate bilinear", lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), (16, 64, 128, 128))
both_ways("interpolate nearest", lambda x: F.interpolate(x, scale_factor=2), (16, 64, 128, 128))


def embedding(rows, words, width, dtype, back):
    def make():
        ids, weight = whole(words, rows), of(words, width, dtype=dtype, grad=back)
        seed = of(rows, width, dtype=dtype)
        return lambda: torch.autograd.grad(F.embedding(ids, weight), weight, seed) if back else F.embedding(ids, weight)

    return make


for rows, words, width in [(16384, 128256, 4096), (65536, 32000, 1024)]:
    for dtype in (BF16, F32):
        for back in (False, True):
            add(
                f"embedding{' both ways' if back else ''} {NAMES[dtype]} {rows} of {words}x{width}",
                embedding(rows, words, width, dtype, back),
            )


def indexed(function, dtype):
    def make():
        x, ids, rows = of(32768, 4096, dtype=dtype), whole(32768, 16384), of(16384, 4096, dtype=dtype)
        return lambda: function(x, ids, rows)

    return make


for dtype in (BF16, F32):
    for name, function in {
        "index": lambda x, ids, rows: x[ids],
        "index_select": lambda x, ids, rows: x.index_select(0, ids),
        "index_add": lambda x, ids, rows: x.index_add(0, ids, rows),
        "index_add_": lambda x, ids, rows: x.index_add_(0, ids, rows),
        "index_put_": lambda x, ids, rows: x.index_put_((ids,), rows),
        "index_put_ accumulate": lambda x, ids, rows: x.index_put_((ids,), rows, accumulate=True),
        "gather": lambda x, ids, rows: rows.gather(0, ids[:, None].expand_as(rows) % 16384),
        "scatter_add_": lambda x, ids, rows: x.scatter_add_(0, ids[:, None].expand_as(rows), rows),
        "index_copy_": lambda x, ids, rows: x.index_copy_(0, ids, rows),
    }.items():
        add(f"{name} {NAMES[dtype]} 16384 of 32768x4096", indexed(function, dtype))


def entropy(rows, words, dtype):
    def make():
        logits, labels = of(rows, words, dtype=dtype, grad=True), whole(words, rows)
        return lambda: torch.autograd.grad(F.cross_entropy(logits, labels), logits)

    return make


for rows, words in [(4096, 32000), (2048, 128256)]:
    for dtype in (BF16, F32):
        add(f"cross_entropy both ways {NAMES[dtype]} {rows}x{words}", entropy(rows, words, dtype))


def convolution(x, weight, dtype, stride=1, groups=1, last=False, back=False):
    def make():
        image, kernel = of(*x, dtype=dtype, grad=back), of(*weight, dtype=dtype, grad=back)
        if last:
            image, kernel = (
                each.detach().contiguous(memory_format=torch.channels_last).requires_grad_(back)
                for each in (image, kernel)
            )
        run = lambda: F.conv2d(image, kernel, None, stride, weight[-1] // 2, 1, groups)  # noqa: E731
        seed = torch.ones_like(run())
        return (lambda: torch.autograd.grad(run(), (image, kernel), seed)) if back else run

    return make


def add_convolutions(cases):
    for (x, weight, stride, groups), (dtype, last), back in itertools.product(
        cases, [(F32, False), (BF16, False), (BF16, True)], (False, True)
    ):
        add(
            f"conv2d{' both ways' if back else ''} {NAMES[dtype]}{' channels last' if last else ''} "
            f"{'x'.join(map(str, x))} {'x'.join(map(str, weight))} by {stride}",
            convolution(x, weight, dtype, stride, groups, last, back),
        )


add_convolutions(
    [
        ((64, 64, 56, 56), (64, 64, 3, 3), 1, 1),
        ((64, 256, 14, 14), (256, 256, 3, 3), 1, 1),
        ((64, 256, 56, 56), (64, 256, 1, 1), 1, 1),
        ((64, 1024, 14, 14), (256, 1024, 1, 1), 1, 1),
        ((64, 3, 224, 224), (64, 3, 7, 7), 2, 1),
        ((64, 512, 7, 7), (512, 512, 3, 3), 1, 1),
        ((32, 128, 56, 56), (128, 1, 7, 7), 1, 128),
        ((32, 256, 28, 28), (256, 8, 3, 3), 1, 32),
        ((4, 320, 64, 64), (320, 320, 3, 3), 1, 1),
        ((64, 3, 224, 224), (768, 3, 16, 16), 16, 1),
    ]
)


def recurrent(kind, dtype):
    def make():
        module = getattr(torch.nn, kind)(1024, 1024, 2, batch_first=True).to("cuda", dtype)
        x = of(64, 256, 1024, dtype=dtype)
        return lambda: torch.autograd.grad(module(x)[0].sum(), list(module.parameters()))

    return make


for kind in ("LSTM", "GRU"):
    for dtype in (BF16, F32):
        add(f"{kind} both ways {NAMES[dtype]} 64x256x1024 2 layers", recurrent(kind, dtype))


def clipping(dtype):
    def make():
        parameters = [of(4096, 4096, dtype=dtype, grad=True) for _ in range(16)]
        for each in parameters:
            each.grad = torch.ones_like(each)
        return on(torch.nn.utils.clip_grad_norm_, parameters, 1.0)

    return make


def optimizer(make_one, dtype):
    def make():
        parameters = [of(4096, 4096, dtype=dtype) for _ in range(16)] + [of(4096, dtype=dtype) for _ in range(16)]
        for each in parameters:
            each.grad = torch.ones_like(each)
        return make_one(parameters).step

    return make


for dtype in (BF16, F32):
    for name, made in {
        "AdamW foreach": lambda p: torch.optim.AdamW(p, foreach=True),
        "AdamW fused": lambda p: torch.optim.AdamW(p, fused=True),
        "SGD momentum": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9),
        "Adafactor": lambda p: torch.optim.Adafactor(p),
    }.items():
        add(f"{name} {NAMES[dtype]} 268M", optimizer(made, dtype))
    add(f"clip_grad_norm {NAMES[dtype]} 268M", clipping(dtype))


def seconds_of(run):
    """Returns the time per call in seconds: the median of five groups of back-to-back calls of about 5 ms."""
    for _ in range(3):
        run()
    torch.cuda.synchronize()

    def group(calls):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(calls):
            run()
        end.record()
        torch.cuda.synchronize()
        return begin.elapsed_time(end) / 1e3 / calls

    calls = max(1, min(200, round(5e-3 / group(2))))
    return statistics.median(group(calls) for _ in range(5))


def host_of(run):
    import time

    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(5):
        run()
    issued = (time.perf_counter() - began) / 5
    torch.cuda.synchronize()
    return issued


def measured_operators(path, first=0):
    rows, failed = {}, {}
    for name, make in list(OPERATORS.items())[first:]:
        torch.backends.cuda.matmul.allow_tf32 = False
        try:
            run = make()
            rows[name] = {"seconds": seconds_of(run), "host": host_of(run)}
            del run
        except Exception as error:
            failed[name] = str(error)[:300]
    pathlib.Path(path).write_text(json.dumps({"rows": rows, "failed": failed}, indent=1) + "\n")
    return {"rows": len(rows), "failed": failed}
