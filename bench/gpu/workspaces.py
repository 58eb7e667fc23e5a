"""Measures temporary memory of single convolutions: peak allocation beyond operands and results."""

import json
import pathlib

import torch

CASES = []
for batch in (4, 16, 64):
    for channels, pixels in [(64, 56), (128, 28), (256, 14), (512, 7), (320, 64), (64, 256)]:
        if batch * channels * pixels * pixels > 64 * 64 * 112 * 112:
            continue
        CASES.append(((batch, channels, pixels, pixels), (channels, channels, 3, 3), 1, 1))
    CASES.append(((batch, 3, 224, 224), (64, 3, 7, 7), 2, 1))
    CASES.append(((batch, 64, 56, 56), (128, 64, 3, 3), 2, 1))
    CASES.append(((batch, 256, 28, 28), (512, 256, 1, 1), 2, 1))
    CASES.append(((batch, 1024, 14, 14), (256, 1024, 1, 1), 1, 1))
    CASES.append(((batch, 64, 56, 56), (256, 64, 1, 1), 1, 1))
    CASES.append(((batch, 3, 224, 224), (768, 3, 16, 16), 16, 1))
    CASES.append(((batch, 128, 56, 56), (128, 1, 7, 7), 1, 128))
    CASES.append(((batch, 256, 28, 28), (256, 8, 3, 3), 1, 32))


def measure(x, weight, stride, groups, dtype, last):
    image = torch.randn(x, device="cuda", dtype=dtype)
    kernel = torch.randn(weight, device="cuda", dtype=dtype)
    if last:
        image, kernel = (each.contiguous(memory_format=torch.channels_last) for each in (image, kernel))
    pad = weight[-1] // 2 if stride < 16 else 0
    row = {"x": x, "weight": weight, "stride": stride, "groups": groups, "dtype": str(dtype)[6:], "channels_last": last}

    def beyond(run):
        run()  # loads libraries and creates plans
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        kept = run()
        torch.cuda.synchronize()
        peak, after = torch.cuda.max_memory_allocated(), torch.cuda.memory_allocated()
        del kept
        return peak - after, after - before

    row["forward"], row["output"] = beyond(
        lambda: torch.ops.aten.convolution(image, kernel, None, [stride] * 2, [pad] * 2, [1, 1], False, [0, 0], groups)
    )
    out = torch.ops.aten.convolution(image, kernel, None, [stride] * 2, [pad] * 2, [1, 1], False, [0, 0], groups)
    gradient = torch.randn_like(out)
    for name, mask in {
        "both": [True, True, False],
        "input_gradient": [True, False, False],
        "weight_gradient": [False, True, False],
    }.items():
        row[name], _ = beyond(
            lambda mask=mask: torch.ops.aten.convolution_backward(
                gradient, image, kernel, None, [stride] * 2, [pad] * 2, [1, 1], False, [0, 0], groups, mask
            )
        )
    return row


def measured_workspaces(path):
    rows, failed = [], []
    for case in CASES:
        for dtype, last in [
            (torch.float32, False),
            (torch.bfloat16, False),
            (torch.bfloat16, True),
            (torch.float32, True),
        ]:
            try:
                rows.append(measure(*case, dtype, last))
            except Exception as error:
                failed.append(f"{case} {error}"[:200])
    pathlib.Path(path).write_text(json.dumps(rows) + "\n")
    return {"rows": len(rows), "failed": failed}


if __name__ == "__main__":
    import sys

    print(measured_workspaces(sys.argv[1]))
