"""One rank of test_emitted_plans.py: compares three steps under each of several plans, over gloo, with unsharded steps.

    python emitted_plan_ranks.py RANK SIZE STORE CASES.json

A case is {"script": train.py, "model": name in MODELS, "checkpoint": FOLDER | null, "meta": whether the model is
created on the meta device}. The last line of the output has, for each case, the largest differences and the number
of tensors fetched back from the CPU.
"""

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

WORDS, WIDTH, LENGTH, KEYS, STEPS, SEED, EXPERTS = 64, 32, 16, 2, 3, 5, 8  # KEYS: number of key/value heads of Llama


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x):
        heads = [p(x).unflatten(-1, (-1, 8)).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj)]
        return self.out_proj(F.scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2, self.attention = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH), Attention()
        self.fc1, self.fc2 = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x))))


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList([Block() for _ in range(8)])
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, ids):
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Experts(nn.Module):
    """Three matrix products, the first two with the same input."""

    def __init__(self):
        super().__init__()
        self.gate, self.up = (nn.Parameter(torch.randn(EXPERTS, WIDTH, WIDTH) / WIDTH**0.5) for _ in range(2))
        self.down = nn.Parameter(torch.randn(EXPERTS, WIDTH, WIDTH) / WIDTH**0.5)

    def forward(self, tokens, chosen, weights):
        order = chosen.flatten().argsort(stable=True)
        rows = tokens[order // chosen.shape[1]]
        ends = torch.histc(chosen.flatten().float(), EXPERTS, 0, EXPERTS - 1).cumsum(0, dtype=torch.int32)
        made = F.silu(torch._grouped_mm(rows, self.gate, ends)) * torch._grouped_mm(rows, self.up, ends)
        made = torch._grouped_mm(made, self.down, ends) * weights.flatten()[order, None]
        return made[order.argsort()].unflatten(0, chosen.shape).sum(1)


class ExpertBlock(Block):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(WIDTH, EXPERTS, bias=False), Experts()  # fc1 routes

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        tokens = self.norm2(x).flatten(0, 1)
        weights, chosen = self.fc1(tokens).softmax(-1).topk(2)
        return x + self.fc2(tokens, chosen, weights).view_as(x)


class ExpertGpt(Gpt):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([ExpertBlock() for _ in range(4)])


class FusedAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.c_attn, self.c_proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        heads = [each.unflatten(-1, (-1, 8)).transpose(1, 2) for each in self.c_attn(x).chunk(3, -1)]
        return self.c_proj(F.scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).flatten(2))


class FusedGpt(Gpt):
    def __init__(self):
        super().__init__()
        for block in self.blocks:
            block.attention = FusedAttention()


def gpt2():
    import transformers

    config = transformers.GPT2Config(
        vocab_size=WORDS, n_positions=LENGTH, n_embd=WIDTH, n_layer=4, n_head=4, resid_pdrop=0, embd_pdrop=0,
        attn_pdrop=0,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config)


class Tied(Gpt):
    def __init__(self):
        super().__init__()
        self.head.weight = self.tokens.weight


def mixtral():
    import transformers

    config = transformers.MixtralConfig(
        vocab_size=WORDS, hidden_size=WIDTH, intermediate_size=WIDTH, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=KEYS, num_local_experts=EXPERTS, num_experts_per_tok=2, max_position_embeddings=LENGTH,
    )  # fmt: skip
    return transformers.MixtralForCausalLM(config)


def llama():
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=WORDS, hidden_size=WIDTH, intermediate_size=2 * WIDTH, num_hidden_layers=8, num_attention_heads=4,
        num_key_value_heads=KEYS, max_position_embeddings=LENGTH, tie_word_embeddings=False,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


MODELS = {"llama": llama, "gpt": Gpt, "mixtral": mixtral, "experts": ExpertGpt, "tied": Tied, "gpt2": gpt2,
          "fused": FusedGpt}  # fmt: skip


