"""One rank of test_eager_plans.py: compares a step sharded by a plan, over gloo, with the same unsharded step.

    python eager_plan_ranks.py RANK SIZE PLAN.py MODEL STORE

Prints the largest differences on one line; the exit code is 0 if they are within tolerance.
"""

import copy
import importlib.util
import json
import os
import sys
import types

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

# A torchvision built for another torch fails when it registers its operators' fake kernels; no model here needs them.
sys.modules.setdefault("torchvision._meta_registrations", types.ModuleType("torchvision._meta_registrations"))

WIDTH, WORDS, BATCH, LENGTH = 32, 64, 8, 16
# Llama computes norms and rotary embeddings in single precision, whatever the model's dtype.
TOLERANCE = {"perceptron": 1e-9, "decoder": 1e-9, "views": 1e-9, "llama": 1e-4, "mamba": 1e-4}


class Perceptron(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(x)))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.out = nn.Linear(WIDTH, WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        y = self.norm(x)
        heads = [p(y).unflatten(-1, (4, -1)).transpose(1, 2) for p in (self.query, self.key, self.value)]
        y = F.scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).flatten(2)
        x = x + self.out(y)
        return x + self.down(F.gelu(self.up(x)))


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.embedding.weight  # tied

    def forward(self, ids, labels):
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(x).flatten(0, 1), labels.flatten())


class Views(nn.Module):
    """Parameters used through views of other dimensions, functions, slices and casts, as in Mamba's mixer."""

    def __init__(self):
        super().__init__()
        self.up = nn.Linear(WIDTH, 2 * WIDTH, bias=False)
        self.down = nn.Linear(2 * WIDTH, WIDTH, bias=False)
        self.fused = nn.Parameter(torch.randn(3 * WIDTH, WIDTH) / WIDTH)  # query, key and value
        self.logarithm = nn.Parameter(torch.randn(2 * WIDTH, 4))
        self.scale = nn.Parameter(torch.randn(2 * WIDTH))
        self.kernel = nn.Parameter(torch.randn(2 * WIDTH, 1, 3))
        self.heads = nn.Parameter(torch.randn(4, WIDTH // 2))
        self.ranges = nn.Parameter(torch.randn(2 * WIDTH))

    def forward(self, x):
        x = x + sum(F.linear(x, part) for part in self.fused.chunk(3))
        y = self.up(x).transpose(1, 2) * self.scale[None, :, None]
        y = y + (-torch.exp(self.logarithm.double())).sum(1).view(1, -1, 1)
        y = y * self.kernel.squeeze(1).mean(1).expand(len(x), -1).unsqueeze(-1)
        y = y.transpose(1, 2) * self.heads.flatten()
        y = y.unflatten(-1, (4, -1)) * self.ranges.unflatten(0, (4, -1))
        return self.down(y.flatten(2))


def mamba():
    import transformers

    config = transformers.MambaConfig(vocab_size=WORDS, hidden_size=WIDTH, state_size=4, num_hidden_layers=1,
                                      time_step_rank=4, use_cache=False)  # fmt: skip
    return transformers.MambaForCausalLM(config)


def llama():
    import transformers

    config = transformers.LlamaConfig(vocab_size=WORDS, hidden_size=WIDTH, intermediate_size=64, num_hidden_layers=2,
                                      num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
                                      attn_implementation="sdpa")  # fmt: skip
    return transformers.LlamaForCausalLM(config)


def made(name):
    """Returns the model in float64, with the same parameters in every process."""
    torch.manual_seed(3)
    makers = {"perceptron": lambda: nn.Sequential(*(Perceptron() for _ in range(3))), "decoder": Decoder,
              "views": Views, "llama": llama, "mamba": mamba}  # fmt: skip
    return makers[name]().double()


def shapes_of(name):
    if name == "perceptron":
        return {"input": f"f64[{BATCH},{WIDTH}]"}
    if name == "views":
        return {"x": f"f64[{BATCH},{LENGTH},{WIDTH}]"}
    ids = f"i64[{BATCH},{LENGTH}]"
    return {"ids" if name == "decoder" else "input_ids": ids, "labels": ids}


def whole_inputs(name):
    torch.manual_seed(5)
    if name == "perceptron":
        return {"input": torch.randn(BATCH, WIDTH, dtype=torch.float64)}
    if name == "views":
        return {"x": torch.randn(BATCH, LENGTH, WIDTH, dtype=torch.float64)}
    return {key: torch.randint(WORDS, (BATCH, LENGTH)) for key in shapes_of(name)}


def loss_of(name, model, given):
    result = model(**given)
    return result.square().mean() if name in ("perceptron", "views") else result if name == "decoder" else result.loss


def optimizer_of(parameters):
    return torch.optim.AdamW(parameters, lr=1e-2, foreach=False)


def whole(tensor):
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def difference(a, b):
    """Difference relative to the largest element, or to 1e-6 if that is larger."""
    return ((a - b).abs().max() / b.abs().max().clamp_min(1e-6)).item()


def local_shape(parameter):
    return list(parameter.to_local().shape if isinstance(parameter, DTensor) else parameter.shape)


def run(plan_file, name, rank, size, store):
    torch.set_num_threads(1)
    spec = importlib.util.spec_from_file_location("plan", plan_file)
    plan = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(plan)
    dist.init_process_group("gloo", store=dist.FileStore(store, size), rank=rank, world_size=size)
    try:
        alone = made(name)
        given = whole_inputs(name)
        model = copy.deepcopy(alone)
        optimizer = optimizer_of(alone.parameters())
        expected = loss_of(name, alone, given)
        expected.backward()
        gradients = {key: parameter.grad.clone() for key, parameter in alone.named_parameters()}
        optimizer.step()

        mesh = plan.make_mesh("cpu")
        assert plan.place(model, mesh) is model
        shapes = {key: local_shape(parameter) for key, parameter in model.named_parameters()}
        optimizer = optimizer_of(model.parameters())
        # DTensor has no sharding strategy for the CPU's fused attention.
        with plan.scope(), sdpa_kernel(SDPBackend.MATH):
            loss = loss_of(name, model, plan.inputs(mesh, **given))
            loss.backward()
            loss = whole(loss).detach()
            for axis in plan.DATA_AXES:  # over this rank's shard of the batch
                dist.all_reduce(loss, group=mesh[axis].get_group())
                loss /= mesh[axis].size()
            off = {"loss": difference(loss, expected.detach())}
            off["gradients"] = max(difference(whole(p.grad), gradients[key]) for key, p in model.named_parameters())
            optimizer.step()
        updated = dict(alone.named_parameters())
        off["parameters"] = max(difference(whole(p), updated[key]) for key, p in model.named_parameters())
        print(json.dumps({"off": off, "shapes": shapes, "data_axes": plan.DATA_AXES}))
        return max(off.values())
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    rank, size, plan_file, name, store = sys.argv[1:]
    is_close = run(plan_file, name, int(rank), int(size), store) < TOLERANCE[name]
    sys.stdout.flush()
    os._exit(0 if is_close else 1)  # gloo's threads may outlive the interpreter, which then aborts
