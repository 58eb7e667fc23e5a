#!/usr/bin/env python3
"""Exports PyTorch's own OpInfo samples as calls of aten operators, for a reader without Python.

    export_samples.py FILE            the samples that CI runs
    export_samples.py FILE --whole    all of them

FILE becomes a link into a cache, ~/.cache/shadowgraph or what --cache names. Samples are kept there by torch's version
and this script's contents: only the first time takes minutes.

Every sample of OpInfo's database (torch.testing._internal), of its foreach lists and of its modules is run on the CPU,
forward and backward. Two dispatch modes are on. One above autograd sees what the program called (aten::conv2d). One
below it sees what is left of it there (aten::convolution, aten::convolution_backward). Each call is kept once: two
calls are the same if operator, numbers and all metadata of the tensors are. From every functional call that is kept,
calls of the operator's in-place and out= forms are made up.

FILE is for torch::pickle_load: a dict of
    torch       version
    storages    one uint8 tensor: the contents of all storages
    extents     int64 [n, 2]: where in `storages` each one begins, and its bytes
    calls       list of (operator, origin, dtype, level, arguments, tensors)
                level: 0 below autograd, 1 above it, 2 a form made up
                argument: None, bool, int, float, str, list of them, ("t", i) the i-th of `tensors`, ("n", number) a
                number where the schema says Tensor, ("c", re, im), ("d",) the schema's default;
                dtype, layout and memory format are their integers
                tensors: list of [alias, storage, dtype, flags, offset, sizes..., strides...]; those of one alias share
                a storage, which begins with the contents of `storage`; flags: 1 requires grad, 2 conj, 4 neg, 8 no leaf
    skipped     why calls were left out, and how many

The smaller set has every sample of float32. For each other dtype, and for the non-contiguous variants, it has up to
FEW samples an operator, evenly spaced over OpInfo's list.
"""

import argparse
import collections
import contextlib
import hashlib
import math
import os
import pathlib
import random
import sys
import time
import warnings

import numpy
import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.schema_check_mode import SchemaCheckMode
from torch.testing._internal import common_methods_invocations as opinfo
from torch.testing._internal.common_modules import module_db
from torch.utils._python_dispatch import TorchDispatchMode

DTYPES = [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64]
FEW = 6
LARGEST = 1 << 20  # bytes of a storage

# c10::ScalarType, c10::Layout, c10::MemoryFormat
SCALAR_TYPES = {
    torch.uint8: 0, torch.int8: 1, torch.int16: 2, torch.int32: 3, torch.int64: 4, torch.float16: 5, torch.float32: 6,
    torch.float64: 7, torch.complex32: 8, torch.complex64: 9, torch.complex128: 10, torch.bool: 11, torch.bfloat16: 15,
    torch.float8_e5m2: 23, torch.float8_e4m3fn: 24, torch.uint16: 27, torch.uint32: 28, torch.uint64: 29,
}
LAYOUTS = {torch.strided: 0, torch.sparse_coo: 1, torch.sparse_csr: 2, torch._mkldnn: 3, torch.sparse_csc: 4,
           torch.sparse_bsr: 5, torch.sparse_bsc: 6, torch.jagged: 7}
MEMORY_FORMATS = {torch.contiguous_format: 0, torch.preserve_format: 1, torch.channels_last: 2,
                  torch.channels_last_3d: 3}
REQUIRES_GRAD, CONJ, NEG, NOT_A_LEAF = 1, 2, 4, 8
BELOW, ABOVE, MADE_UP = 0, 1, 2


class Refused(Exception):
    """A call that cannot be written down."""