def make(name):
    torch.manual_seed(0)
    return MODELS[name]()


def adamw(parameters, **how):
    return torch.optim.AdamW(parameters, lr=1e-2, eps=1e-3, **how)


def filled(train, name):
    """Returns the whole model that ranks create on the meta device."""
    with torch.device("meta"):
        model = make(name)
    train._fill(model, "", torch.device("cpu"), SEED)
    return model


def parameters_of(model):
    """Returns parameters under every name they have; a stage knows only the names of its own modules."""
    return dict(model.named_parameters(remove_duplicate=False))


def alone(model, batches):
    """Returns losses and gradients of each step on one process."""
    optimizer = adamw(model.parameters())
    steps = []
    for ids in batches:
        output = model(ids)
        logits = output if isinstance(output, torch.Tensor) else output.logits
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        steps.append((loss.item(), {name: p.grad.clone() for name, p in parameters_of(model).items()}))
        optimizer.step()
        optimizer.zero_grad()
    return steps


def whole(tensor):
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def difference(found, expected):
    """Splits fused query-key-value parameters into three."""
    return (whole(found).view_as(expected) - expected).abs().max().item()


def after_a_checkpoint(make_training, training, ids, folder):
    """Returns how far a training resumed from a checkpoint deviates from the original one step later."""
    training.save(folder)
    other = make_training()
    other.resume(folder)
    for one in (training, other):
        one.step(ids, ids)
    resumed = other.parameters()
    errors = [whole(value) - whole(resumed[name]) for name, value in training.parameters().items()]
    return max(error.abs().max().item() for error in errors)


def script_of(path):
    spec = importlib.util.spec_from_file_location(f"train_{os.path.basename(os.path.dirname(path))}", path)
    train = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(train)
    return train


def count_fetched(train):
    """Returns a list that grows by one with each tensor fetched back from the CPU."""
    fetched, fetch = [], train.OnHost.fetch

    def counted(one):
        if one.back is None:
            assert one.source is None, "it was not offloaded to the CPU"
            fetched.append(one)
        fetch(one)

    train.OnHost.fetch = counted
    return fetched


def differences(script, model, checkpoint, meta):
    name, train = model, script_of(script)
    fetched, train.LEAST_ON_HOST = count_fetched(train), 1
    samples = train.DATA * train.MICRO_BATCH * train.MICROBATCHES
    generator = torch.Generator().manual_seed(1)
    batches = [torch.randint(WORDS, (samples, LENGTH), generator=generator) for _ in range(STEPS)]

    def make_training():
        return train.Training(lambda: make(name), torch.device("cpu"), optimizer=adamw, meta=SEED if meta else None)

    training = make_training()
    of_loss = of_gradients = 0.0
    one = filled(train, name) if meta else make(name)
    expected, after = alone(one, batches), parameters_of(one)
    for ids, (loss, gradients) in zip(batches, expected, strict=True):
        of_loss = max(of_loss, abs(training.backward(ids, ids) - loss))
        for parameter, value in training.parameters().items():
            of_gradients = max(of_gradients, difference(value.grad, gradients[parameter]))
        for optimizer in training.optimizers:
            optimizer.step()
            optimizer.zero_grad()
    found = {"loss": of_loss, "gradients": of_gradients, "parameters": sorted(training.parameters())}
    found["after"] = max(difference(value, after[key]) for key, value in training.parameters().items())
    found["fetched"] = len(fetched)
    if checkpoint:
        found["resumed"] = after_a_checkpoint(make_training, training, batches[0], checkpoint)
    return found


def main():
    rank, size, store, cases = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    results = {}
    with open(cases) as file, sdpa_kernel(SDPBackend.MATH):
        for case, given in json.load(file).items():
            print(case, flush=True)
            results[case] = differences(**given)
            dist.barrier()
    dist.destroy_process_group()
    print(json.dumps(results))


if __name__ == "__main__":
    main()
