"""Calls that eager refuses are refused on fakes: PyTorch's own error inputs (OpInfo.error_inputs_func), all of them."""

import collections
import re
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch.testing._internal.common_methods_invocations import op_db

import shadowgraph as sg

# Error inputs that fakes accept, or refuse otherwise, with the reason and their number on the CPU and as CUDA.
CONTENTS = "the check reads contents"
ALLOWED = {
    "gather": (CONTENTS, 1, 0),
    "scatter": (CONTENTS, 1, 0),
    "scatter_add": (CONTENTS, 1, 0),
    "masked_fill": (CONTENTS, 1, 1),
    "multinomial": ("the check reads contents; 2^24 categories are not counted", 15, 1),
    "nn.functional.gaussian_nll_loss": ("a host read comes first", 2, 2),
    "index_select": ("out= overlaps with itself", 1, 1),
    "kthvalue": ("out= overlaps with its operand", 1, 1),
    "take": ("out= overlaps with its operand", 2, 2),
    "median": ("CUDA's limit of 25 dimensions", 0, 1),
    "narrow_copy": ("the CPU's own check of `dim`, an internal assertion; fakes raise IndexError", 1, 0),
}


def error_of(call):
    try:
        call()
    except Exception as error:
        return error
    return None


def error_inputs(device):
    """Yields (operator, call, the error that OpInfo expects on `device`)."""
    for op in op_db:
        if op.error_inputs_func is None:
            continue
        name = op.name + ("." + op.variant_test_name if op.variant_test_name else "")
        for expected in op.error_inputs_func(op, device):
            sample = expected.sample_input
            yield name, lambda op=op, s=sample: op(s.input, *s.args, **s.kwargs), expected


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_error_inputs_are_refused(device):
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    # On the CPU eager itself is the reference; for CUDA, the errors that OpInfo lists.
    eager = [error_of(call) for _, call, _ in error_inputs("cpu")] if device == "cpu" else None
    differing, count = collections.Counter(), 0
    with sg.fake(device):
        for number, (name, call, expected) in enumerate(error_inputs(device)):
            kind = type(eager[number]) if eager is not None else expected.error_type
            if kind is type(None) or kind is Exception:
                continue  # eager accepts it
            count += 1
            differing[name] += not isinstance(error_of(call), kind)
    assert count > (680 if device == "cpu" else 520)  # OpInfo lists fewer for CUDA
    position = 1 if device == "cpu" else 2
    assert +differing == {name: row[position] for name, row in ALLOWED.items() if row[position] > 0}


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool])
@pytest.mark.parametrize("name, device", [
    ("_scaled_dot_product_flash_attention_for_cpu", "cpu"), ("_scaled_dot_product_flash_attention", "cuda"),
    ("_scaled_dot_product_efficient_attention", "cuda"), ("_scaled_dot_product_cudnn_attention", "cuda"),
    ("_flash_attention_forward", "cuda"), ("_efficient_attention_forward", "cuda")])  # fmt: skip
def test_attention_of_integers_is_refused(name, device, dtype):
    extra = {"_scaled_dot_product_efficient_attention": (None, True),
             "_scaled_dot_product_cudnn_attention": (None, True),
             "_flash_attention_forward": (None, None, 16, 16, 0.0, False, False),
             "_efficient_attention_forward": (None, None, None, None, None, 0.0, 0, True)}.get(name, ())  # fmt: skip
    operator = getattr(torch.ops.aten, name)
    with sg.fake(device):
        x = torch.zeros(1, 2, 16, 8, dtype=torch.float16, device=device)
        operator(x, x, x, *extra)
        with pytest.raises(RuntimeError, match="not implemented for"):
            operator(*(x.to(dtype),) * 3, *extra)
        with pytest.raises(RuntimeError, match="operands must have one dtype"):
            operator(x, x.bfloat16(), x, *extra)
        if "flash_attention" in name and device == "cuda":
            with pytest.raises(RuntimeError, match=re.escape("FlashAttention only support fp16 and bf16 data type")):
                operator(*(x.float(),) * 3, *extra)


@pytest.mark.parametrize("size", [(16, 16), (1, 16, 16), (2, 16, 16), (2, 4, 16, 16)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bool, torch.int64])
def test_masks_of_attention(size, dtype):
    def run():
        x, mask = torch.ones(2, 4, 16, 8), torch.ones(size).to(dtype)
        fused = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        calls = [
            lambda: F.scaled_dot_product_attention(x, x, x, attn_mask=mask),
            lambda: fused(x, x, x, attn_mask=mask),
        ]
        return [error_of(call) for call in calls]

    real = run()
    with sg.fake("cpu"):
        fake = run()
    assert [str(each) for each in fake] == [str(each) for each in real]
