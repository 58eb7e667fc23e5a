#!/usr/bin/env python3
"""Checks bench/gpu/measure_gpu.py and bench/gpu/accuracy_gpu.py, without a GPU.

Compares the plain PyTorch models with the C++ ones, and makes a dry run. Generates the page from made-up measurements
and from the tool's own predictions, and passes files that must be refused.

    check_accuracy_gpu.py TOOL
"""

import copy
import json
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "bench/gpu"), str(ROOT / "tests/models")]
TOOL = pathlib.Path(sys.argv[1]).resolve()

import accuracy_gpu  # noqa: E402
import measure_gpu  # noqa: E402
import torch  # noqa: E402
from formula_filled import fill, ids, noise  # noqa: E402

torch.set_num_threads(1)
failures = []


def expect(holds, what):
    if not holds:
        failures.append(what)


def check_losses():
    """Loss and gradients of the tiny models, filled by formula, equal those of the C++ models in reference_test.cpp."""
    table = re.findall(r'\{"(\w+)", ([\d.e-]+), ([\d.e-]+), ([\d.e-]+), (\d+)\}',
                       (ROOT / "tests/models/reference_test.cpp").read_text())
    expect(len(table) == 9, f"reference_test.cpp: {len(table)} rows of 9 were found")
    for name, *figures, classes in table:
        model = measure_gpu.build(name, tiny=True, dropout=0.0)
        pixels = getattr(model, "pixels", 0)
        fill(model.train())
        inputs, targets = model.batch(2, 16, torch.float32)
        inputs = [noise([2, 3, pixels, pixels], 0) if tensor.dim() == 4 else
                  ids(tensor.shape, 101) if tensor.dtype == torch.long else tensor for tensor in inputs]
        shape = [2, pixels, pixels] if name.startswith("unet") else targets.shape
        loss = model.loss(model(*inputs), ids(shape, int(classes)))
        loss.backward()
        gradients = [parameter.grad.flatten() for parameter in model.parameters()]
        ours = loss.item(), gradients[0].norm().item(), torch.cat(gradients).norm().item()
        for what, got, wanted in zip(("loss", "first gradient", "gradients"), ours, map(float, figures)):
            expect(abs(got / wanted - 1) < 1e-4, f"{name}: {what} {got}, of the C++ model {wanted}")


def check_sizes():
    """Parameter counts of the full models equal those that the tool reports for its own."""
    listed = json.loads(subprocess.run([TOOL, "list", "models", "--json"], capture_output=True, text=True,
                                       check=True).stdout)
    expect({model["name"] for model in listed} == set(measure_gpu.MODELS), "the tool has other models than the script")
    for model in listed:
        count = sum(p.numel() for p in measure_gpu.build(model["name"], device="meta").parameters())
        expect(count == model["parameters"], f"{model['name']}: {count} parameters, not {model['parameters']}")


def check_optimizers():
    """The hand-written optimizers match torch.optim."""
    for ours, theirs in [(measure_gpu.Sgd, lambda p: torch.optim.SGD(p, 1e-2)),
                         (measure_gpu.AdamW, lambda p: torch.optim.AdamW(p, 1e-3, weight_decay=1e-2))]:
        torch.manual_seed(0)
        mine = [torch.nn.Parameter(torch.randn(5, 3)), torch.nn.Parameter(torch.randn(7))]
        other = copy.deepcopy(mine)
        optimizers = ours(mine), theirs(other)
        for _ in range(3):
            for a, b in zip(mine, other):
                a.grad = torch.randn_like(a)
                b.grad = a.grad.clone()
            for optimizer in optimizers:
                optimizer.step()
        expect(all(torch.allclose(a, b, rtol=1e-5, atol=1e-7) for a, b in zip(mine, other)), f"{ours.__name__} differs")


def check_dry_run(folder):
    for mode in measure_gpu.MODES:
        row = measure_gpu.measure("lstm_lm", 2, 16, mode, "bf16", "cpu", True, 2)
        expect(row["step_seconds"] > 0 and len(row["all_step_seconds"]) == 2, f"dry run, {mode}: {row}")
    script = [sys.executable, ROOT / "bench/gpu/measure_gpu.py"]
    if not torch.cuda.is_available():
        run = subprocess.run([*script, "-o", folder / "none.json"], capture_output=True, text=True)
        expect(run.returncode == 1 and "there is no GPU" in run.stderr and "Traceback" not in run.stderr,
               f"without a GPU: {run.returncode} {run.stderr}")
    output = folder / "dry.json"
    wanted = [*script, "-o", output, "--device", "cpu", "--tiny", "--only", "lstm_lm", "--dtypes", "f32"]
    run = subprocess.run([*wanted, "--modes", "infer"], capture_output=True, text=True)
    expect(run.returncode == 0, f"dry run: {run.stderr}")
    document = json.loads(output.read_text())
    expect([row["mode"] for row in document["rows"]] == ["infer"] and document["machine"]["dry_run"], f"{document}")
    expect([path.name for path in folder.iterdir()] == ["dry.json"], "a temporary file is left")
    refused(folder, document, "dry run")
    # An interrupted run resumes, on the same machine only.
    facts = document["machine"]
    expect(len(measure_gpu.earlier_rows(output, facts, True)) == 1, "rows of an earlier run are not taken")
    for others in (dict(facts, device="another"), None):
        if others is None:
            output.write_text("{}")
        try:
            measure_gpu.earlier_rows(output, others or facts, True)
            failures.append("another machine's measurements were overwritten")
        except SystemExit as error:
            expect("choose another file" in str(error), str(error))