class Calls:
    def __init__(self):
        self.seen = set()
        self.calls = []
        self.skipped = collections.Counter()
        self.storages = []
        self.extents = []
        self.by_contents = {}
        self.bytes = 0
        self.origin = ""
        self.dtype = ""

    def storage(self, tensor):
        storage = tensor.untyped_storage()
        size = storage.nbytes()
        if size > LARGEST:
            raise Refused("a storage of more than 1 MiB")
        contents = b"" if size == 0 else bytes(memoryview(
            torch.empty(0, dtype=torch.uint8).set_(storage, 0, (size,), (1,)).numpy()))
        key = hashlib.blake2b(contents, digest_size=16).digest()
        if key not in self.by_contents:
            padding = -self.bytes % 64
            self.storages.append(b"\0" * padding + contents)
            self.by_contents[key] = len(self.extents)
            self.extents.append((self.bytes + padding, size))
            self.bytes += padding + size
        return self.by_contents[key]

    def record(self, op, arguments, level):
        """`op`: OpOverload; arguments by position in the schema, absent ones as DEFAULT."""
        with torch._C._DisableTorchDispatch(), torch.no_grad():
            try:
                self.record_call(op, arguments, level)
            except Refused as refused:
                self.skipped[str(refused)] += 1

    def record_call(self, op, arguments, level, variant=None):
        schema = op._schema
        if not schema.name.startswith("aten::"):
            raise Refused("not an aten operator")
        tensors = []
        described = []
        aliases = {}

        def written(position):
            info = schema.arguments[position].alias_info
            return info is not None and info.is_write

        def tensor(value, position):
            for i, known in enumerate(tensors):
                if known is value:
                    return ("t", i)
            if type(value) not in (torch.Tensor, torch.nn.Parameter):
                raise Refused(f"a {type(value).__name__}")
            if value.layout != torch.strided or value.device.type != "cpu":
                raise Refused("not a dense tensor on the CPU")
            if value.is_quantized or value.dtype not in SCALAR_TYPES:
                raise Refused(f"a tensor of {value.dtype}")
            flags = CONJ * value.is_conj() + NEG * value.is_neg()
            if level != BELOW and value.requires_grad:
                flags |= REQUIRES_GRAD | (NOT_A_LEAF if written(position) or not value.is_leaf else 0)
            alias = aliases.setdefault(value.untyped_storage()._cdata, len(aliases))
            described.append((alias, value.untyped_storage().nbytes(), SCALAR_TYPES[value.dtype], flags,
                              value.storage_offset(), *value.shape, *value.stride()))
            tensors.append(value)
            return ("t", len(tensors) - 1)

        def encode(value, type_, position):
            if value is DEFAULT:
                return ("d",)
            if value is None or isinstance(value, str):
                return value
            if isinstance(value, torch.Tensor):
                return tensor(value, position)
            if isinstance(value, (list, tuple)):
                element = type_
                while element.kind() == "OptionalType":
                    element = element.getElementType()
                if element.kind() == "ListType":
                    element = element.getElementType()
                return [encode(v, element, position) for v in value]
            if isinstance(value, torch.dtype):
                return SCALAR_TYPES[value] if value in SCALAR_TYPES else refuse(f"dtype {value}")
            if isinstance(value, torch.layout):
                return LAYOUTS[value]
            if isinstance(value, torch.memory_format):
                return MEMORY_FORMATS[value]
            if isinstance(value, torch.device):
                return str(value) if value.type in ("cpu", "meta") else refuse("another device")
            if isinstance(value, complex):
                number = ("c", value.real, value.imag)
            elif isinstance(value, (bool, int, float)):
                if isinstance(value, int) and not -2**63 <= value < 2**63:
                    raise Refused("an integer of more than 64 bits")
                # Python writes it in 5 to 7 bytes, and libtorch reads 4 or 8.
                if isinstance(value, int) and not -2**31 <= value < 2**31 and value.bit_length() // 8 + 1 != 8:
                    raise Refused("an integer of 5 to 7 bytes")
                number = value
            else:
                raise Refused(f"a {type(value).__name__}")
            kind = type_
            while kind.kind() == "OptionalType":
                kind = kind.getElementType()
            return ("n", number) if kind.kind() == "TensorType" else number

        encoded = [encode(value, formal.type, i) for i, (value, formal) in enumerate(zip(arguments, schema.arguments))]
        name = schema.name + ("." + schema.overload_name if schema.overload_name else "")
        # repr tells 1 from 1.0 and True, and is the same for each NaN.
        signature = digest(name, encoded, described)
        if signature in self.seen:
            return
        if level == MADE_UP:
            kinds = [(d[0], *d[2:5], t.dim(), t.is_contiguous(), t.numel() == 0) for t, d in zip(tensors, described)]
            kind = digest(name, kinds, variant)
            if kind in self.seen:
                return
            self.seen.add(kind)
        written_down = [[d[0], self.storage(t), d[2], d[3], d[4], *d[5:]] for t, d in zip(tensors, described)]
        self.seen.add(signature)
        if level == ABOVE:  # below autograd it would be the same call without gradients
            self.seen.add(digest(name, encoded, [(*d[:3], d[3] & (CONJ | NEG), *d[4:]) for d in described]))
        self.calls.append((name, self.origin, self.dtype, level, encoded, written_down))
        if level != MADE_UP:
            self.make_up_forms(op, arguments, level)

    def make_up_forms(self, op, arguments, level):
        """Calls of the in-place and out= forms with the same arguments."""
        schema = op._schema
        if schema.is_mutable or any(r.alias_info is not None for r in schema.returns):
            return
        given = {a.name: value for a, value in zip(schema.arguments, arguments) if value is not DEFAULT}
        for form, outs in forms_of(op):
            try:
                if outs:
                    results = results_of(op, schema, arguments)
                    if results is None:
                        return
                    variants = OUT_VARIANTS if level == BELOW else OUT_VARIANTS[:1]
                    for variant in variants:
                        filled = [given.get(a.name, DEFAULT) for a in form._schema.arguments]
                        for position, value in zip(outs, results, strict=True):
                            filled[position] = value if value is None else variant(value)
                        # Eager refuses out= where gradients are asked for.
                        filled = [without_gradient(value) for value in filled]
                        self.record_call(form, filled, MADE_UP, variant.__name__)
                else:
                    values = []
                    for a in form._schema.arguments:
                        value = given.get(a.name, DEFAULT)
                        if a.alias_info is not None and a.alias_info.is_write and isinstance(value, torch.Tensor):
                            value = copied(value)
                        values.append(value)
                    self.record_call(form, values, MADE_UP)
            except Refused as refused:
                self.skipped[str(refused)] += 1


