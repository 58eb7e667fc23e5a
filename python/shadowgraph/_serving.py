"""How many requests an inference engine holds on a device at once, and how fast it answers them."""

import contextlib
import fnmatch
import inspect
import re
from collections.abc import Iterable
from typing import Any

import torch

from . import _capture, _keywords, _models
from . import _shadowgraph as _C
from ._distributed import fake_process_group
from ._fake import fake
from ._shadowgraph import Serving

__all__ = ["serve"]


def serve(model: Any, *, spec: str, context: int, weights: str | None = None, keep: Iterable[str] | None = None,
          dtype: torch.dtype | None = None, tensor_parallel: int = 1, memory: int = 0, interconnect: str = "",
          options: dict[str, Any] | None = None, **how: Any) -> Serving:  # fmt: skip
    """What an engine with paged keys and values, such as vLLM, serves of a language model on a device.

        answer = sg.serve(transformers.LlamaConfig(), spec="l4", context=8192, weights="awq")
        print(answer)                     # fits: 9 requests of 8,192 tokens at once on NVIDIA L4 24 GB ...
        answer.requests, answer.first_token, answer.rows

    model: a transformers configuration or class, or a function that makes a model; its forward takes input_ids and
        use_cache and gives past_key_values.
    spec: the device, as in `profile`.
    context: tokens of a request, its answer's too.
    weights: how matrix products' parameters are stored: one of `weight_formats()`, "gptq:bits=8,group=32". By default
        what the configuration's quantization_config says; "" leaves them as made.
    keep: parameters that stay as they are: parts of names, or patterns with *. By default what the quantization_config
        leaves out, and the output embeddings.
    dtype: of what is not quantised, and of keys and values: the configuration's, or bfloat16.
    tensor_parallel: devices that share each layer, by the model's own plan (tp_plan).
    memory: bytes of the device.
    interconnect: links between the devices, as in `profile`.
    options: those of `Capture`.

    Raises Error for formats that are not known, models that keep no keys and values, and sizes that contradict.
    """
    configuration = _configuration_of(model)
    if dtype is None:
        dtype = getattr(configuration, "dtype", None) or torch.bfloat16
        dtype = getattr(torch, dtype) if isinstance(dtype, str) else dtype
    stored = _quantisation(configuration)
    if weights is None:
        weights = stored[0] if stored else ""
    making = _of_rank(model, tensor_parallel)
    around = fake_process_group(tensor_parallel) if tensor_parallel > 1 else contextlib.nullcontext()
    with around:
        layers, names, arguments, said = _looked_at(making, configuration, dtype, options)
        left_out = _named(names, keep if keep is not None else stored[1] if stored else _outputs(names))

        def captured(batch, tokens):
            inputs = {"input_ids": f"i64[{batch},{tokens}]", **arguments}
            return _capture.of_model(making, inputs, device="cuda", dtype=dtype, mode="infer", options=options)[0]

        return _C.serve(captured, layers, spec, interconnect, memory, context, weights, left_out, said, how)


_keywords.list_options(serve)


def _configuration_of(model):
    if _models._is_configuration(model):
        return model
    kind = getattr(model, "config_class", None)
    return kind() if isinstance(model, type) and kind is not None else None


def _of_rank(model, devices):
    """What makes one rank's part of the model."""
    if devices == 1:
        return model
    if not _models._is_configuration(model):
        raise _C.Error("tensor_parallel is of a transformers configuration; a function makes its own parts: call "
                       "serve inside sg.fake_process_group")  # fmt: skip

    def made():
        whole = _models._from_configuration(model)
        from transformers.distributed import DistributedConfig

        given, _, mesh = type(whole).prepare_distribute_model(DistributedConfig(tp_plan="auto", tp_size=devices))
        return type(whole).maybe_distribute_model(whole, given, mesh)

    return made


def _looked_at(making, configuration, dtype, options):
    """(what layers keep of a request, names of parameters, further arguments of forward, what is assumed)."""
    in_mode = {name: value for name, value in (options or {}).items() if name in _capture._OF_MODE}
    with fake("cuda", **in_mode), torch.no_grad():
        module = _models.create(making, "cuda", dtype).eval()
        configuration = configuration or getattr(module, "config", None)
        takes = inspect.signature(module.forward).parameters
        if "use_cache" not in takes:
            raise _C.Error(f"{type(module).__name__}.forward takes no use_cache: serve needs a model that generates "
                           "with a cache, as transformers has them")  # fmt: skip
        few, more = (_kept(module(input_ids=torch.zeros(1, tokens, dtype=torch.int64, device="cuda"), use_cache=True))
                     for tokens in (2, 4))  # fmt: skip
        names = [name for name, _ in module.named_parameters()]
    arguments = {"use_cache": False} | ({"logits_to_keep": 1} if "logits_to_keep" in takes else {})
    layers = []
    for (at_two, window), (at_four, _) in zip(few, more, strict=True):
        each = (at_four - at_two) // 2
        layers.append((each, window, at_two - 2 * each))
    latent = _latent(configuration, dtype)
    if latent:
        layers = [(min(each, latent), window, state) for each, window, state in layers]
    said = ["of latent attention the engine keeps what makes keys and values; attention over it takes the time of "
            "reading it"] if latent else []  # fmt: skip
    return layers, names, arguments, said


