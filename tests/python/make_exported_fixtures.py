#!/usr/bin/env python3
"""Makes the torch.export archives of the tests from Python models, and records results of real runs.

    make_exported_fixtures.py build/fixtures/exported [--only NAME ...] [--list]

NAME.pt2 is the program, NAME.json the results of a real run of the *original module* on the CPU. NAME.pt is the same
module traced by TorchScript, if it can be traced; both must have the same costs.

    name, training, traced
    runs         [{inputs, outputs}]: first with the inputs that it was exported with, then with other sizes; inputs are
                 specs ("i64[2,16]"), outputs [{shape, dtype, stride}], nested ones flattened in order
    flops        {forward, backward} by FlopCounterMode, with the first inputs; backward of the tool's loss
    gradients    {name: shape}
    parameters, parameter_bytes, buffers     shared ones once
    modules      {path: class} of the modules that were called

The files are made again when a package version or this script has changed.
"""

import json

import fixture_files
import make_torchscript_fixtures as torchscript

FIXTURES = {}


def fixture(*inputs, other=(), shapes=None, training=False, integer_bound=None, traced=True, decompose=False,
            strict=False, names=None):  # fmt: skip
    """Registers a function that returns a module. `other`: specs of another size; `shapes`: function that gives
    dynamic_shapes; `names`: give the inputs by name."""

    def register(build):
        FIXTURES[build.__name__] = dict(
            build=build, inputs=list(inputs), other=list(other), shapes=shapes, training=training, traced=traced,
            integer_bound=integer_bound, decompose=decompose, strict=strict, names=names,
        )  # fmt: skip
        return build

    return register


def dim(name, **bounds):
    from torch.export import Dim

    return Dim(name, **bounds)


def batch():
    return ({0: dim("batch", min=2, max=64)},)


# --- torch.nn ---------------------------------------------------------------------------------------------------------
@fixture("f32[4,8]", other=["f32[7,8]"], shapes=batch, training=True)
def mlp():
    from torch import nn

    return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))


def _residual():
    from torch import nn

    class Block(nn.Module):
        def __init__(self, inner, outer, stride):
            super().__init__()
            self.conv1 = nn.Conv2d(inner, outer, 3, stride, 1, bias=False)
            self.bn1 = nn.BatchNorm2d(outer)
            self.conv2 = nn.Conv2d(outer, outer, 3, 1, 1, bias=False)
            self.bn2 = nn.BatchNorm2d(outer)
            self.relu = nn.ReLU(inplace=True)
            self.down = nn.Sequential(nn.Conv2d(inner, outer, 1, stride, bias=False), nn.BatchNorm2d(outer))

        def forward(self, x):
            y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
            y += self.down(x)
            return self.relu(y)

    stem = nn.Sequential(
        nn.Conv2d(3, 8, 7, 2, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(2))
    return nn.Sequential(
        stem, Block(8, 8, 1), Block(8, 16, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))


@fixture("f32[4,3,32,32]", other=["f32[6,3,32,32]"], shapes=batch, training=True)
def residual():
    return _residual()


@fixture("f32[4,3,32,32]", other=["f32[6,3,32,32]"], shapes=batch, strict=True)
def residual_strict():
    return _residual()


@fixture("f32[4,3,32,32]", other=["f32[6,3,32,32]"], shapes=batch, decompose=True)
def residual_decomposed():
    return _residual()


def _two_masked():
    batch, time = dim("batch", min=2, max=64), dim("time", min=2, max=128)
    return ({0: batch, 1: time}, {0: batch, 1: time})


@fixture("f32[2,16,32]", "bool[2,16]", other=["f32[3,9,32]", "bool[3,9]"], shapes=_two_masked, training=True)
def transformer_block():
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(32), nn.LayerNorm(32)
            self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)
            self.mlp = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Dropout(0.1), nn.Linear(64, 32))
            self.dropout = nn.Dropout(0.1)

        def forward(self, x, mask):
            batch, time, width = x.shape
            q, k, v = self.qkv(self.norm1(x)).view(batch, time, 3, 4, 8).permute(2, 0, 3, 1, 4).unbind(0)
            y = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask.unsqueeze(1).unsqueeze(1))
            x = x + self.dropout(self.out(y.transpose(1, 2).reshape(batch, time, width)))
            return x + self.mlp(self.norm2(x))

    torch.manual_seed(0)
    return Block()