def digest(*parts):
    return hashlib.blake2b(repr(parts).encode(), digest_size=16).digest()


def refuse(why):
    raise Refused(why)


def without_gradient(value):
    return torch.utils._pytree.tree_map(lambda v: v.detach() if isinstance(v, torch.Tensor) else v, value)


class Default:
    def __repr__(self):
        return "default"


DEFAULT = Default()


def copied(tensor):
    copy = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
    if tensor.untyped_storage().nbytes() and copy.numel():
        with contextlib.suppress(RuntimeError):  # elements that overlap
            copy.copy_(tensor)
    return copy.requires_grad_(tensor.requires_grad)


def fitting(result):
    return torch.zeros_like(result, memory_format=torch.contiguous_format)


def to_be_resized(result):
    return torch.empty(0, dtype=result.dtype)


def transposed(result):
    sizes = list(result.shape)
    return torch.zeros(sizes[::-1], dtype=result.dtype).permute(*range(len(sizes) - 1, -1, -1))


OUT_VARIANTS = [to_be_resized, fitting, transposed]
FORMS = {}


def forms_of(op):
    """In-place and out= forms of `op`: (overload, positions of what it writes beside self)."""
    if op in FORMS:
        return FORMS[op]
    schema = op._schema
    base = schema.name.removeprefix("aten::")
    ours = [(a.name, str(a.type)) for a in schema.arguments]
    found = []
    for packet_name in (base, base + "_"):
        packet = getattr(torch.ops.aten, packet_name, None)
        if packet is None or base.startswith("_foreach") or not all(isinstance(r.type, torch.TensorType)
                                                                    for r in schema.returns):
            continue
        for overload_name in packet.overloads():
            other = getattr(packet, overload_name)
            writes = [i for i, a in enumerate(other._schema.arguments) if a.alias_info and a.alias_info.is_write]
            theirs = [(a.name, str(a.type)) for a in other._schema.arguments]
            if not writes or other is op:
                continue
            if packet_name == base + "_" and theirs == ours:
                found.append((other, None))
            elif packet_name == base:
                rest = [t for i, t in enumerate(theirs) if i not in writes]
                # Factories take dtype and device, their out= form does not.
                needed = [o for o in ours if o[0] not in ("dtype", "layout", "device", "pin_memory")]
                if len(writes) == len(schema.returns) and rest in (ours, needed):
                    found.append((other, writes))
    FORMS[op] = found
    return found


