"""Memory fit from the command line and in Python: the first line, memory by size and by device, sizes."""

import functools
import json
import sys
import types

import pytest
import torch
from test_shell import CONFIG, run

import shadowgraph as sg
from shadowgraph.__main__ import main

sys.modules.setdefault("torchvision._meta_registrations", types.ModuleType("torchvision._meta_registrations"))


def half():
    return torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.Linear(8, 8).to(torch.bfloat16)).to(torch.bfloat16)


class Tokens(torch.nn.Module):
    """Batch and sequence dimensions, with an intermediate quadratic in the sequence."""

    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(64, 32)
        self.out = torch.nn.Linear(32, 64)

    def forward(self, ids):
        if ids.size(1) > 4096:
            raise ValueError("no more than 4096 positions")
        x = self.embedding(ids)
        scores = torch.softmax(x @ x.transpose(1, 2), -1)
        return self.out(scores @ x)


TOKENS = ["test_fits:Tokens", "--input", "i64[batch,seq]"]


def figures(capfd, *arguments):
    assert main([*arguments]) == 0, capfd.readouterr().err
    return json.loads(capfd.readouterr().out)


def test_a_model_stays_in_the_dtype_it_is_made_in(tmp_path, capfd):
    elements = 16 * 8 + 8 + 8 * 8 + 8
    made = figures(capfd, "profile", "test_fits:half", "--input", "bf16[4,16]", "--json")
    assert (made["parameters"], made["parameter_bytes"]) == (elements, 2 * elements)
    asked = figures(capfd, "profile", "test_fits:half", "--input", "f32[4,16]", "--dtype", "f32", "--json")
    assert asked["parameter_bytes"] == 4 * elements
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | {"dtype": "bfloat16"}))
    config = ["profile", f"hf:{tmp_path}/config.json", "--seq", "16", "--json"]
    plain = figures(capfd, *config)
    assert plain["parameter_bytes"] == 2 * plain["parameters"]
    assert figures(capfd, *config, "--dtype", "f32")["parameter_bytes"] == 4 * plain["parameters"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_files_stay_in_theirs_and_the_report_says_what_was_converted(tmp_path):
    net = half().eval()
    torch.jit.trace(net, torch.ones(4, 16, dtype=torch.bfloat16)).save(tmp_path / "net.pt")
    torch.export.save(torch.export.export(net, (torch.ones(4, 16, dtype=torch.bfloat16),)), tmp_path / "net.pt2")
    elements = 16 * 8 + 8 + 8 * 8 + 8
    for source, given in (("net.pt", ["--input", "{}[4,16]"]), ("net.pt2", [])):
        for dtype, bits in (("", 2), ("f32", 4)):
            words = [word.format(dtype or "bf16") for word in given] + (["--dtype", dtype] if dtype else [])
            done = run("profile", source, *words, "--json", cwd=tmp_path)
            assert done.returncode == 0, done.stderr
            found = json.loads(done.stdout)
            assert found["parameter_bytes"] == bits * elements, source
            said = " ".join(found.get("assumptions", []))
            assert (f"converted {elements} elements of parameters from bfloat16 to float32" in said) == bool(dtype)


def test_the_first_line_says_whether_it_fits(capfd):
    net = ["profile", "test_capture:Net", "--input", "f32[8,16]", "--mode", "train", "--optimizer", "adamw"]
    assert main([*net, "--memory", "L4"]) == 0
    first = capfd.readouterr().out.splitlines()[0]
    assert first.startswith("fits: at least 0.")
    assert first.endswith("of 22.0 GiB of an L4 24 GB (steady state, with allocator and context)")
    assert main([*net, "--memory", "100MiB"]) == 0
    assert capfd.readouterr().out.startswith("does not fit: ")
    verdict = figures(capfd, *net, "--memory", "RTX 3090", "--json")
    assert verdict["fits"]["device"] == "rtx3090" and verdict["fits"]["fits"] is True
    assert verdict["time"]["spec"] == "NVIDIA GeForce RTX 3090 24 GB"
    assert main([*net, "--memory", "24GB"]) == 0
    said = capfd.readouterr()
    assert "24GB means 22.35 GiB" in said.err and "rtx3090 23.70 GiB" in said.err
    for wrong, right in (("24", "24GiB"), ("24G", "24GiB"), ("l5", "l40s")):
        assert main([*net, "--memory", wrong]) == 2 and right in capfd.readouterr().err


def test_a_report_says_whether_it_fits():
    report = sg.profile(torch.nn.Linear(16, 8), "f32[4,16]", device_memory="l4")
    assert report.fits is True and str(report).startswith("fits: ")
    small = sg.profile(torch.nn.Linear(16, 8), "f32[4,16]", device_memory=64 << 20)
    assert small.fits is False and str(small).startswith("does not fit: ")
    by_spec = sg.profile(torch.nn.Linear(16, 8), "f32[4,16]", spec="t4")
    assert by_spec.fits is True and "of a T4 16 GB" in str(by_spec) and by_spec.dict()["fits"]["requested"] is False
    assert sg.profile(torch.nn.Linear(16, 8), "f32[4,16]", device="cpu").fits is None
    with pytest.raises(sg.Error, match="24GiB"):
        sg.profile(torch.nn.Linear(16, 8), "f32[4,16]", device_memory="24")


def test_the_steady_state_leads():
    step = dict(optimizer="adamw", mode="train")
    first = sg.profile(torch.nn.Linear(512, 512), "f32[4,512]", **step)
    second = sg.profile(torch.nn.Linear(512, 512), "f32[4,512]", steady_state=True, **step)
    assert first.steady_peak_bytes == second.peak_bytes >= first.peak_bytes
    assert first.dict()["steady_peak"]["by_kind"] == second.dict()["peak"]["by_kind"]
    assert "of the steady state" in str(first) and "of the steady state" in str(second)


def test_fit_looks_for_the_largest(capfd):
    def check(found, batch, seq, fits):
        sizes = ["--batch", str(batch), "--seq", str(seq), "--memory", "1GiB"]
        verdict = figures(capfd, "profile", *TOKENS, "--mode", "train", *sizes, "--json")["fits"]
        assert verdict["fits"] == fits and (verdict["bytes"] <= 1 << 30) == fits
        assert not fits or verdict["bytes"] == found["bytes"]

    found = figures(capfd, "fit", *TOKENS, "--memory", "1GiB", "--seq", "256", "--json")
    check(found, found["batch"], 256, True)
    check(found, found["batch"] + 1, 256, False)
    longest = figures(capfd, "fit", *TOKENS, "--memory", "1GiB", "--seq", "256..", "--batch", "8", "--json")
    check(longest, 8, longest["seq"], True)
    check(longest, 8, longest["seq"] + 1, False)
    ended = figures(capfd, "fit", *TOKENS, "--memory", "80GiB", "--seq", "256..", "--batch", "1", "--json")
    assert ended["seq"] == 4096 and "no more than 4096 positions" in ended["limit"]
    assert main(["fit", *TOKENS, "--spec", "t4", "--seq", "1Ki"]) == 0
    assert "14.74 GiB of memory (NVIDIA T4 16 GB), counting" in capfd.readouterr().out
    table = figures(capfd, "fit", *TOKENS, "--memory", "1GiB", "--batch", "1..64", "--seq", "256..1Ki", "--json")
    by_seq = {row["seq"]: row["batch"] for row in table["largest_batch"]}
    assert by_seq[256] == min(found["batch"], 64) and by_seq[256] > by_seq[1024] > 0
    assert [cell["seq"] for cell in table["cells"][:3]] == [256, 512, 1024] and table["captures"] < 40
    assert main(["fit", *TOKENS, "--memory", "1GiB", "--batch", "1..8", "--seq", "256..1Ki"]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert "largest seq" in lines[1] and any(line.startswith("largest batch") for line in lines)
    assert max(map(len, lines)) <= 100


def test_what_fit_does_not_take(capfd):
    for words, said in (
        (["fit", "test_fits:Tokens", "--input", "i64[4,seq]", "--memory", "1GiB"], "mark it in the input specs"),
        (["fit", "test_fits:Tokens", "--input", "i64[batch,9]", "--memory", "1GiB", "--seq", "9.."], "the sequence"),
        (["fit", *TOKENS], "--memory"),
        (["fit", *TOKENS, "--memory", "1MiB"], "does not fit in 1.00 MiB with batch 1"),
    ):  # fmt: skip
        assert main(words) in (1, 2)
        assert said in capfd.readouterr().err
    for wrong in (["--batch", "0..4"], ["--seq", "..4"], ["--seq", "8..4"], ["--seq", "x"]):
        assert main(["fit", *TOKENS, "--memory", "1GiB", *wrong]) == 2


def test_files_whose_inputs_say_where_the_sizes_are(tmp_path):
    torch.jit.script(torch.nn.Linear(16, 8)).save(tmp_path / "net.pt")
    done = run("fit", "net.pt", "--input", "f32[batch,16]", "--memory", "900MiB", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    largest = json.loads(done.stdout)
    assert largest["batch"] > 1000 and largest["bytes"] <= 900 << 20
    done = run("fit", "net.pt", "--input", "f32[4,16]", "--memory", "900MiB", cwd=tmp_path)
    assert done.returncode == 1 and "f32[batch," in done.stderr


def test_verbs_of_graphs_take_models_in_python(tmp_path):
    def ran(*words):
        done = run(*words, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return done.stdout

    tokens = [*TOKENS, "--batch", "4", "--seq", "64"]
    assert "RECOMPUTE" in ran("checkpoint", *tokens, "--pareto")
    ran("draw", *tokens, "-o", "page.html")
    assert "<title>Tokens" in (tmp_path / "page.html").read_text()
    ran("emit", *tokens, "--lang", "python", "-o", "code", "--mode", "infer")
    assert any((tmp_path / "code").iterdir())
    assert "rank" in ran("pipeline", *tokens, "--ranks", "2", "--microbatches", "2", "--schedule", "gpipe")
    ran("capture", *tokens, "--mode", "infer", "-o", "before.sg")
    assert "peak bytes" in ran("compare", "before.sg", *tokens, "--mode", "train")
    done = run("compare", "gpt2", *tokens, cwd=tmp_path)
    assert done.returncode == 1 and "gpt2 has fixed inputs" in done.stderr


def growing(x):
    """Each tensor is slightly too large for the cached block of the one before."""
    for i in range(8):
        x.new_empty((64 + 4 * i) << 20)


def test_what_fits_by_releasing_cached_memory():
    """The sum of all blocks is more than the memory; PyTorch's allocator releases them before it runs out."""
    graph = sg.capture(growing, "u8[1]", device="cuda")
    needed = sg.profile(graph, device_memory="h100").dict()
    unlimited, largest = needed["fits"]["bytes"], (64 + 4 * 7) << 20
    assert unlimited > 4 * largest
    memory = needed["device_memory"]["assumed"]["context_bytes"] + 2 * largest
    for limit in ({"device_memory": memory}, {"spec": "h100", "device_memory": memory}):
        report = sg.profile(graph, **limit)
        verdict = report.dict()["fits"]
        assert report.fits and verdict["bytes"] <= memory < verdict["bytes_without_releasing"] == unlimited
        more = f"only by releasing cached memory, which costs time: with more it would hold {unlimited / 2**20:.1f} MiB"
        assert more in str(report).splitlines()[0]
    report = sg.profile(graph, device_memory=memory - largest - (32 << 20))
    assert report.fits is False and report.dict()["fits"]["bytes"] == unlimited
    assert str(report).startswith("does not fit: ") and "releasing" not in str(report).splitlines()[0]


def optimizer_calls(graph):
    return [node.target for node in graph if node.phase == "optimizer" and node.target.startswith("aten::_foreach")]


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_the_tools_optimizers_are_those_of_python(optimizer, tmp_path):
    """PyTorch's default on CUDA, foreach=True, whose temporaries are those of all parameters; on a CPU one by one."""
    net = torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.Linear(8, 8))
    torch.jit.trace(net, torch.ones(4, 16)).save(tmp_path / "net.pt")
    graphs = {}
    for device in ("cuda", "cpu"):
        file = tmp_path / f"{device}.sg"
        step = ["--mode", "train", "--optimizer", optimizer, "--device", device, "--steady-state"]
        done = run("capture", "net.pt", "--input", "f32[4,16]", *step, "-o", str(file), cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        graphs[device] = sg.Graph.load(str(file))
    step = sg.capture_training_step(net, "f32[4,16]", optimizer=optimizer, device="cuda", steady_state=True)
    calls = optimizer_calls(step)
    if optimizer != "sgd":
        calls.remove("aten::_foreach_add_.Tensor")  # of the step counters on the CPU
    assert [name.split(".")[0] for name in optimizer_calls(graphs["cuda"])] == [name.split(".")[0] for name in calls]
    assert not optimizer_calls(graphs["cpu"])
    tool, python = sg.profile(graphs["cuda"]), sg.profile(step)
    assert tool.dict()["optimizer_implementation"] == python.dict()["optimizer_implementation"] == "foreach"
    peaks = [report.dict()["phase_peaks"]["optimizer"]["bytes"] for report in (tool, python)]
    assert peaks[0] == pytest.approx(peaks[1], abs=64)  # inputs of the trace
    assert "foreach=True: all parameters at once, PyTorch's default on CUDA" in str(python)
    single = functools.partial(torch.optim.AdamW, foreach=False)
    alone = sg.capture_training_step(net, "f32[4,16]", optimizer=single, device="cuda", steady_state=True)
    assert sg.profile(alone).dict()["optimizer_implementation"] == "single"
    assert "foreach=False: one parameter at a time" in str(sg.profile(alone))


def test_seconds_of_a_sweep_are_a_steps(capfd):
    """Not the tool's own: each row's are those of a profile at its batch, on the same device."""
    sizes = ["--batch", "8..80:8", "--seq", "256", "--spec", "l4"]
    table = figures(capfd, "fit", *TOKENS, *sizes, "--json")
    assert table["spec"] == "NVIDIA L4 24 GB" and not any(row["captured"] for row in table["batches"])
    for row in (table["batches"][0], table["batches"][-1]):
        step = ["--mode", "train", "--batch", str(row["batch"]), "--seq", "256", "--spec", "l4", "--json"]
        assert row["seconds"] == pytest.approx(figures(capfd, "profile", *TOKENS, *step)["time"]["seconds"], rel=1e-9)
    assert table["batches"][-1]["seconds"] > table["batches"][0]["seconds"]
    assert main(["fit", *TOKENS, *sizes]) == 0
    out = capfd.readouterr().out
    assert "TIME A STEP" in out and "step times are estimated for NVIDIA L4 24 GB" in out
    assert "seconds" not in figures(capfd, "fit", *TOKENS, *sizes[:4], "--device", "cpu", "--json")["batches"][0]