def _tied_shapes():
    return ({0: dim("batch", max=64), 1: dim("time", min=2, max=16)},)


def _tied():
    import torch
    from torch import nn

    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.body = nn.Embedding(50, 16), nn.Linear(16, 16)
            self.head = nn.Linear(16, 50, bias=False)
            self.head.weight = self.embed.weight
            self.places = nn.Embedding(16, 16)
            self.register_buffer("positions", torch.arange(16)[None], persistent=False)
            self.register_buffer("calls", torch.zeros((), dtype=torch.long))

        def forward(self, ids):
            self.calls.add_(1)
            x = self.embed(ids) + self.places(self.positions[:, : ids.shape[1]])
            return self.head(torch.tanh(self.body(x)))

    return Tied()


@fixture("i64[2,8]", other=["i64[5,16]"], shapes=_tied_shapes, integer_bound=50, training=True)
def tied():
    return _tied()


# Functional operators; the updated buffer is one of the outputs.
@fixture("i64[2,8]", other=["i64[5,16]"], shapes=_tied_shapes, integer_bound=50, decompose=True, training=True)
def tied_decomposed():
    return _tied()


def _rows_and_columns():
    from torch.export import Dim

    return ({0: Dim.DYNAMIC, 1: Dim.DYNAMIC},)


@fixture("f32[6,10]", other=["f32[14,16]"], shapes=_rows_and_columns, traced=False)
def size_arithmetic():
    import torch
    from torch import nn

    class Padded(nn.Module):
        def forward(self, x):
            rows, columns = x.shape
            pad = (rows + 3) // 4 * 4 - rows
            whole = torch.cat([x, x.new_zeros(pad, columns)]).view(-1, 4, columns)
            parts = [torch.zeros(max(rows, 5), columns % 3 + 1), rows * 2, None]
            return {"whole": whole, "parts": parts, "x": x / rows}

    return Padded()


def _twice():
    half = dim("half", min=2, max=32)
    return ({0: 2 * half}, {0: half})


@fixture("f32[8]", "f32[4]", other=["f32[20]", "f32[10]"], shapes=_twice, traced=False)
def derived_size():
    from torch import nn

    class Pairs(nn.Module):
        def forward(self, x, y):
            return x.view(-1, 2).sum(1) + y

    return Pairs()


@fixture("f32[3,4]", "f32[3,4]", training=True, traced=False)
def written_input():
    import torch
    from torch import nn

    class Written(nn.Module):
        def __init__(self):
            super().__init__()
            self.line = nn.Linear(4, 4)
            self.register_buffer("mean", torch.zeros(4))

        def forward(self, x, count):
            self.mean.mul_(0.9).add_(x.mean(0) * 0.1)
            count.add_(1)
            with torch.no_grad():
                scale = x.abs().max()
            return self.line(x) * scale + count

    return Written()


def _by_rows():
    from torch.export import Dim

    return ({0: Dim.DYNAMIC},)


@fixture("f32[6,8]", other=["f32[3,8]"], shapes=_by_rows, training=True, traced=False)
def branches():
    import torch
    from torch import nn

    class Branches(nn.Module):
        def __init__(self):
            super().__init__()
            self.line, self.short = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x):
            return torch.cond(x.shape[0] > 4, lambda x: self.line(x).sin(), lambda x: self.short(x).cos(), (x,))

    return Branches()


@fixture("f32[16,2,24]", training=True)
def lstm():
    from torch import nn

    return nn.LSTM(24, 32, num_layers=2)


@fixture("f32[2,3,64,64]", other=["f32[5,3,64,64]"], shapes=batch, training=True)
def mobilenet():
    import torchvision

    return torchvision.models.mobilenet_v3_small()


# --- transformers -----------------------------------------------------------------------------------------------------
def _tokens():
    return ({0: dim("batch", max=64), 1: dim("time", min=2, max=32)},)


def _tokens_and_mask():
    return _tokens() * 2


# transformers builds masks differently during export, so there is no trace to compare.
@fixture("i64[2,16]", other=["i64[3,7]"], shapes=_tokens, integer_bound=97, training=True, traced=False,
         names=["input_ids"])
def gpt2():
    return torchscript._gpt2("sdpa")


