"""The plain PyTorch models of bench/gpu/measure_gpu.py, captured, compared with the equivalent built-in C++ models."""

import json
import pathlib
import subprocess
import sys

import pytest
import torch

import shadowgraph as sg

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "bench/gpu"))
import measure_gpu


class Step(torch.nn.Module):
    """A model and, for training, its loss."""

    def __init__(self, name, dtype, trains):
        super().__init__()
        kind, full, _ = measure_gpu.MODELS[name]
        self.model = measure_gpu.convert(kind(**full), dtype)
        self.train(trains)

    def forward(self, *batch):
        if not self.training:
            return self.model(*batch[:-1])
        return self.model.loss(self.model(*batch[:-1]), batch[-1])


def figures(profile):
    return {"flops": {phase: count for phase, count in profile["flops"].items() if count},
            "peak": profile["peak"]["bytes"]}


@pytest.mark.parametrize("mode", measure_gpu.MODES)
@pytest.mark.parametrize("name", ["resnet18", "resnet50", "vit_b_16", "bert_base", "gpt2", "llama3_8b", "unet",
                                  "lstm_lm"])
def test_is_the_same_program(name, mode):
    size, sequence = next((size, sequence) for model, size, sequence in measure_gpu.CONFIGURATIONS if model == name)
    short = {"f32": torch.float32, "bf16": torch.bfloat16}
    dtype = "f32" if mode == "sgd" else "bf16"
    trains = mode != "infer"
    with torch.device("meta"):
        kind, full, _ = measure_gpu.MODELS[name]
        inputs, targets = kind(**full).batch(size, sequence, short[dtype])
    texts = {torch.float32: "f32", torch.bfloat16: "bf16", torch.int64: "i64"}
    batch = [f"{texts[t.dtype]}[{','.join(map(str, t.shape))}]" for t in [*inputs, targets]]
    report = sg.profile(lambda: Step(name, short[dtype], trains), batch, mode="train" if trains else "infer",
                        loss=(lambda loss: loss) if trains else None,
                        optimizer={"sgd": measure_gpu.Sgd, "adamw": torch.optim.AdamW}[mode] if trains else None,
                        device="cuda", spec="h100")
    command = [sys.executable, "-m", "_shadowgraph_tool", "profile", name, "--batch", str(size), "--dtype", dtype,
               "--device", "cuda", "--spec", "h100", "--json"]
    command += ["--seq", str(sequence)] if sequence else []
    command += ["--mode", "train", "--optimizer", mode] if trains else []
    built_in = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    plain = report.dict()
    # A torch without CUDA does not flatten the weights, so cuDNN copies them at each call, as in the command-line tool.
    # AdamW's step has its peak elsewhere.
    flattened = name == "lstm_lm" and mode == "sgd" and torch.version.cuda
    copied = sum(weight.nbytes for weight in kind(**full).rnn.parameters()) if flattened else 0
    expected = figures(built_in)
    expected["peak"] -= copied
    assert figures(plain) == expected
    # The order in which tensors with the same last use are freed changes the allocator's fragmentation.
    for figure, tolerance in [("allocated_peak_bytes", 0.001 if trains else 0.03), ("reserved_peak_bytes", 0.03)]:
        there = built_in["device_memory"][figure] - copied
        assert plain["device_memory"][figure] == pytest.approx(there, rel=tolerance)
