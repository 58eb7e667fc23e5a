#!/usr/bin/env python3
"""Compares predicted with measured peak memory and time of steps on the CPU of this machine.

    accuracy.py BUILD [--only NAME ...] [--quick] [--figures docs/figures/16-accuracy.json]

Covers the built-in models that fit in memory, and TorchScript files of six other architectures at common sizes. Each
step runs in a separate process (build/bin/step_accuracy) on one thread: inference, SGD and AdamW in float32, and AdamW
in bfloat16. Rows are stored in BUILD/accuracy/rows.json, so that an interrupted run can continue.

--quick runs one step per model. --figures writes a section of docs/figures.md (scripts/write_figures.py) with a row per
model, and all rows as data.
"""

import argparse
import datetime
import json
import os
import pathlib
import statistics
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "scripts"))
import write_figures

# name, batch, sequence
BUILT_IN = [("resnet18", 8, 0), ("resnet50", 4, 0), ("vit_b_16", 4, 0), ("bert_base", 2, 256), ("gpt2", 2, 256),
            ("unet", 1, 0), ("lstm_lm", 8, 64), ("gpt2_medium", 1, 128)]
# {built-in model: modules with activation checkpoints}
CHECKPOINTS = {"resnet50": "auto", "vit_b_16": "auto", "bert_base": "auto", "gpt2": "auto"}
# {name: input spec}; created by make_script()
SCRIPTS = {
    "wav2vec2": "f32[1,32000]",
    "convnext_tiny": "f32[2,3,224,224]",
    "swin_tiny": "f32[2,3,224,224]",
    "whisper_encoder": "f32[1,80,3000]",
    "mobilenet_v2": "f32[4,3,224,224]",
    "distilbert": "i64[2,128]",
}


def make_script(name, path):
    import types

    import torch

    # transformers only needs the transforms of torchvision, not its compiled operators.
    sys.modules.setdefault("torchvision._meta_registrations", types.ModuleType("torchvision._meta_registrations"))
    import transformers as hf

    torch.manual_seed(0)
    build = {
        "wav2vec2": lambda: hf.Wav2Vec2Model(hf.Wav2Vec2Config(attn_implementation="eager", apply_spec_augment=False,
                                                               layerdrop=0.0)),
        "convnext_tiny": lambda: hf.ConvNextForImageClassification(hf.ConvNextConfig(num_labels=1000)),
        "swin_tiny": lambda: hf.SwinForImageClassification(hf.SwinConfig(num_labels=1000)),
        "whisper_encoder": lambda: hf.models.whisper.modeling_whisper.WhisperEncoder(
            hf.WhisperConfig(d_model=384, encoder_layers=4, encoder_attention_heads=6, encoder_ffn_dim=1536,
                             attn_implementation="eager", encoder_layerdrop=0.0)),
        "mobilenet_v2": lambda: hf.MobileNetV2ForImageClassification(hf.MobileNetV2Config(num_labels=1000)),
        "distilbert": lambda: hf.DistilBertForSequenceClassification(hf.DistilBertConfig(attn_implementation="eager")),
    }[name]
    dtype, sizes = SCRIPTS[name].split("[")
    sizes = [int(size) for size in sizes.rstrip("]").split(",")]
    example = torch.randint(0, 90, sizes) if dtype == "i64" else torch.rand(sizes)
    model = build().train()

    class Plain(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, x):
            return self.model(x)[0]

    torch.jit.trace(Plain().train(), (example,), check_trace=False, strict=False).save(path)


def percent(predicted, real):
    return f"{100 * (predicted / real - 1):+.2f} %"


def mib(count):
    return f"{count / 2**20:,.1f}"


def worst(values):
    return f"{100 * max(values, key=abs):+.2f} %"


def mean(values):
    return f"{100 * statistics.mean(values):.1f} %"


ABOUT = """Errors against real steps of inference, SGD and AdamW in float32, AdamW in bfloat16, and with checkpoints,
counting every allocation. *Live* is the peak of live storages. *With scratch* adds temporary memory of kernels,
measured once per distinct call (`--measure`). Times are estimated from `shadowgraph calibrate`, and from measured
calls."""


