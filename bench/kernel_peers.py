"""Compares torch.compile (Inductor) with replay with kernels on training steps of small BERT and GPT-2 models.

    OMP_NUM_THREADS=1 python bench/kernel_peers.py build/bench [build/python]

Measures step time (the best of many) and time to the first result with empty caches in temporary folders. Runs Hugging
Face models in eager mode and compiled, including backward and AdamW, with the sizes of bench/kernels.cpp. With
build/python the package captures and compiles the same modules. Then runs build/bench/kernels, which has our own
modules of the same architectures. Requires torch and transformers.
"""

import os
import pathlib
import subprocess
import sys
import tempfile
import time
import types

# torchvision built for another torch fails to register fake kernels, which these models do not need.
sys.modules.setdefault("torchvision._meta_registrations", types.ModuleType("torchvision._meta_registrations"))
FOLDER = tempfile.TemporaryDirectory()
os.environ["TORCHINDUCTOR_CACHE_DIR"] = FOLDER.name + "/inductor"
os.environ["SHADOWGRAPH_CACHE"] = FOLDER.name + "/shadowgraph"

import torch  # noqa: E402
import transformers  # noqa: E402

SECONDS = 10


def make(name):
    torch.manual_seed(0)
    if name == "gpt2":
        config = transformers.GPT2Config(n_layer=4, n_head=4, n_embd=256, vocab_size=2000, n_positions=64)
        model = transformers.GPT2LMHeadModel(config)
    else:
        config = transformers.BertConfig(
            num_hidden_layers=4, num_attention_heads=4, hidden_size=256, intermediate_size=1024, vocab_size=2000,
            max_position_embeddings=64)
        model = transformers.BertModel(config)
    return model.train(), {"input_ids": torch.randint(0, 2000, (4, 64))}


def loss_of(name, model, inputs):
    if name == "gpt2":
        return model(**inputs, labels=inputs["input_ids"], use_cache=False).loss
    return torch.nn.functional.cross_entropy(model(**inputs).pooler_output, torch.arange(4))


def steps_of(name, compiled):
    model, inputs = make(name)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loss = torch.compile(loss_of) if compiled else loss_of
    update = torch.compile(optimizer.step) if compiled else optimizer.step

    def step():
        optimizer.zero_grad()
        loss(name, model, inputs).backward()
        update()

    return step


def steps_of_package(name, sg):
    model, inputs = make(name)
    begin = time.perf_counter()
    loss = ".loss" if name == "gpt2" else lambda out: out.pooler_output.square().mean()
    if name == "gpt2":
        inputs = inputs | {"labels": inputs["input_ids"].clone()}
    graph = sg.capture_training_step(model, inputs, loss=loss, optimizer=lambda p: torch.optim.AdamW(p, lr=1e-3))
    run = graph.compile(model, kernels=True)
    run(**inputs)
    first = time.perf_counter() - begin
    run.kernels.wait()
    for _ in range(12):
        run(**inputs)
    print(run.kernels.summary(), end="")
    return lambda: run(**inputs), first


def best(ways):
    times = dict.fromkeys(ways, 1e9)
    end = time.perf_counter() + SECONDS
    while time.perf_counter() < end:
        for way, step in ways.items():
            begin = time.perf_counter()
            step()
            times[way] = min(times[way], time.perf_counter() - begin)
    return times


def main():
    torch.set_num_threads(1)
    if len(sys.argv) > 2:
        sys.path.insert(0, sys.argv[2])
        import shadowgraph as sg
    for name in ("bert", "gpt2"):
        ways = {"eager": steps_of(name, False)}
        ways["eager"]()
        first = {}
        begin = time.perf_counter()
        ways["torch.compile"] = steps_of(name, True)
        ways["torch.compile"]()
        first["torch.compile"] = time.perf_counter() - begin
        for _ in range(3):
            ways["torch.compile"]()
        if len(sys.argv) > 2:
            ways["replay with kernels"], first["replay with kernels"] = steps_of_package(name, sg)
        times = best(ways)
        print(f"Hugging Face {name}, AdamW, one thread:")
        for way, seconds in times.items():
            start = f", first result after {first[way]:.2f} s" if way in first else ""
            print(f"  {way}: {seconds * 1e3:.2f} ms, {times['eager'] / seconds:.2f} x eager{start}", flush=True)
    subprocess.run([pathlib.Path(sys.argv[1]) / "kernels", "step"], check=True)


if __name__ == "__main__":
    main()