def _latent(configuration, dtype):
    """Bytes of a token in a layer with latent attention, whose engines keep no keys and values, but what makes them."""
    rank = getattr(configuration, "kv_lora_rank", None)
    rotary = getattr(configuration, "qk_rope_head_dim", None)
    return (rank + rotary) * dtype.itemsize if rank and rotary else 0


def _kept(outputs):
    """(bytes, window or 0) of each layer of the cache that a forward gave."""
    cache = getattr(outputs, "past_key_values", None) or getattr(outputs, "cache_params", None)
    if cache is None:
        raise _C.Error("forward gave no past_key_values: serve needs a model that generates with a cache")
    layers = []
    for layer in cache.layers if hasattr(cache, "layers") else cache:
        found: dict[int, torch.Tensor] = {}
        _collect(layer if isinstance(layer, (tuple, list)) else vars(layer), found)
        window = getattr(layer, "sliding_window", None) if getattr(layer, "is_sliding", False) else None
        layers.append((sum(tensor.numel() * tensor.element_size() for tensor in found.values()), window or 0))
    return layers


def _collect(value, found):
    if isinstance(value, torch.Tensor):
        if value.dim() > 1:
            found[id(value)] = value
    elif isinstance(value, dict):
        for each in value.values():
            _collect(each, found)
    elif isinstance(value, (tuple, list)):
        for each in value:
            _collect(each, found)


# ---- What is quantised


def _outputs(names):
    """Output embeddings, which no library quantises unless asked."""
    return [name for name in names if re.search(r"(^|\.)(lm_head|embed_out|output_projection)\.", name)]


def _named(names, parts):
    """The names that one of the parts is in, or matches: a pattern with *, "re:" and an expression."""
    chosen = []
    for name in names:
        for part in parts:
            if part.startswith("re:"):
                fits = re.match(part[3:], name) is not None
            elif "*" in part:
                fits = fnmatch.fnmatch(name, f"*{part}*")
            else:
                fits = part in name
            if fits:
                chosen.append(name)
                break
    return chosen


def _quantisation(configuration):
    """(format, what is left out) that a configuration says; None if it says nothing."""
    said = getattr(configuration, "quantization_config", None)
    if said is None:
        return None
    said = said if isinstance(said, dict) else said.to_dict()
    method = str(getattr(said.get("quant_method"), "value", said.get("quant_method"))).replace("-", "_")
    read = _METHODS.get(method)
    if read is None:
        raise _C.Error(f"quantization_config has the method '{method}', which is not known: give weights= one of "
                       + ", ".join(_C.weight_formats()))  # fmt: skip
    left_out = said.get("modules_to_not_convert") or said.get("ignore") or said.get("llm_int8_skip_modules")
    return read(said), list(left_out or ["lm_head"])


def _grouped(name):
    def read(said):
        group = said.get("group_size", said.get("q_group_size", 128))
        if group is None or group < 1:
            raise _C.Error(f"{name} with group_size {group}: a scale for each row; give weights= a format with groups")
        return f"{name}:bits={said.get('bits', said.get('w_bit', 4))},group={group}"

    return read


def _bitsandbytes(said):
    if said.get("load_in_8bit") or said.get("_load_in_8bit"):
        return "llm-int8"
    return "nf4-double" if said.get("bnb_4bit_use_double_quant") else "nf4"


def _fp8(said):
    block = said.get("weight_block_size")
    return f"fp8-block:group={block[0]}" if block else "fp8"


def _compressed_tensors(said):
    schemes = [group.get("weights") or {} for group in (said.get("config_groups") or {}).values()]
    activations = [group.get("input_activations") for group in (said.get("config_groups") or {}).values()]
    if len(schemes) != 1:
        raise _C.Error(f"compressed-tensors with {len(schemes)} groups of weights is not known: give weights=")
    scheme, bits = schemes[0], schemes[0].get("num_bits")
    kind, strategy = scheme.get("type"), scheme.get("strategy")
    if kind == "float" and bits == 8:
        return "fp8" if strategy == "tensor" else "fp8-row"
    if kind == "int" and bits == 8 and strategy == "channel":
        return "int8-dynamic" if activations[0] else "llm-int8"
    if kind == "int" and strategy == "group":
        return f"{'w4a16' if scheme.get('symmetric', True) else 'awq'}:bits={bits},group={scheme.get('group_size')}"
    raise _C.Error(f"compressed-tensors with {bits}-bit {kind} weights, scales by {strategy}, is not known: give "
                   "weights=")  # fmt: skip


def _torchao(said):
    name = str(said.get("quant_type"))
    for part, form in (("int4", "int4"), ("int8", "int8"), ("float8", "fp8-row")):
        if part in name.lower().replace("_", ""):
            return form
    raise _C.Error(f"torchao's {name} is not known: give weights=")


_METHODS = {
    "gptq": _grouped("gptq"), "awq": _grouped("awq"), "bitsandbytes": _bitsandbytes, "fp8": _fp8,
    "compressed_tensors": _compressed_tensors, "torchao": _torchao, "mxfp4": lambda said: "mxfp4",
}  # fmt: skip