class MadeUp:
    """Predictions with round-number errors."""

    def of(self, key):
        mib = accuracy_gpu.MIB
        return {"active": 1000 * mib, "steady": 900 * mib, "reserved": 1100 * mib, "footprint": 1620 * mib,
                "seconds": 0.010, "unknown": 3, "title": "a made-up GPU",
                "assumed": {"cublas_workspace_bytes": 32 * mib}}


def row(model, active, steady, reserved, seconds, **more):
    return {"model": model, "batch": 8, "seq": 512, "mode": "sgd", "dtype": "bf16",
            "run": {"active_bytes": active << 20, "reserved_bytes": reserved << 20},
            "steady": {"active_bytes": steady << 20}, "step_seconds": seconds, "host_seconds": 0.004, **more}


def measurements():
    return {"format": measure_gpu.FORMAT, "version": measure_gpu.VERSION, "tiny": False,
            "machine": {"device": "NVIDIA A100-SXM4-80GB", "dry_run": False, "memory_bytes": 1500 << 20,
                        "torch": "2.9.0", "driver": "570.1", "capability": [8, 0], "allocator_settings": ""},
            "rows": [row("gpt2", 1000, 900, 1100, 0.010), row("gpt2_medium", 1010, 850, 1000, 0.008),
                     {**row("gpt2_large", 1, 1, 1, 1), "out_of_memory": True}]}


def check_page():
    text = accuracy_gpu.page_of_both(measurements(), MadeUp())
    lines = text.splitlines()
    for line in [
        "| gpt2 8x512 | sgd | bf16 | 1,000 | 1,000 | +0.0 % | 900 | 900 | +0.0 % | 1,100 | 1,100 | +0.0 % | 3 | "
        "10.00 | 10.00 | +0.0 % | within |",
        # 1000 / 1010, 900 / 850, 1100 / 1000, 10 / 8
        "| gpt2_medium 8x512 | sgd | bf16 | 1,000 | 1,010 | -1.0 % | 900 | 850 | +5.9 % | 1,100 | 1,000 | +10.0 % | "
        "3 | 10.00 | 8.00 | +25.0 % | active, reserved off |",
        # 1,620 MiB exceed the device's 1,500.
        "| gpt2_large 8x512 | sgd | bf16 | 1,000 | out of memory | | 900 | | | 1,100 | | | 3 | 10.00 | | | "
        "within: predicted not to fit |",
        "- Active peak: worst error -1.0 %, within the aim of 2 %.",
        "- Reserved: worst error +10.0 %, not within the aim of 5 %.",
        "- Step time: mean error 12.5 %, within the aim of 25 %.",
        "- 2 of 3 rows are within all aims.",
        "Measured on NVIDIA A100-SXM4-80GB: driver 570.1, torch 2.9.0.",
    ]:
        expect(line in lines, f"the page lacks:\n{line}\nand is:\n{text}")
    expect("gives cuBLAS 8.1 MiB" in text and "predictions only" not in text, text)
    roomy = measurements()
    roomy["machine"]["memory_bytes"] = 80 << 30
    expect("| predicted to fit |" in accuracy_gpu.page_of_both(roomy, MadeUp()), "what does not fit was predicted to")
    for device, spec in [("NVIDIA A100-SXM4-80GB", "a100"), ("NVIDIA A100-SXM4-40GB", "a100_40gb"),
                         ("NVIDIA A100-PCIE-40GB", "a100_pcie"), ("NVIDIA H100 80GB HBM3", "h100"),
                         ("NVIDIA H100 PCIe", "h100_pcie"), ("NVIDIA L4", "l4")]:
        expect(accuracy_gpu.spec_for(device) == spec, f"{device}: {accuracy_gpu.spec_for(device)}")