def results_of(op, schema, arguments):
    """What the functional form returns, or None if it raises."""
    positional = []
    named = {}
    for formal, value in zip(schema.arguments, arguments):
        if value is DEFAULT:
            continue
        if formal.kwarg_only or len(positional) < list(schema.arguments).index(formal):
            named[formal.name] = value
        else:
            positional.append(value)
    try:
        detached = torch.utils._pytree.tree_map(lambda v: v.detach() if isinstance(v, torch.Tensor) else v,
                                                (positional, named))
        results = op(*detached[0], **detached[1])
    except Exception:
        return None
    results = list(results) if isinstance(results, (tuple, list)) else [results]
    return results if all(r is None or isinstance(r, torch.Tensor) for r in results) else None


def recorded(calls, level, func, args, kwargs):
    kwargs = kwargs or {}
    if isinstance(func, torch._ops.OpOverload):
        arguments = [args[i] if i < len(args) else kwargs.get(formal.name, DEFAULT)
                     for i, formal in enumerate(func._schema.arguments)]
        calls.record(func, arguments, level)
    with torch._C._DisablePythonDispatcher():  # PyTorch's decompositions are C++ here
        return func(*args, **kwargs)


class Below(TorchDispatchMode):
    def __init__(self, calls):
        super().__init__()
        self.calls = calls

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return recorded(self.calls, BELOW, func, args, kwargs)


# The only kinds of mode that PyTorch lets in above autograd are a few of its own.
class Above(SchemaCheckMode):
    def __init__(self, calls):
        TorchDispatchMode.__init__(self, _dispatch_key=torch._C.DispatchKey.PreDispatch)
        self.calls = calls

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return recorded(self.calls, ABOVE, func, args, kwargs)


def tensors_in(value):
    return [v for v in torch.utils._pytree.tree_leaves(value) if isinstance(v, torch.Tensor)]


def run(calls, function, inputs, gradients):
    """One sample: the call, then backward from ones. What it raises, it raises on fake tensors too, as is recorded."""
    try:
        with enable_python_dispatcher(), Above(calls), Below(calls):
            results = [t for t in tensors_in(function()) if t.requires_grad]
            leaves = [t for t in tensors_in(inputs) if t.requires_grad]
            if gradients and results and leaves:
                torch.autograd.grad(results, leaves, [torch.ones_like(r) for r in results], allow_unused=True)
    except Exception as error:
        calls.skipped["samples that raised: " + type(error).__name__] += 1


def some(items, whole):
    items = list(items)
    if whole or len(items) <= FEW:
        return items
    return [items[math.floor(i * len(items) / FEW)] for i in range(FEW)]


def run_sample(calls, function, sample, gradients):
    run(calls, lambda: function(sample.input, *sample.args, **sample.kwargs),
        (sample.input, sample.args, sample.kwargs), gradients)