def figures(rows, machine, measured):
    """Returns the section of docs/figures.md: errors per model, and all rows as data."""

    def errors(some, predicted, real):
        return [row[predicted] / row[real] - 1 for row in some]

    def mean_error(some, predicted):
        return mean([abs(error) for error in errors(some, predicted, "real_seconds")]) if some else ""

    models = {}
    for row in rows:
        models.setdefault(row["model"], []).append(row)
    summed, timed = [], [row for row in rows if "estimated_seconds" in row]
    for name, own in models.items():
        own_timed = [row for row in own if row in timed]
        summed.append([name, str(len(own)), worst(errors(own, "live_peak", "real_peak")),
                       worst(errors(own, "peak", "real_peak")), mean_error(own_timed, "estimated_seconds"),
                       mean_error(own_timed, "measured_calls_seconds")])
    times = ("estimated_seconds", "measured_calls_seconds", "real_seconds")
    every = [[row["model"], row["size"], row["mode"], row["dtype"], mib(row["live_peak"]), mib(row["peak"]),
              mib(row["real_peak"]), row["peak_op"], *(f"{row[key]:.3f}" if key in row else "" for key in times)]
             for row in rows]
    reading = [f"The worst error of the peak with scratch is {worst(errors(rows, 'peak', 'real_peak'))} (aim: between "
               "-0.5 % and +3 %)."]
    if built_in := [row for row in timed if row["model"] in {name for name, _, _ in BUILT_IN}]:
        apart, right = ordered_pairs(timed)
        reading += [f"The mean error of the estimated time of built-in models is "
                    f"{mean_error(built_in, 'estimated_seconds')} (aim: at most 20 %).",
                    f"Of {apart} pairs of steps whose real times differ by at least 25 %, "
                    f"{100 * right / max(1, apart):.1f} % are ordered correctly."]
    if left := sorted({op for row in rows for op, _, _ in row["not_measured"]}):
        reading.append(f"Temporary memory of calls that could not be measured is not included: "
                       f"{', '.join(f'`{op}`' for op in left)}.")
    return {
        "title": "Accuracy on a CPU", "about": ABOUT.replace("\n", " "), "measured": measured, "machine": machine,
        "command": "make accuracy", "reading": reading,
        "tables": [
            {"columns": ["model", "steps", "live peak off, worst", "with scratch, worst", "time off, mean",
                         "by measured calls, mean"], "rows": summed},
            {"about": "Every step: MiB of the first step, seconds of a later one", "data_only": True,
             "columns": ["model", "size", "mode", "dtype", "live", "with scratch", "real", "at", "estimated s",
                         "measured calls s", "real s"], "rows": every}]}


def ordered_pairs(rows):
    """Returns (pairs of steps whose real times differ by at least 25 %, number of these estimated in that order)."""
    apart = right = 0
    for i, one in enumerate(rows):
        for other in rows[:i]:
            fast, slow = sorted((one, other), key=lambda row: row["real_seconds"])
            if slow["real_seconds"] < 1.25 * fast["real_seconds"]:
                continue
            apart += 1
            right += fast["estimated_seconds"] < slow["estimated_seconds"]
    return apart, right


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--figures", type=pathlib.Path)
    options = parser.parse_args()
    folder = options.build / "accuracy"
    folder.mkdir(parents=True, exist_ok=True)
    environment = dict(os.environ, OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", XDG_CACHE_HOME=str(folder.resolve()))
    spec = folder / "machine.json"
    tool = options.build / "bin" / "shadowgraph"
    if not spec.exists():
        subprocess.run([tool, "calibrate", "-o", spec], env=environment, check=True)
    kept = folder / "rows.json"
    rows = json.loads(kept.read_text()) if kept.exists() else {}

    wanted = []
    kinds = [("sgd", "f32")]
    if not options.quick:
        kinds = [("infer", "f32"), ("sgd", "f32"), ("adamw", "f32"), ("adamw", "bf16")]
    for name, batch, seq in BUILT_IN:
        size = f"{batch}x{seq}" if seq else str(batch)
        arguments = [name, "--batch", str(batch)] + (["--seq", str(seq)] if seq else [])
        for mode, dtype in kinds:
            wanted.append((name, size, mode, dtype, arguments))
        if name in CHECKPOINTS and not options.quick:
            wanted.append((name, f"{size}, checkpoints", "sgd", "f32",
                           [*arguments, "--checkpoint", CHECKPOINTS[name]]))  # fmt: skip
    for name, shape in SCRIPTS.items():
        for mode, dtype in [kind for kind in kinds if kind[1] == "f32"]:
            wanted.append((name, shape.split("[")[1].rstrip("]").replace(",", "x"), mode, dtype,
                           [str(folder / f"{name}.pt"), "--input", shape]))
    for name, size, mode, dtype, arguments in wanted:
        key = f"{name} {size} {mode} {dtype}"
        if key in rows or (options.only and name not in options.only):
            continue
        if name in SCRIPTS and not (folder / f"{name}.pt").exists():
            make_script(name, folder / f"{name}.pt")
        print(key, flush=True)
        command = [options.build / "bin" / "step_accuracy", *arguments, "--mode", mode, "--dtype", dtype,
                   "--spec", spec, "--threads", "1"]
        run = subprocess.run(command, env=environment, capture_output=True, text=True)
        if run.returncode != 0:
            print(f"  failed: {run.stderr[-500:]}", file=sys.stderr)
            continue
        rows[key] = dict(json.loads(run.stdout), size=size)
        row = rows[key]
        print(f"  live {percent(row['live_peak'], row['real_peak'])}, peak {percent(row['peak'], row['real_peak'])}",
              flush=True)  # fmt: skip
        if "estimated_seconds" in row:
            print(f"  time {percent(row['estimated_seconds'], row['real_seconds'])}, "
                  f"calls {percent(row['measured_calls_seconds'], row['real_seconds'])}", flush=True)  # fmt: skip
        partial = kept.with_suffix(".new")
        partial.write_text(json.dumps(rows))
        partial.rename(kept)
    ordered = [rows[f"{name} {size} {mode} {dtype}"] for name, size, mode, dtype, _ in wanted
               if f"{name} {size} {mode} {dtype}" in rows]
    machine = json.loads(spec.read_text())["title"]
    if options.figures and rows:
        write_figures.write(options.figures, figures(ordered, machine, datetime.date.today().isoformat()))


if __name__ == "__main__":
    main()