def refused(folder, document, words):
    path = folder / "refused.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    try:
        accuracy_gpu.read_measurements(path)
        failures.append(f"read, though it should be refused with '{words}'")
    except accuracy_gpu.InputError as error:
        expect(words in str(error), f"'{error}' does not say '{words}'")
    path.unlink()


def check_refused(folder):
    path = folder / "good.json"
    path.write_text(json.dumps(measurements()))
    expect(len(accuracy_gpu.read_measurements(path)["rows"]) == 3, "a good file was not read")
    refused(folder, "not json", "is not valid JSON")
    refused(folder, [1], "was not written by bench/gpu/measure_gpu.py")
    refused(folder, {"peak": 3}, "was not written by bench/gpu/measure_gpu.py")
    for change, words in [
        (lambda d: d.update(version=99), "version 99"),
        (lambda d: d.update(rows={}), "'rows' a list"),
        (lambda d: d.update(rows=[]), "has no rows"),
        (lambda d: d.update(machine=[]), "'machine' must be"),
        (lambda d: d["machine"].pop("device"), "'machine' has no 'device'"),
        (lambda d: d["machine"].update(dry_run=True), "dry run"),
        (lambda d: d["rows"][0].pop("mode"), "a row has no 'mode'"),
        (lambda d: d["rows"][0].update(model="alexnet"), "unknown model"),
        (lambda d: d["rows"][0].update(batch="8"), "batch must be a positive integer"),
        (lambda d: d["rows"][0].update(batch=True), "batch must be a positive integer"),
        (lambda d: d["rows"].append(d["rows"][0]), "duplicate row"),
        (lambda d: d["rows"][0]["run"].pop("active_bytes"), "'run.active_bytes' must be a number"),
        (lambda d: d["rows"][0].update(run=3), "'run.active_bytes' must be a number"),
        (lambda d: d["rows"][0].update(step_seconds=0), "'step_seconds' must be a number above 0"),
        (lambda d: d["rows"][0].update(step_seconds=float("nan")), "'step_seconds' must be a number above 0"),
    ]:
        document = measurements()
        change(document)
        refused(folder, document, words)
    try:
        accuracy_gpu.spec_for("Some GPU 9000")
        failures.append("an unknown GPU has a spec")
    except accuracy_gpu.InputError as error:
        expect("--spec" in str(error), str(error))


def check_tool(folder):
    """Generates both pages with the tool itself, for one model."""
    build = folder / "build"
    (build / "bin").mkdir(parents=True)
    (build / "bin" / "shadowgraph").symlink_to(TOOL)
    script = [sys.executable, ROOT / "bench/gpu/accuracy_gpu.py", build, "--only", "lstm_lm"]
    page = folder / "page.md"
    run = subprocess.run([*script, "--page", page], capture_output=True, text=True)
    expect(run.returncode == 0, f"{run.stdout}{run.stderr}")
    text = page.read_text() if page.exists() else ""
    expect("predictions only" in text and text.count("| lstm_lm 20x35 |") == 6, text)
    again = subprocess.run([*script, "--page", page], capture_output=True, text=True)
    expect(again.stdout == "" and page.read_text() == text, "what was predicted is not kept")
    # Using predictions as measurements gives zero errors.
    predictor = accuracy_gpu.Predictor(build, "a100", "")
    key = ("lstm_lm", 20, 35, "adamw", "f32")
    figures = predictor.of(key)
    document = measurements()
    document["rows"] = [dict(row("lstm_lm", 0, 0, 0, figures["seconds"]), batch=20, seq=35, mode="adamw", dtype="f32",
                             run={"active_bytes": figures["active"], "reserved_bytes": figures["reserved"]},
                             steady={"active_bytes": figures["steady"]})]
    path = folder / "measured.json"
    path.write_text(json.dumps(document))
    run = subprocess.run([*script, "--measurements", path], capture_output=True, text=True)
    expect(run.returncode == 0 and "- 1 of 1 rows are within all aims." in run.stdout, f"{run.stdout}{run.stderr}")
    document["rows"][0]["step_seconds"] = -1
    path.write_text(json.dumps(document))
    run = subprocess.run([*script, "--measurements", path, "--page", page], capture_output=True, text=True)
    expect(run.returncode == 1 and run.stderr.startswith("accuracy_gpu.py: ") and "step_seconds" in run.stderr,
           f"{run.returncode} {run.stderr}")
    expect(page.read_text() == text, "the page was written in spite of an error")


def main():
    check_losses()
    check_sizes()
    check_optimizers()
    check_page()
    for check in (check_dry_run, check_refused, check_tool):
        with tempfile.TemporaryDirectory() as folder:
            check(pathlib.Path(folder))
    for failure in failures:
        print(failure)
    print(f"{len(failures)} failures")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
