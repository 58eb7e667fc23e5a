"""Fits device specs to torch.profiler traces, and compares predictions with them. Traces of this CPU are real;
traces of GPUs are written by hand in Kineto's format."""

import gzip
import json
import subprocess

import _shadowgraph_tool
import pytest
import torch
from torch.profiler import ProfilerActivity, profile, schedule

import shadowgraph as sg


class Small(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.convolution = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.first, self.norm = torch.nn.Linear(64, 128), torch.nn.LayerNorm(128)
        self.last = torch.nn.Linear(128, 10)

    def forward(self, x):
        y = self.last(torch.nn.functional.gelu(self.norm(self.first(x))))
        images = self.convolution(x[:12, :].reshape(1, 3, 16, 16)).relu()
        return y.logsumexp(1).mean() + images.mean() + torch.cat([y, 2 * y]).sum()


@pytest.fixture(scope="module")
def cpu_trace(tmp_path_factory):
    """Two training steps on this CPU."""
    path = tmp_path_factory.mktemp("traces") / "cpu.json"
    model = Small()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    x = torch.randn(32, 64)
    steps = schedule(wait=0, warmup=1, active=2, repeat=1)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True, schedule=steps) as recorded:
        for _ in range(3):
            model(x).backward()
            optimizer.step()
            optimizer.zero_grad()
            recorded.step()
    recorded.export_chrome_trace(str(path))
    return path


def tool(*words):
    environment = _shadowgraph_tool.environment(_shadowgraph_tool.folder_of("torch"))
    return subprocess.run([_shadowgraph_tool.path(), *map(str, words)], env=environment, capture_output=True, text=True)


def small_on_cpu(spec=""):
    return sg.profile(Small, "f32[32,64]", loss=lambda loss: loss, device="cpu", spec=str(spec), steady_state=True,
                      optimizer=lambda p: torch.optim.AdamW(p, foreach=True))  # fmt: skip


def test_a_cpus_trace_becomes_its_figures(cpu_trace, tmp_path):
    found = sg.calibrate(cpu_trace, tmp_path / "mine.json")
    assert found["calls"] > 60 and found["collectives"] == 0 and found["links"] is None
    spec = json.loads((tmp_path / "mine.json").read_text())
    assert spec == found["spec"] and spec["device"] == "cpu"
    assert set(spec["classes"]) >= {"matmul", "convolution", "convolution_backward", "normalization", "transcendental",
                                    "reduction", "copy", "pointwise_in_place"}  # fmt: skip
    products = {tuple(size[:4]) for size in spec["tables"]["aten::addmm"]["float32"]}
    assert products == {(1, 32, 128, 64), (1, 32, 10, 128)}
    assert "cpu.json" in spec["sources"]["matmul"], "peaks come from the trace and name it as source"
    # aten::to without a copy and views are not listed as left out; only item(), which reads data, is
    assert {left["op"] for left in found["left_out"]} <= {"aten::_local_scalar_dense"}


def test_a_prediction_by_that_table_is_what_was_measured(cpu_trace, tmp_path):
    sg.calibrate(cpu_trace, tmp_path / "mine.json")
    report = small_on_cpu(tmp_path / "mine.json")
    beside = report.compare_trace(cpu_trace)
    assert beside["steps"] == 2
    rows = {row["name"]: row for row in beside["operators"]}
    for name, calls in {"aten::addmm": 2, "aten::native_layer_norm": 1, "aten::convolution": 1, "aten::mm": 3,
                        "aten::convolution_backward": 1, "aten::gelu": 1, "aten::cat": 1}.items():  # fmt: skip
        assert rows[name]["predicted_calls"] == rows[name]["measured_calls"] == calls, name
    # A size is measured as the median of two steps; products of the same size get the same prediction, their mean.
    assert rows["aten::addmm"]["ratio"] == pytest.approx(1, rel=0.3)
    assert beside["matched_seconds"] > 0.8 * beside["kernels"]["measured_seconds"]
    text = str(beside)
    assert "largest difference: " in text and beside["most_off"]["name"] in text


