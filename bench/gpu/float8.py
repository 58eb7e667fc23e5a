#!/usr/bin/env python3
"""Measures float8 matrix products on a GPU: single kernels, and training steps with float8 linear layers.

    python float8.py -o FILE        runs on an NVIDIA GPU; writes the format of h100/float8.json

`as the pass` performs the operators that `shadowgraph opt --pass float8` generates. torchao does the same arithmetic in
more kernels, which torch.compile fuses.
"""

import argparse
import json
import pathlib
import time

import torch
from single_operators import E4, E5, F32, of, seconds_of

MAX = {E4: 448.0, E5: 57344.0}


def cast(x, dtype, transposed=False):
    """Returns (x / scale in float8, scale [1, 1]). `transposed`: the result is column-major."""
    scale = torch.linalg.vector_norm(x, float("inf"), keepdim=True, dtype=F32)
    scale = torch.clamp_min(torch.mul(scale, 1 / MAX[dtype]), 1e-12)
    rows, columns = x.shape
    out = torch.empty_strided((rows, columns), (1, rows) if transposed else (columns, 1), dtype=dtype, device=x.device)
    torch.div(x, scale, out=out)
    return out, scale


def product(left, right, fast):
    return torch._scaled_mm(left[0], right[0], left[1], right[1], out_dtype=torch.bfloat16, use_fast_accum=fast)


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return product(cast(x, E4), cast(weight.t(), E4, transposed=True), True)

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        by_row, scale = cast(grad, E5)
        by_column = torch.empty_strided(grad.t().shape, (grad.shape[0], 1), dtype=E5, device=grad.device)
        torch.div(grad.t(), scale, out=by_column)
        return (product((by_row, scale), cast(weight, E4, transposed=True), False),
                product((by_column, scale), cast(x, E4, transposed=True), False))  # fmt: skip


class Linear(torch.nn.Module):
    def __init__(self, linear):
        super().__init__()
        self.weight = linear.weight

    def forward(self, x):
        return Product.apply(x.reshape(-1, x.shape[-1]), self.weight).view(*x.shape[:-1], -1)


def converted(model):
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, torch.nn.Linear) and name != "lm_head":
                setattr(module, name, Linear(child))
    return model


def llama(layers=4, length=8192):
    import transformers

    config = transformers.LlamaConfig(hidden_size=4096, intermediate_size=14336, num_hidden_layers=layers,
                                      num_attention_heads=32, num_key_value_heads=8, vocab_size=32000)  # fmt: skip
    with torch.device("cuda"):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).train()
    return model, torch.randint(32000, (1, length), device="cuda")


def trained(change):
    model, ids = llama()
    model = change(model)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def step():
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


def compiled(model):
    for layer in model.model.layers:
        layer.compile()
    return model


def by_torchao(model, **keywords):
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    return convert_to_float8_training(model, config=Float8LinearConfig(**keywords),
                                      module_filter_fn=lambda _, name: "lm_head" not in name)  # fmt: skip


PROGRAMS = {
    "bf16": lambda model: model,
    "as the pass": converted,
    "bf16, compiled": compiled,
    "as the pass, compiled": lambda model: compiled(converted(model)),
    "torchao": by_torchao,
    "torchao, compiled": lambda model: compiled(by_torchao(model)),
}


def operators():
    for rows, inner, columns in [(8192, 4096, 4096), (8192, 4096, 14336), (8192, 14336, 4096), (4096, 8192, 8192),
                                 (4096, 8192, 28672), (2048, 16384, 6656), (4096, 8192, 4096), (14336, 8192, 4096),
                                 (2048, 2048, 2048), (1024, 16384, 16384)]:  # fmt: skip
        for dtype, fast in ((E4, True), (E4, False), (E5, False)):
            left = of(rows, inner, dtype=F32).to(dtype)
            right = of(columns, inner, dtype=F32).to(E4).t()
            one = torch.ones((), device="cuda")
            name = f"_scaled_mm {'e4m3' if dtype is E4 else 'e5m2'}{' fast' if fast else ''} {rows}x{inner}x{columns}"
            yield name, lambda a=left, b=right, one=one, fast=fast: product((a, one), (b, one), fast)
    for rows, columns in [(8192, 4096), (8192, 14336), (16384, 8192), (5000, 6000)]:
        x = of(rows, columns)
        yield f"largest {rows}x{columns}", lambda x=x: torch.linalg.vector_norm(x, float("inf"), keepdim=True,
                                                                                dtype=F32)  # fmt: skip
        scale = torch.ones(1, 1, device="cuda")
        for name, given, strides in (("row to row", x, (columns, 1)), ("row to column", x, (1, rows))):
            out = torch.empty_strided((rows, columns), strides, dtype=E4, device="cuda")
            yield f"cast {name} {rows}x{columns}", lambda x=given, out=out, scale=scale: torch.div(x, scale, out=out)
        yield f"to e4m3 {rows}x{columns}", lambda x=x: x.to(E4)
        yield f"cast whole {rows}x{columns}", lambda x=x: cast(x, E4)


def measured():
    return json.loads((pathlib.Path(__file__).parent / "h100/float8.json").read_text())


def programs(row, write):
    began = time.monotonic()
    for name, change in PROGRAMS.items():
        try:
            torch.manual_seed(0)
            torch.compiler.reset()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            step = trained(change)
            losses = [step().item() for _ in range(3)]
            peak = torch.cuda.max_memory_allocated()
            row[name] = {"seconds": seconds_of(step), "allocated": peak, "losses": losses}
            del step
        except Exception as error:
            row[name] = {"failed": f"{type(error).__name__} {error}"[-1500:]}
        write()
        print(name, row[name], f"{time.monotonic() - began:.0f} s", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", type=pathlib.Path, required=True)
    parser.add_argument("--programs", action="store_true", help="skip single kernels")
    given = parser.parse_args()
    rows = {"machine": {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "cuda": torch.version.cuda},
            "operators": {}, "programs": {}}  # fmt: skip
    for name, run in () if given.programs else operators():
        try:
            rows["operators"][name] = round(1e6 * seconds_of(run), 2)
        except Exception as error:
            rows["operators"][name] = str(error)[:200]
        print(name, rows["operators"][name], flush=True)
    given.output.write_text(json.dumps(rows, indent=1) + "\n")
    programs(rows["programs"], lambda: given.output.write_text(json.dumps(rows, indent=1) + "\n"))

if __name__ == "__main__":
    main()
