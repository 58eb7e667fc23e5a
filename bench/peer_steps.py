"""Training steps and timing shared by bench/python_package.py and bench/mem_tracker.py.

    import peer_steps

    model, inputs, optimizer = peer_steps.create("gpt2")
    seconds = peer_steps.best(lambda: peer_steps.step(model, inputs, optimizer), 4)

Models are Hugging Face models of the usual sizes with random weights. Times are thread CPU times.
"""

import os
import sys
import time
import types

os.environ["HF_HUB_OFFLINE"] = "1"
# torchvision built for another torch fails to register fake kernels, which these models do not need.
sys.modules.setdefault("torchvision._meta_registrations", types.ModuleType("torchvision._meta_registrations"))

import torch  # noqa: E402
import transformers  # noqa: E402


def language(batch, length):
    def inputs():
        ids = torch.zeros(batch, length, dtype=torch.int64)
        return {"input_ids": ids, "labels": ids}

    return inputs


def image():
    return {"pixel_values": torch.zeros(8, 3, 224, 224), "labels": torch.zeros(8, dtype=torch.int64)}


MODELS = {
    "gpt2": (lambda: transformers.GPT2LMHeadModel(transformers.GPT2Config()), language(4, 512)),
    "bert": (lambda: transformers.BertForMaskedLM(transformers.BertConfig()), language(8, 128)),
    "t5": (lambda: transformers.T5ForConditionalGeneration(transformers.T5Config(decoder_start_token_id=0)),
           language(4, 128)),
    "resnet50": (lambda: transformers.ResNetForImageClassification(transformers.ResNetConfig()), image),
}  # fmt: skip


def create(name):
    """Returns a model, its inputs, and AdamW (foreach)."""
    make, inputs = MODELS[name]
    model = make()
    return model, inputs(), torch.optim.AdamW(model.parameters(), foreach=True)


def step(model, inputs, optimizer):
    optimizer.zero_grad(set_to_none=True)
    loss = model(**inputs).loss
    loss.backward()
    optimizer.step()
    return loss


def best(work, rounds):
    """Returns the minimum time in seconds of several rounds, without the first (cold) one."""
    times = []
    for _ in range(rounds):
        begin = time.thread_time()
        work()
        times.append(time.thread_time() - begin)
    return min(times[1:])


def each(compare, header, default=tuple(MODELS)):
    """Prints a table with the row of `compare` for each model on the command line."""
    torch.set_num_threads(1)
    print(f"| {' | '.join(header)} |\n{'|---' * len(header)}|")
    for name in sys.argv[1:] or default:
        print(f"| {' | '.join(str(cell) for cell in compare(name))} |", flush=True)
