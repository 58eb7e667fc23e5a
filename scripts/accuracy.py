#!/usr/bin/env python3
"""Predicted against real on this machine's CPU: peak bytes of a step and its seconds, a row a step and summed up.

    accuracy.py BUILD [--only NAME ...] [--quick] [--page build/accuracy.md] [--figures docs/figures/16-accuracy.json]

The models are the built-in ones that fit into memory, and TorchScript files of six other architectures at usual sizes.
Each step runs in a process of its own (build/bin/step_accuracy), on one thread. The modes are inference, SGD and AdamW
in float32, and AdamW in bfloat16.
Rows are kept in BUILD/accuracy/rows.json, so that an interrupted run goes on; --quick takes one row a model. --page
writes all rows as a page, --figures a section of docs/figures.md (scripts/write_figures.py): a row a model, and all
rows as data.
"""

import argparse
import datetime
import json
import os
import pathlib
import statistics
import subprocess
import sys

import write_figures

# name, batch, sequence
BUILT_IN = [("resnet18", 8, 0), ("resnet50", 4, 0), ("vit_b_16", 4, 0), ("bert_base", 2, 256), ("gpt2", 2, 256),
            ("unet", 1, 0), ("lstm_lm", 8, 64), ("gpt2_medium", 1, 128)]
# modules of built-in models whose activations backward computes again
CHECKPOINTS = {"resnet50": "auto", "vit_b_16": "auto", "bert_base": "auto", "gpt2": "auto"}
# name, input spec; made by `scripts` below
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

    # torchvision's compiled half need not be there: transformers only asks for its transforms.
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


def page(rows, machine):
    out = ["# Predicted against real", "",
           "Written by `make accuracy` (scripts/accuracy.py), which runs each step for real, counting allocations. "
           f"Machine: {machine}.", "",
           "- **live**: bytes of live storages, without scratch inside kernels: what the graph alone says.",
           "- **peak**: with scratch, each distinct call measured once on this machine (`--measure`).",
           "- **real**: most bytes that libtorch's CPU allocator had given out during the first real step; with "
           "checkpoints, during a replay of the rewritten graph. The records of source lines that a loaded TorchScript "
           "file keeps (0.1 to 0.8 MiB; no tensors) are not counted.", "",
           "## Peak memory, MiB", "",
           "| model | mode | dtype | live | | peak | | real | at |", "|---|---|---|---|---|---|---|---|---|"]
    low = high = 0.0
    for row in rows:
        off = row["peak"] / row["real_peak"] - 1
        low, high = min(low, off), max(high, off)
        out.append(f"| {row['model']} {row['size']} | {row['mode']} | {row['dtype']} | {mib(row['live_peak'])} | "
                   f"{percent(row['live_peak'], row['real_peak'])} | {mib(row['peak'])} | "
                   f"{percent(row['peak'], row['real_peak'])} | {mib(row['real_peak'])} | `{row['peak_op']}` |")
    out += ["", f"The peak with scratch is between {100 * low:+.2f} % and {100 * high:+.2f} % of the real one "
            "(aim: between -0.5 % and +3 %).", ""]
    left = sorted({(op, reason) for row in rows for op, _, reason in row["not_measured"]})
    if left:
        out += ["Calls that could not be measured, so that their scratch is in no figure:", ""]
        out += [f"- `{op}`: {reason}" for op, reason in left] + [""]
    out += ["## Seconds of a step", "",
            "Estimated from `shadowgraph calibrate` alone, and from the sum of its measured calls; the real one is the "
            "faster of two steps after the first.", "",
            "| model | mode | dtype | estimated | | measured calls | | real |",
            "|---|---|---|---|---|---|---|---|"]
    errors, call_errors = [], []
    rows = [row for row in rows if "estimated_seconds" in row]
    for row in rows:
        real = row["real_seconds"]
        errors.append(abs(row["estimated_seconds"] / real - 1))
        call_errors.append(abs(row["measured_calls_seconds"] / real - 1))
        head = f"| {row['model']} {row['size']} | {row['mode']} | {row['dtype']} | "
        out.append(f"{head}{row['estimated_seconds']:.3f} | "
                   f"{percent(row['estimated_seconds'], real)} | {row['measured_calls_seconds']:.3f} | "
                   f"{percent(row['measured_calls_seconds'], real)} | {real:.3f} |")
    apart, right = ordered_pairs(rows)
    built_in = [error for error, row in zip(errors, rows) if row["model"] in {name for name, _, _ in BUILT_IN}]
    out += ["", f"Mean error {100 * statistics.mean(built_in):.1f} % of the built-in models (aim: at most 20 %), "
            f"{100 * statistics.mean(errors):.1f} % of all; from measured calls "
            f"{100 * statistics.mean(call_errors):.1f} %. There are {apart} pairs of steps whose real times are at "
            f"least a quarter apart; {100 * right / max(1, apart):.1f} % of them are estimated in their order.", ""]
    out += ["## On a GPU", "",
            "`make accuracy-gpu` writes predictions for a GPU. The model of the caching allocator is "
            "held against PyTorch's parser of its settings, its rules and the sequences of its own tests "
            "(`tests/profiler/allocator_traces.txt`).", ""]
    return "\n".join(out)


def worst(values):
    return f"{100 * max(values, key=abs):+.2f} %"


def mean(values):
    return f"{100 * statistics.mean(values):.1f} %"


ABOUT = """Real steps of inference, SGD and AdamW in float32, AdamW in bfloat16 and with checkpoints, counted allocation
by allocation. *Live* is what the graph alone says. *With scratch* adds each distinct call's scratch memory, measured
once (`--measure`). Times are from `shadowgraph calibrate`, and from measured calls."""


def figures(rows, machine, measured):
    """The section of docs/figures.md: errors by model, and every row as data."""

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
    reading = [f"The peak with scratch is {worst(errors(rows, 'peak', 'real_peak'))} off at worst; the aim was between "
               "-0.5 % and +3 %."]
    if built_in := [row for row in timed if row["model"] in {name for name, _, _ in BUILT_IN}]:
        apart, right = ordered_pairs(timed)
        reading += [f"Estimated times of the built-in models are {mean_error(built_in, 'estimated_seconds')} off on "
                    "average; the aim was at most 20 %.",
                    f"{apart} pairs of steps differ by a quarter or more in real time; "
                    f"{100 * right / max(1, apart):.1f} % of them are estimated in their order."]
    if left := sorted({op for row in rows for op, _, _ in row["not_measured"]}):
        reading.append(f"Some calls could not be measured, so their scratch is in no figure: "
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
    """Pairs of steps whose real times differ by a quarter or more, and how many of them are estimated in that order."""
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
    parser.add_argument("--page", type=pathlib.Path)
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
    if options.page and rows:
        partial = options.page.with_suffix(".new")
        partial.write_text(page(ordered, machine))
        partial.rename(options.page)
    if options.figures and rows:
        write_figures.write(options.figures, figures(ordered, machine, datetime.date.today().isoformat()))


if __name__ == "__main__":
    main()