def samples_by_dtype(calls, op, **how):
    """For each dtype that `op` takes: the dtype, its samples, whether they ask for gradients."""
    calls.origin = op.full_name
    for dtype in DTYPES:
        if dtype not in op.supported_dtypes("cpu"):
            continue
        calls.dtype = str(dtype).removeprefix("torch.")
        gradients = op.supports_autograd and (dtype.is_floating_point or dtype.is_complex)
        torch.manual_seed(0)
        samples = []
        try:
            samples.extend(op.sample_inputs("cpu", dtype, requires_grad=gradients, **how))
        except Exception as error:
            calls.skipped[f"sample_inputs raised: {op.full_name}: {type(error).__name__}"] += 1
        yield dtype, samples, gradients


def run_opinfo(calls, op, whole):
    for dtype, samples, gradients in samples_by_dtype(calls, op):
        for sample in samples if dtype == torch.float32 else some(samples, whole):
            run_sample(calls, op, sample, gradients)
        for sample in some(samples, whole):
            try:
                sample = sample.noncontiguous()
            except Exception:
                calls.skipped["no non-contiguous variant"] += 1
                continue
            run_sample(calls, op, sample, gradients)
    # What must raise. (Generators of these may themselves raise.)
    calls.dtype = "errors"
    if op.error_inputs_func is not None:
        try:
            for error in some(op.error_inputs("cpu"), whole):
                run_sample(calls, op, error.sample_input, False)
        except Exception as error:
            calls.skipped[f"error_inputs raised: {op.full_name}: {type(error).__name__}"] += 1


def run_foreach(calls, op, whole):
    for _, samples, gradients in samples_by_dtype(calls, op, noncontiguous=False):
        for sample in some(samples, whole):
            if op.method_variant is not None:
                run_sample(calls, op.method_variant, sample, gradients)
            if op.inplace_variant is not None:
                sample.input = [t.detach() for t in sample.input]
                run_sample(calls, op.inplace_variant, sample, False)


def run_module(calls, info, whole):
    for dtype in (torch.float32, torch.bfloat16):
        if dtype not in info.dtypes:
            continue
        for training in (True, False):
            calls.origin = info.name
            calls.dtype = str(dtype).removeprefix("torch.")
            torch.manual_seed(0)
            try:
                inputs = info.module_inputs_func(info, device="cpu", dtype=dtype, requires_grad=True,
                                                 training=training)
            except Exception as error:
                calls.skipped[f"module_inputs raised: {info.name}: {type(error).__name__}"] += 1
                continue
            for example in some(inputs, whole):
                if example.forward_input is None:
                    continue
                try:
                    module = info.module_cls(*example.constructor_input.args, **example.constructor_input.kwargs)
                    module = module.to(dtype).train(training)
                except Exception as error:
                    calls.skipped[f"module raised: {info.name}: {type(error).__name__}"] += 1
                    continue
                args, kwargs = example.forward_input.args, example.forward_input.kwargs
                run(calls, lambda: module(*args, **kwargs), (args, kwargs, list(module.parameters())), True)


def run_optimizers(calls):
    """A step of every optimizer in each of its implementations, and of gradient scaling: OpInfo has none of them."""
    calls.dtype = "float32"
    choices = [
        (torch.optim.SGD, [{"lr": 0.1}, {"lr": 0.1, "momentum": 0.9}, {"lr": 0.1, "momentum": 0.9, "nesterov": True,
                                                                        "weight_decay": 0.1}]),
        (torch.optim.Adam, [{}, {"amsgrad": True, "weight_decay": 0.1}]),
        (torch.optim.AdamW, [{}, {"amsgrad": True}]),
        (torch.optim.Adagrad, [{}, {"weight_decay": 0.1}]),
        (torch.optim.RMSprop, [{}, {"momentum": 0.9, "centered": True}]),
        (torch.optim.Adadelta, [{}]), (torch.optim.Adamax, [{}]), (torch.optim.NAdam, [{}]), (torch.optim.RAdam, [{}]),
        (torch.optim.ASGD, [{}]), (torch.optim.Rprop, [{}]),
    ]
    for optimizer, settings in choices:
        for setting in settings:
            for implementation in ({}, {"foreach": True}, {"fused": True}):
                calls.origin = optimizer.__name__ + "".join(f" {key}" for key in implementation)
                torch.manual_seed(0)
                parameters = [torch.nn.Parameter(torch.randn(3, 4)), torch.nn.Parameter(torch.randn(5, 2).t()),
                              torch.nn.Parameter(torch.randn(()))]
                try:
                    step = optimizer(parameters, **setting, **implementation)
                except (TypeError, RuntimeError, ValueError):  # there is no such implementation
                    continue
                for _ in range(2):
                    for parameter in parameters:
                        parameter.grad = torch.randn_like(parameter)
                    run(calls, step.step, (), False)
    calls.origin = "GradScaler"
    parameter = torch.nn.Parameter(torch.randn(3, 4))
    for fused in (False, True):
        optimizer = torch.optim.SGD([parameter], lr=0.1, fused=fused)
        scaler = torch.amp.GradScaler("cpu")

        def step():
            loss = scaler.scale(parameter.sum())
            parameter.grad = torch.autograd.grad(loss, parameter)[0]
            scaler.step(optimizer)
            scaler.update()
        run(calls, step, (), False)


