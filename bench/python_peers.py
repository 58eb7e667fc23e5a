"""Compares PyTorch's FakeTensorMode and make_fx with our benchmarks on the same operators and models.

Prints the ratios as Markdown.

    python bench/python_peers.py build/bench

Operators: FakeTensorMode with a warm cache, compared with `fake_operators`. Models: make_fx with fake tensors on
forward and backward, compared with captures by `capture_models`. The models are llama3_8b and bert_base (Hugging Face,
on fake tensors). Requires torch, and transformers for the models.
"""

import json
import pathlib
import subprocess
import sys
import time
import types

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx


def best(call, repeats=5, calls=200):
    call()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        for _ in range(calls):
            call()
        times.append((time.perf_counter() - start) / calls)
    return min(times)


def python_fake_operators():
    """Returns microseconds per call in FakeTensorMode with a warm cache."""
    with FakeTensorMode(), torch.no_grad():
        a, b = torch.ones(64, 32), torch.ones(64, 32)
        s = torch.ones(32, 64)
        image, weight = torch.ones(2, 4, 16, 16), torch.ones(8, 4, 3, 3)
        row, index = torch.ones(32), torch.zeros(16, dtype=torch.long)
        calls = {
            "add": lambda: a + b,
            "mm": lambda: a.mm(s),
            "view": lambda: a.view(32, 64),
            "empty": lambda: torch.empty(64, 32),
            "gelu": lambda: torch.nn.functional.gelu(a),
            "t": lambda: a.t(),
            "cat": lambda: torch.cat([a, b]),
            "softmax": lambda: a.softmax(-1),
            "sum": lambda: a.sum(),
            "mul": lambda: a * b,
            "conv2d": lambda: torch.conv2d(image, weight),
            "layer_norm": lambda: torch.nn.functional.layer_norm(a, (32,), row, row),
            "embedding": lambda: torch.nn.functional.embedding(index, a),
        }
        return {name: best(call) * 1e6 for name, call in calls.items()}


def our_fake_operators(folder):
    output = subprocess.run(
        [folder / "fake_operators", "--benchmark_filter=fake/", "--benchmark_format=json"],
        check=True, capture_output=True, text=True).stdout
    # The ratio table follows the JSON document.
    is_json = output.lstrip().startswith("{")
    document, _ = json.JSONDecoder().raw_decode(output[output.index("{"):]) if is_json else ({}, 0)
    if not document:
        return table_of(output)
    times = {}
    for row in document["benchmarks"]:
        if row.get("run_type") == "iteration":
            name = row["name"].split("/")[1]
            times[name] = min(times.get(name, 1e9), row["real_time"] / 1e3)
    return times


def table_of(output):
    times = {}
    for line in output.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and len(cells) == 7 and cells[0] not in ("operator", "---"):
            times[cells[0]] = float(cells[2])
    return times


def huggingface(name):
    # transformers imports torchvision, which may be built for another torch.
    sys.modules.setdefault("torchvision._meta_registrations", types.ModuleType("torchvision._meta_registrations"))
    import transformers

    if name == "bert_base":
        config = transformers.BertConfig(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
        model = transformers.BertModel(config)
        shape = (8, 512)
    else:
        config = transformers.LlamaConfig(
            vocab_size=128256, hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32,
            num_key_value_heads=8, max_position_embeddings=8192, rope_theta=500000.0)
        model = transformers.LlamaForCausalLM(config)
        model.config.use_cache = False
        shape = (1, 2048)
    return model, shape


def make_fx_seconds(name):
    """Returns (seconds, nodes) of make_fx for forward and backward on fake tensors."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with mode:
        model, shape = huggingface(name)
        ids = torch.zeros(shape, dtype=torch.long)
        parameters = list(model.parameters())

        def step(ids):
            output = model(ids)
            value = output.logits if hasattr(output, "logits") else output.last_hidden_state
            return torch.autograd.grad(value.float().sum(), parameters, allow_unused=True)

        start = time.perf_counter()
        graph = make_fx(step, tracing_mode="fake")(ids)
        return time.perf_counter() - start, len(graph.graph.nodes)


def our_capture_seconds(folder, name):
    command = [folder / "capture_models", name, "--no-optimizer"]
    row = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    cells = [cell.strip() for cell in row.strip().strip("|").split("|")]
    return float(cells[2]) / 1e3, int(cells[1])


def main():
    folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "build/bench").resolve()
    torch.set_num_threads(1)
    ours = our_fake_operators(folder)
    theirs = python_fake_operators()
    print("| fake operator | FakeTensorMode (Python) us | shadowgraph us | ratio |")
    print("|---|---|---|---|")
    product, count = 1.0, 0
    for name, microseconds in theirs.items():
        if name in ours:
            ratio = microseconds / ours[name]
            product, count = product * ratio, count + 1
            print(f"| {name} | {microseconds:.1f} | {ours[name]:.2f} | {ratio:.0f} x |")
    print(f"\ngeometric mean: {product ** (1 / max(count, 1)):.0f} x (aim 100 x)\n")
    print("| model | make_fx forward + backward, s (nodes) | shadowgraph forward + backward, cold s (nodes) | ratio |")
    print("|---|---|---|---|")
    for name in ("bert_base", "llama3_8b"):
        ours_seconds, ours_nodes = our_capture_seconds(folder, name)
        seconds, nodes = make_fx_seconds(name)
        ratio = seconds / ours_seconds
        print(f"| {name} | {seconds:.2f} ({nodes}) | {ours_seconds:.3f} ({ours_nodes}) | {ratio:.0f} x |")
    print("\naim 50 x")


if __name__ == "__main__":
    main()