def test_the_tool_says_the_same(cpu_trace, tmp_path):
    done = tool("calibrate", "--trace", cpu_trace, "-o", tmp_path / "mine.json")
    assert done.returncode == 0 and "cpu.json" in done.stdout, done.stderr
    report = small_on_cpu(tmp_path / "mine.json")
    report.graph.save(str(tmp_path / "step.sg"))
    done = tool("compare", tmp_path / "step.sg", cpu_trace, "--spec", tmp_path / "mine.json", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    expected = dict(report.compare_trace(cpu_trace))
    assert [row["name"] for row in told["operators"]] == [row["name"] for row in expected["operators"]]
    assert told["most_off"] == expected["most_off"]
    done = tool("compare", tmp_path / "step.sg", cpu_trace, "--limit", "3")
    assert done.returncode == 0 and "largest difference" in done.stdout and "operator" in done.stdout
    assert tool("compare", cpu_trace, tmp_path / "step.sg").returncode == 2, "a trace must be the second argument"
    assert tool("compare", tmp_path / "step.sg", cpu_trace, "--nodes").returncode == 2


def test_packed_is_the_same(cpu_trace, tmp_path):
    packed = tmp_path / "cpu.json.gz"
    packed.write_bytes(gzip.compress(cpu_trace.read_bytes()))
    plain, same = sg.calibrate(cpu_trace), sg.calibrate(packed)
    assert plain["spec"]["tables"] == same["spec"]["tables"]


def test_decompression_is_bounded(cpu_trace, tmp_path):
    text = cpu_trace.read_bytes()
    half = len(text) // 2
    members = tmp_path / "members.json.gz"  # gzip members may be concatenated
    members.write_bytes(gzip.compress(text[:half]) + gzip.compress(text[half:]))
    assert sg.calibrate(members)["spec"]["tables"] == sg.calibrate(cpu_trace)["spec"]["tables"]
    bomb = tmp_path / "bomb.json.gz"
    for filler in (b" ", b'{"ph": "X", "cat": "cpu_op", "name": "a", "pid": 1, "tid": 1, "ts": 1, "dur": 1},'):
        bomb.write_bytes(gzip.compress(b'{"traceEvents": [' + filler * ((256 << 20) // len(filler))))
        for _ in range(2):
            with pytest.raises(sg.ParseError, match="bomb.json.gz: more than 16 MiB and 50 times as large"):
                sg.calibrate(bomb)


def without_shapes(trace):
    for event in trace["traceEvents"]:
        for key in ("Input Dims", "Input type"):
            event.get("args", {}).pop(key, None)
    return trace


def changed(trace, key, value, where="cpu_op"):
    next(event for event in trace["traceEvents"] if event.get("cat") == where)[key] = value
    return trace


def changed_arguments(trace, key, value):
    next(event for event in trace["traceEvents"] if "Input Dims" in event.get("args", {}))["args"][key] = value
    return trace


BAD = {
    "no_shapes": (without_shapes, "record_shapes=True"),
    "no_events": (lambda trace: {"traceEvents": []}, "is an operator"),
    "no_trace": (lambda trace: {"nodes": 1}, "traceEvents"),
    "events_are_no_list": (lambda trace: trace | {"traceEvents": {"a": 1}}, "is not an object"),
    "event_is_no_object": (lambda trace: {"traceEvents": [7]}, "is not an object"),
    "negative": (lambda trace: changed(trace, "dur", -1), "must not be negative"),
    "word_for_a_time": (lambda trace: changed(trace, "ts", "soon"), "not a number"),
    "no_name": (lambda trace: changed(trace, "name", 7), "name"),
    "arguments_are_a_list": (lambda trace: changed(trace, "args", [1]), "must be an object"),
    "negative_size": (lambda trace: changed_arguments(trace, "Input Dims", [[-4]]), "Input"),
    "sizes_are_words": (lambda trace: changed_arguments(trace, "Input type", 3), "Input type"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_traces_are_refused_with_what_is_wrong(cpu_trace, tmp_path, name):
    damage, message = BAD[name]
    path = tmp_path / "bad.json"
    path.write_text(json.dumps(damage(json.loads(cpu_trace.read_text()))))
    with pytest.raises(sg.ParseError, match=message) as raised:
        sg.calibrate(path)
    assert str(path) in str(raised.value)


def test_damaged_files_are_refused(cpu_trace, tmp_path):
    text = cpu_trace.read_bytes()
    packed = gzip.compress(text)
    files = {"cut.json": text[: len(text) // 2], "cut.json.gz": packed[: len(packed) // 2],
             "garbage.json.gz": b"\x1f\x8b" + b"x" * 4000, "empty.json": b"", "words.json": b"not JSON at all",
             "flipped.json.gz": packed[:2000] + bytes(byte ^ 0x55 for byte in packed[2000:2100]) + packed[2100:],
             "deep.json": b'{"traceEvents": ' + b"[" * 100000}  # fmt: skip
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(sg.ParseError, match=name.replace(".", r"\.")):
            sg.calibrate(tmp_path / name)
        done = tool("calibrate", "--trace", tmp_path / name, "-o", tmp_path / "never.json")
        assert done.returncode == 1 and name in done.stderr
        assert not (tmp_path / "never.json").exists()
    with pytest.raises(sg.FileError):
        sg.calibrate(tmp_path / "nowhere.json")


# ---- GPUs, by hand


class HandMade:
    """Writes events as Kineto does: the host issues a call every 10 us, and the device runs the kernels later."""

    def __init__(self, device="NVIDIA H100 80GB HBM3"):
        self.events, self.now, self.device_end, self.ids, self.device = [], 1000.0, 1000.0, 0, device

    def call(self, name, dims, types, concrete=None, kernels=(), stream=7, by_id=True, thread=1):
        self.ids += 1
        shown = {"External id": self.ids, "Input Dims": dims, "Input type": types,
                 "Concrete Inputs": concrete or [""] * len(dims)}  # fmt: skip
        self.events.append({"ph": "X", "cat": "cpu_op", "name": name, "pid": 5, "tid": thread, "ts": self.now,
                            "dur": 8.0, "args": shown})  # fmt: skip
        for i, seconds in enumerate(kernels):
            self.ids += 1
            self.events.append({"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 5, "tid": thread,
                                "ts": self.now + 2 + i, "dur": 1.0, "args": {"correlation": self.ids}})  # fmt: skip
            self.kernel(f"{name}_kernel{i}", seconds, stream, correlation=self.ids,
                        **({"External id": shown["External id"]} if by_id else {}))  # fmt: skip
        self.now += 10

    def kernel(self, name, seconds, stream=7, cat="kernel", **arguments):
        start = max(self.device_end, self.now + 5)
        self.events.append({"ph": "X", "cat": cat, "name": name, "pid": 0, "tid": stream, "ts": start,
                            "dur": seconds * 1e6, "args": {"device": 0, "stream": stream, **arguments}})  # fmt: skip
        self.device_end = start + seconds * 1e6

    def collective(self, name, sent, received, processes, seconds, dtype="BFloat16"):
        self.kernel(f"ncclDevKernel_{name}", seconds, stream=20, **{
            "Collective name": name, "In msg nelems": sent, "Out msg nelems": received, "Group size": processes,
            "dtype": dtype, "Process Group Name": "0", "Process Group Description": "default_pg"})  # fmt: skip

    def save(self, path):
        properties = [{"id": 0, "name": self.device, "totalGlobalMem": 80 * 2**30}] if self.device else []
        path.write_text(json.dumps({"schemaVersion": 1, "deviceProperties": properties, "traceEvents": self.events}))
        return path


BF16 = "c10::BFloat16"


def step_by_hand(device="NVIDIA H100 80GB HBM3"):
    made = HandMade(device)
    for _ in range(3):
        made.call("aten::mm", [[4096, 4096], [4096, 4096]], [BF16, BF16], kernels=[300e-6])
        made.call("aten::mm", [[64, 4096], [4096, 4096]], [BF16, BF16], kernels=[20e-6], by_id=False)
        made.call("aten::add", [[4096, 4096], [4096, 4096], []], [BF16, BF16, "Scalar"], ["", "", "1"], [45e-6])
        made.call("aten::bernoulli_", [[4096, 4096], [], []], [BF16, "Scalar", ""], ["", "0.5", ""], [20e-6, 5e-6], 9)
        made.call("aten::t", [[4096, 4096]], [BF16])
    made.collective("allreduce", 2**24, 2**24, 8, 250e-6)
    made.collective("allreduce", 2**24, 2**24, 8, 230e-6)
    made.collective("_allgather_base", 2**20, 2**23, 8, 110e-6)
    made.kernel("my_own_kernel", 70e-6)
    made.kernel("Memcpy HtoD", 10e-6, cat="gpu_memcpy")
    return made


def test_a_gpus_trace_has_the_peaks_of_its_device(tmp_path):
    trace = step_by_hand().save(tmp_path / "h100.json")
    found = sg.calibrate(trace, tmp_path / "mine.json", links=tmp_path / "links.json")
    spec, h100 = found["spec"], json.loads(device("h100"))
    assert spec["matmul"] == h100["matmul"] and spec["bandwidth"] == h100["bandwidth"]
    assert spec["memory_bytes"] == 80 * 2**30 and spec["name"] == "h100" and "H100" in spec["title"]
    assert "h100.json" not in spec["sources"].get("matmul", ""), "these values are not from h100.json"
    assert spec["host_call"] == pytest.approx(10e-6)
    assert spec["tables"]["aten::mm"]["bfloat16"] == [[1, 64, 4096, 4096, pytest.approx(20e-6)],
                                                      [1, 4096, 4096, 4096, pytest.approx(300e-6)]]  # fmt: skip
    assert spec["tables"]["aten::add.Tensor"]["bfloat16"] == [[3 * 2 * 2**24, pytest.approx(45e-6)]]
    assert spec["tables"]["aten::bernoulli_.float"]["bfloat16"][0][1] == pytest.approx(25e-6), "both kernels of a call"
    left = {entry["op"]: entry for entry in found["left_out"]}
    assert left["my_own_kernel"]["seconds"] == pytest.approx(70e-6) and "Memcpy HtoD" in left
    assert found["collectives"] == 3
    assert found["links"]["tables"]["all_reduce"] == {"8": [[2**25, pytest.approx(230e-6)]]}, "the minimum: no waiting"
    assert found["links"]["tables"]["all_gather"] == {"8": [[2**24, pytest.approx(110e-6)]]}
    assert found["links"]["levels"][0]["size"] == 8, "keeps the known levels of machines with this device"

    with sg.Capture("cuda") as capture:
        small, large = (torch.empty(size, 4096, dtype=torch.bfloat16, device="cuda") for size in (64, 4096))
        graph = capture.finish([torch.mm(small, large)])
    with sg.fake_process_group(8), sg.Capture("cuda") as capture:
        gradients = torch.empty(2**24, dtype=torch.bfloat16, device="cuda")
        torch.distributed.all_reduce(gradients)
        sent = capture.finish([gradients])
    figures = dict(spec=str(tmp_path / "mine.json"), interconnect=str(tmp_path / "links.json"))
    assert max(node.seconds or 0 for node in sg.profile(graph, spec=figures["spec"]).nodes) == pytest.approx(20e-6)
    taken = [node.communication_seconds for node in sg.profile(sent, **figures).nodes if node.communication_seconds]
    assert taken == [pytest.approx(230e-6)]


def device(name):
    done = tool("list", "devices", "--json")
    assert done.returncode == 0, done.stderr
    return json.dumps(next(entry for entry in json.loads(done.stdout) if entry["name"] == name))


def test_an_unknown_gpu_has_the_peaks_that_it_reached(tmp_path):
    found = sg.calibrate(step_by_hand("NVIDIA GH200 480GB").save(tmp_path / "new.json"))
    spec = found["spec"]
    reached = 2 * 4096**3 / 300e-6
    assert spec["matmul"]["bfloat16"] == pytest.approx(reached)
    assert "new.json" in spec["sources"]["matmul"] and "bfloat16" in spec["sources"]["matmul.float32"]
    assert spec["bandwidth"] == pytest.approx(3 * 2 * 2**24 / 45e-6)
    told = sg.calibrate(tmp_path / "new.json", spec="h200")["spec"]
    assert told["matmul"]["bfloat16"] != spec["matmul"]["bfloat16"] and told["name"] == "h200"


def test_without_products_the_device_must_be_named(tmp_path):
    made = HandMade(device=None)
    made.call("aten::add", [[64], [64], []], ["float", "float", "Scalar"], ["", "", "1"], [45e-6])
    with pytest.raises(sg.Error, match="--spec"):
        sg.calibrate(made.save(tmp_path / "few.json"))
    assert sg.calibrate(tmp_path / "few.json", spec="l4")["spec"]["name"] == "l4"


def test_what_is_off_in_a_gpus_trace_is_named(tmp_path):
    path = step_by_hand().save(tmp_path / "h100.json")

    def step(a, b, small):
        return torch.mm(a, b), torch.mm(small, b), torch.add(a, b), torch.sub(a, b)

    with sg.Capture("cuda") as capture:
        a, b = (torch.empty(4096, 4096, dtype=torch.bfloat16, device="cuda") for _ in range(2))
        graph = capture.finish(list(step(a, b, torch.empty(64, 4096, dtype=torch.bfloat16, device="cuda"))))
    beside = sg.profile(graph, spec="h100").compare_trace(path)
    rows = {row["name"]: row for row in beside["operators"]}
    assert rows["aten::mm"]["measured_calls"] == 6 and rows["aten::mm"]["predicted_calls"] == 2
    assert rows["aten::mm"]["measured_seconds"] == pytest.approx(3 * 320e-6)
    assert beside["most_off"]["name"] == max(beside["operators"] + beside["collectives"] + [beside["idle"]],
                                             key=lambda row: abs(row["difference_seconds"]))["name"]  # fmt: skip
    assert beside["most_off"]["name"] == "aten::mm"
    assert "3 times as often in the trace" in str(beside), "the steps are not marked in the trace"
    assert "mostly [4096,4096] [4096,4096] bfloat16: " in str(beside)
    assert {row["name"] for row in beside["only_predicted"]} == {"aten::sub"}
    measured = {"aten::bernoulli_", "all_reduce of 8", "all_gather of 8"}
    assert {row["name"] for row in beside["only_measured"]} == measured
    assert {left["op"] for left in beside["left_out"]} == {"my_own_kernel", "Memcpy HtoD"}


# ---- Our own traces


@pytest.mark.parametrize("on", ["cpu", "cuda"])
def test_our_own_trace_is_the_prediction(on, tmp_path):
    report = sg.profile(Small, "f32[32,64]", loss=lambda loss: loss, device=on, spec="cpu" if on == "cpu" else "h100",
                        optimizer=torch.optim.SGD)  # fmt: skip
    report.save(tmp_path, export=["trace"])
    beside = report.compare_trace(tmp_path / "trace.json")
    assert beside["only_predicted"] == beside["only_measured"] == beside["left_out"] == []
    for row in [beside["step"], beside["kernels"], beside["idle"], *beside["sizes"]]:
        assert row["difference_seconds"] == pytest.approx(0, abs=1e-12), row
        assert row.get("predicted_calls") == row.get("measured_calls")
    found = sg.calibrate(tmp_path / "trace.json", tmp_path / "again.json")
    assert found["left_out"] == []
    again = sg.profile(report.graph, spec=str(tmp_path / "again.json"))
    for row in again.compare_trace(tmp_path / "trace.json")["sizes"]:
        # Scalars take 4 bytes in a trace and none in a graph.
        assert row["ratio"] == pytest.approx(1, rel=1e-3), row


@pytest.fixture(scope="module")
def with_collectives():
    """A matrix product and an independent all-reduce over eight ranks."""
    with sg.fake_process_group(8), sg.Capture("cuda") as capture:
        a = torch.empty(2048, 2048, dtype=torch.bfloat16, device="cuda")
        gathered = torch.empty(8 * 2048, 2048, dtype=torch.bfloat16, device="cuda")
        work = torch.distributed.all_reduce(a, async_op=True)
        b = torch.empty(2048, 2048, dtype=torch.bfloat16, device="cuda")
        for _ in range(4):
            b = b @ b
        work.wait()
        torch.distributed.all_gather_into_tensor(gathered, b)
        graph = capture.finish([a.relu(), gathered])
    return sg.profile(graph, spec="h100", interconnect="h100")


def test_our_own_trace_has_its_collectives(with_collectives, tmp_path):
    with_collectives.save(tmp_path, export=["trace"])
    beside = with_collectives.compare_trace(tmp_path / "trace.json")
    assert {row["name"] for row in beside["collectives"]} == {"all_reduce of 8", "all_gather of 8"}
    for row in [beside["step"], beside["kernels"], *beside["sizes"], *beside["collectives"]]:
        assert row["difference_seconds"] == pytest.approx(0, abs=1e-12), row
    links = sg.calibrate(tmp_path / "trace.json")["links"]
    assert links["tables"]["all_reduce"]["8"][0][0] == 2048 * 2048 * 2
    assert links["tables"]["all_gather"]["8"][0][0] == 8 * 2048 * 2048 * 2


def test_validators_of_traces_accept_ours(with_collectives, tmp_path):
    with_collectives.save(tmp_path, export=["trace"])
    trace = json.loads((tmp_path / "trace.json").read_text())
    calls = {event["args"]["External id"]: event for event in trace["traceEvents"] if event.get("cat") == "cpu_op"}
    kernels = [event for event in trace["traceEvents"] if event.get("cat") == "kernel"]
    assert len(kernels) == len(calls) + 2
    for kernel in kernels:
        assert {"device", "stream", "correlation"} <= kernel["args"].keys() and kernel["dur"] >= 0
        call = calls.get(kernel["args"].get("External id"))
        if call is None:  # the fields that torch's check_nccl_metadata requires
            assert {"Collective name", "dtype", "In msg nelems", "Out msg nelems",
                    "Group size"} <= kernel["args"].keys()  # fmt: skip
        else:  # the condition of torch's check_gpu_kernel_causality
            assert kernel["ts"] >= call["ts"] and kernel["name"] == call["name"]
    validator = pytest.importorskip("torch.profiler._trace_validator")  # since torch 2.15
    assert validator.validate_trace(str(tmp_path / "trace.json")) == (True, [])
