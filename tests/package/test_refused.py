"""Fake tensors that cannot exist are refused, even where a Python Meta kernel would return a result."""

import pytest
import torch

import shadowgraph as sg


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_tensors_of_quantized_dtypes_are_refused(device):
    # torch's Python Meta kernel would return a float32 tensor.
    with sg.fake(device):
        x = torch.empty(3, 4, device=device)
        scales, zeros = torch.ones(4, device=device), torch.zeros(4, dtype=torch.long, device=device)
        for call in (
            lambda: torch.quantize_per_tensor(x, 0.1, 10, torch.qint8),
            lambda: torch.quantize_per_tensor(x, scales[0], zeros[0], torch.qint8),
            lambda: torch.quantize_per_tensor([x, x], scales, zeros, torch.qint8),
            lambda: torch.quantize_per_channel(x, scales, zeros, 1, torch.quint8),
            lambda: torch.quantize_per_tensor_dynamic(x, torch.qint8, False),
            lambda: torch._empty_affine_quantized([3], scale=0.1, zero_point=0, dtype=torch.qint8, device=device),
        ):
            with pytest.raises(sg.NoRuleError, match="quantized dtype"):
                call()
        assert torch.fake_quantize_per_tensor_affine(x, 0.1, 0, -128, 127).dtype == torch.float32