@fixture("i64[2,16]", "i64[2,16]", other=["i64[3,7]", "i64[3,7]"], shapes=_tokens_and_mask, integer_bound=2,
         traced=False, names=["input_ids", "attention_mask"])
def bert():
    return torchscript._bert("sdpa")


@fixture("i64[2,16]", other=["i64[3,7]"], shapes=_tokens, integer_bound=97, traced=False, names=["input_ids"])
def llama():
    return torchscript.llama()


@fixture("i64[2,16]", integer_bound=97, traced=False, names=["input_ids"])
def t5_encoder():
    return torchscript.t5_encoder()


# --- the run that is written down -------------------------------------------------------------------------------------
def inputs_of(entry, specs):
    tensors = [torchscript.make_input(spec, entry["integer_bound"] or 2) for spec in specs]
    return ((), dict(zip(entry["names"], tensors))) if entry["names"] else (tuple(tensors), {})


def outputs_of(value):
    return [{key: out[key] for key in ("shape", "dtype", "stride")} for out in map(torchscript.describe,
                                                                                  torchscript.flatten(value))]


def classes_of(module, run):
    """Returns the classes of called modules, for leaves only: calls of containers are not compared."""
    seen = {}

    def note(path):
        def hook(part, *_):
            seen[path] = type(part).__name__

        return hook

    leaves = [(path, part) for path, part in module.named_modules() if not list(part.children())]
    hooks = [part.register_forward_hook(note(path)) for path, part in leaves]
    run()
    for hook in hooks:
        hook.remove()
    return seen


def make(name, folder):
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    entry = FIXTURES[name]
    torch.manual_seed(0)
    module = entry["build"]().train(entry["training"])
    arguments, named = inputs_of(entry, entry["inputs"])
    shapes = entry["shapes"]() if entry["shapes"] else None
    if shapes is not None and entry["names"]:
        shapes = dict(zip(entry["names"], shapes))
    program = torch.export.export(module, arguments, named, dynamic_shapes=shapes, strict=entry["strict"])
    if entry["decompose"]:
        program = program.run_decompositions()
    torch.export.save(program, folder / f"{name}.pt2")

    runs = []
    for specs in [entry["inputs"], *([entry["other"]] if entry["other"] else [])]:
        arguments, named = inputs_of(entry, specs)
        runs.append(dict(inputs=specs, outputs=outputs_of(module(*arguments, **named))))
    arguments, named = inputs_of(entry, entry["inputs"])
    classes = classes_of(module, lambda: module(*arguments, **named))
    arguments, named = inputs_of(entry, entry["inputs"])
    with FlopCounterMode(display=False) as counter:
        outputs = torchscript.flatten(module(*arguments, **named))
        forward = counter.get_total_flops()
        trained = [out for out in outputs if out.is_floating_point() and out.requires_grad]
        if trained:
            (trained[0] if trained[0].dim() == 0 else trained[0].mean()).backward()
        backward = counter.get_total_flops() - forward

    if entry["traced"]:
        arguments, _ = inputs_of(entry, entry["inputs"])
        torch.jit.save(torch.jit.trace(module, arguments, check_trace=False), folder / f"{name}.pt")
    parameters = torchscript.distinct(module.parameters())
    facts = dict(
        name=name,
        training=entry["training"],
        traced=entry["traced"],
        runs=runs,
        flops=dict(forward=forward, backward=backward),
        gradients={key: list(value.grad.shape) for key, value in module.named_parameters() if value.grad is not None},
        parameters=sum(parameter.numel() for parameter in parameters),
        parameter_bytes=sum(parameter.numel() * parameter.element_size() for parameter in parameters),
        buffers=sum(buffer.numel() for buffer in torchscript.distinct(module.buffers())),
        modules=classes,
    )
    (folder / f"{name}.json").write_text(json.dumps(facts, indent=1) + "\n")
    return facts


def make_and_tell(name, folder):
    facts = make(name, folder)
    return f"{facts['parameters']:,} parameters, {len(facts['gradients'])} gradients"


if __name__ == "__main__":
    current = fixture_files.fingerprint_of(torchscript.PACKAGES, __file__, torchscript.__file__)
    fixture_files.make_all(__doc__.split("\n")[0], FIXTURES, ("pt2", "json"), current, make_and_tell)