def name_in_cache(whole):
    script = hashlib.sha256(pathlib.Path(__file__).read_bytes()).hexdigest()[:16]
    return f"opinfo-{torch.__version__}-{script}{'-whole' if whole else ''}.pt"


def export(path, whole):
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    random.seed(0)
    numpy.random.seed(0)
    calls = Calls()
    started = time.time()
    spent = collections.Counter()

    def timed(name, function, *arguments):
        before = time.time()
        function(calls, *arguments)
        spent[name] += time.time() - before

    only = os.environ.get("CONFORMANCE_ONLY")
    for op in opinfo.op_db:
        if not only or op.name in only.split(","):
            timed(op.full_name, run_opinfo, op, whole)
    if not only:
        for op in (opinfo.foreach_unary_op_db + opinfo.foreach_binary_op_db + opinfo.foreach_pointwise_op_db
                   + opinfo.foreach_reduce_op_db + opinfo.foreach_other_op_db):
            timed(op.name, run_foreach, op, whole)
        for info in module_db:
            timed(info.name, run_module, info, whole)
        timed("optimizers", run_optimizers)
    contents = numpy.frombuffer(b"".join(calls.storages), dtype=numpy.uint8).copy()
    extents = torch.tensor(calls.extents, dtype=torch.int64).reshape(-1, 2)
    partial = path.with_suffix(f".{os.getpid()}.partial")
    torch.save({"torch": str(torch.__version__), "storages": torch.from_numpy(contents), "extents": extents,
                "calls": calls.calls, "skipped": dict(calls.skipped)}, partial, pickle_protocol=2)
    partial.rename(path)
    by_level = collections.Counter(call[3] for call in calls.calls)
    print(f"{path}: {len(calls.calls)} calls of {len({call[0] for call in calls.calls})} operators "
          f"({by_level[ABOVE]} above autograd, {by_level[BELOW]} below, {by_level[MADE_UP]} made up), "
          f"{path.stat().st_size / 2**20:.0f} MiB, {time.time() - started:.0f} s")
    if os.environ.get("CONFORMANCE_VERBOSE"):
        for reason, count in calls.skipped.most_common():
            print(f"  left out: {count} x {reason}", file=sys.stderr)
        for name, seconds in spent.most_common(25):
            print(f"  {seconds:6.1f} s  {name}", file=sys.stderr)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("file", type=pathlib.Path)
    parser.add_argument("--whole", action="store_true")
    parser.add_argument("--cache", type=pathlib.Path,
                        default=pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
                        / "shadowgraph")
    arguments = parser.parse_args()
    cached = arguments.cache.resolve() / name_in_cache(arguments.whole)
    if not cached.exists():
        cached.parent.mkdir(parents=True, exist_ok=True)
        export(cached, arguments.whole)
    arguments.file.parent.mkdir(parents=True, exist_ok=True)
    arguments.file.unlink(missing_ok=True)
    arguments.file.symlink_to(cached)


if __name__ == "__main__":
    main()
