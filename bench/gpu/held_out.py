"""Operators on which the time model was not fitted. Importing this adds them to single_operators.OPERATORS."""

import torch
from single_operators import (
    BF16,
    E4,
    F16,
    F32,
    NAMES,
    add,
    add_attention,
    add_convolutions,
    both_ways,
    embedding,
    entropy,
    grouped,
    of,
    on,
    plain,
    scaled,
    tf32,
)
from torch.nn import functional as F

for rows, inner, columns in [
    (6144, 5120, 5120),
    (3072, 3072, 12288),
    (10000, 2048, 2048),
    (4096, 7168, 2048),
    (1536, 6144, 6144),
    (20480, 2560, 640),
    (128, 8192, 8192),
    (5000, 1001, 3003),
]:
    plain("mm", torch.mm, (rows, inner), (inner, columns), dtypes=(BF16,))
    add(
        f"linear f16 {rows}x{inner}x{columns}",
        lambda r=rows, i=inner, c=columns: on(F.linear, of(r, i, dtype=F16), of(c, i, dtype=F16)),
    )
plain("bmm", torch.bmm, (96, 1536, 80), (96, 80, 1536), dtypes=(BF16,))
add("mm tf32 6144", tf32(6144))
add("_scaled_mm e4m3 e4m3 6144x6144x6144", scaled(6144, 6144, 6144, E4, E4))
add("_grouped_mm bf16 16 x 24576x3072x3072", grouped(16, 24576, 3072, 3072))
for name, causal in [("FLASH", True), ("EFFICIENT", True), ("CUDNN", True), ("FLASH", False)]:
    add_attention(f"{name}_ATTENTION", causal, 2, 40, 3072, 128)
ODD, ROWS = (12000, 5120), (30000, 2048)
both_ways("add", torch.add, ODD, ODD)
both_ways("gelu", F.gelu, ODD)
plain("add to a row", torch.add, ODD, (5120,))
plain("to float", lambda x: x.float(), ODD, dtypes=(BF16,))
plain("heads apart", lambda x: x.transpose(1, 2).contiguous(), (6, 1536, 40, 128))
plain("contiguous transposed", lambda x: x.t().contiguous(), ODD)
plain("channels last", lambda x: x.contiguous(memory_format=torch.channels_last), (48, 192, 40, 40))
plain("cat", lambda x, y: torch.cat([x, y], -1), ODD, ODD)
plain("rotate half", lambda x: torch.cat([-x[..., 48:], x[..., :48]], -1), (6, 40, 3072, 96))
both_ways("dropout", lambda x: F.dropout(x, 0.2), ODD)
for size in [ODD, ROWS, (4096, 50257)]:
    both_ways("softmax", lambda x: F.softmax(x, -1), size)
    both_ways("log_softmax", lambda x: F.log_softmax(x, -1), size)
for size in [ODD, ROWS, (50000, 384)]:
    both_ways("layer_norm", lambda x, w, b: F.layer_norm(x, x.shape[-1:], w, b), size, size[-1:], size[-1:])
    both_ways("rms_norm", lambda x, w: F.rms_norm(x, x.shape[-1:], w, 1e-5), size, size[-1:])
both_ways(
    "batch_norm", lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True), (48, 192, 40, 40), (192,), (192,)
)
both_ways("group_norm", lambda x, w, b: F.group_norm(x, 32, w, b), (24, 640, 32, 32), (640,), (640,))
plain("sum of rows", lambda x: x.sum(-1), ODD)
plain("sum of columns", lambda x: x.sum(0), ODD)
plain("var", lambda x: x.var(-1), ODD)
plain("cumsum", lambda x: x.cumsum(-1), ODD, dtypes=(F32,))
plain("sort", lambda x: x.sort(-1)[0], (6000, 3000), dtypes=(F32,))
plain("topk 6 of 160", lambda x: x.topk(6, -1)[0], (50000, 160), dtypes=(F32,))
both_ways("max_pool2d", lambda x: F.max_pool2d(x, 2), (48, 96, 80, 80))
both_ways("interpolate bilinear", lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), (12, 48, 96, 96))
for dtype in (BF16, F32):
    for back in (False, True):
        add(
            f"embedding{' both ways' if back else ''} {NAMES[dtype]} 24000 of 50257x2048",
            embedding(24000, 50257, 2048, dtype, back),
        )
    add(f"cross_entropy both ways {NAMES[dtype]} 3000x50257", entropy(3000, 50257, dtype))
add_convolutions(
    [
        ((48, 96, 80, 80), (96, 96, 3, 3), 1, 1),
        ((48, 384, 20, 20), (384, 384, 3, 3), 1, 1),
        ((48, 96, 80, 80), (192, 96, 3, 3), 2, 1),
        ((48, 512, 20, 20), (2048, 512, 1, 1), 1, 1),
        ((32, 3, 256, 256), (96, 3, 4, 4), 4, 1),
        ((48, 192, 40, 40), (192, 1, 5, 5), 1, 192),
    ]
)
