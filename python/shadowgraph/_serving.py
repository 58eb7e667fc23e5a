"""Estimates how many concurrent requests an inference engine fits on a device, and their latency."""

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
    """Estimates serving of a language model by an engine with a paged KV cache, such as vLLM.

        serving = sg.serve(transformers.LlamaConfig(), spec="l4", context=8192, weights="awq")
        print(serving)                    # fits: 9 requests of 8,192 tokens at once on NVIDIA L4 24 GB ...
        serving.requests, serving.first_token, serving.rows

    model: a transformers configuration or class, or a function that creates a model. Its forward must take input_ids
        and use_cache and return past_key_values.
    spec: the device, as in `profile`.
    context: tokens per request, including the generated ones.
    weights: storage format of weight matrices, one of `weight_formats()`, such as "gptq:bits=8,group=32". Defaults to
        the quantization_config of the configuration; "" disables quantization.
    keep: parameters that are not quantized: parts of names, or patterns with *. Defaults to those excluded by the
        quantization_config, and the output embeddings.
    dtype: dtype of unquantized parameters and of the KV cache. Defaults to that of the configuration, else bfloat16.
    tensor_parallel: tensor parallel degree, using the model's tp_plan.
    memory: device memory in bytes.
    interconnect: links between the devices, as in `profile`.
    options: options of `Capture`.

    Raises Error for unknown weight formats, models without a KV cache, and inconsistent sizes.
    """
    configuration = _configuration_of(model)
    if dtype is None:
        dtype = getattr(configuration, "dtype", None) or torch.bfloat16
        dtype = getattr(torch, dtype) if isinstance(dtype, str) else dtype
    stored = _quantization(configuration)
    if weights is None:
        weights = stored[0] if stored else ""
    make = _rank_factory(model, tensor_parallel)
    around = fake_process_group(tensor_parallel) if tensor_parallel > 1 else contextlib.nullcontext()
    with around:
        layers, names, arguments, assumptions = _inspect(make, configuration, dtype, options)
        excluded = _matching(names, keep if keep is not None else stored[1] if stored else _outputs(names))

        def captured(batch, tokens):
            inputs = {"input_ids": f"i64[{batch},{tokens}]", **arguments}
            return _capture.of_model(make, inputs, device="cuda", dtype=dtype, mode="infer", options=options)[0]

        return _C.serve(captured, layers, spec, interconnect, memory, context, weights, excluded, assumptions, how)


_keywords.list_options(serve)


def _configuration_of(model):
    if _models._is_configuration(model):
        return model
    kind = getattr(model, "config_class", None)
    return kind() if isinstance(model, type) and kind is not None else None


def _rank_factory(model, devices):
    """Returns a function that creates the shard of one rank."""
    if devices == 1:
        return model
    if not _models._is_configuration(model):
        raise _C.Error("tensor_parallel= requires a transformers configuration; for a function that shards the model "
                       "itself, call serve() inside sg.fake_process_group")  # fmt: skip

    def make():
        whole = _models._from_configuration(model)
        from transformers.distributed import DistributedConfig

        given, _, mesh = type(whole).prepare_distribute_model(DistributedConfig(tp_plan="auto", tp_size=devices))
        return type(whole).maybe_distribute_model(whole, given, mesh)

    return make


def _inspect(make, configuration, dtype, options):
    """Returns (cache size per layer, names of parameters, further arguments of forward, assumptions).

    A cache size is (bytes per token, sliding window or 0, constant bytes), from runs with 2 and 4 tokens.
    """
    in_mode = {name: value for name, value in (options or {}).items() if name in _capture._OF_MODE}
    with fake("cuda", **in_mode), torch.no_grad():
        module = _models.create(make, "cuda", dtype).eval()
        configuration = configuration or getattr(module, "config", None)
        takes = inspect.signature(module.forward).parameters
        if "use_cache" not in takes:
            raise _C.Error(f"{type(module).__name__}.forward has no use_cache argument; serve() requires a model with "
                           "a KV cache, as in transformers")  # fmt: skip
        few, more = (_cache_bytes(module(input_ids=torch.zeros(1, tokens, dtype=torch.int64, device="cuda"),
                                         use_cache=True)) for tokens in (2, 4))  # fmt: skip
        names = [name for name, _ in module.named_parameters()]
    arguments = {"use_cache": False} | ({"logits_to_keep": 1} if "logits_to_keep" in takes else {})
    layers = []
    for (at_two, window), (at_four, _) in zip(few, more, strict=True):
        each = (at_four - at_two) // 2
        layers.append((each, window, at_two - 2 * each))
    latent = _latent(configuration, dtype)
    if latent:
        layers = [(min(each, latent), window, state) for each, window, state in layers]
    assumptions = ["latent attention caches the latent vectors, and its time is that of reading them"] if latent else []
    return layers, names, arguments, assumptions


def _latent(configuration, dtype):
    """Returns the cache bytes per token and layer of multi-head latent attention, which caches latents, else 0."""
    rank = getattr(configuration, "kv_lora_rank", None)
    rotary = getattr(configuration, "qk_rope_head_dim", None)
    return (rank + rotary) * dtype.itemsize if rank and rotary else 0


def _cache_bytes(outputs):
    """Returns (bytes, sliding window or 0) for each layer of the KV cache in a model output."""
    cache = getattr(outputs, "past_key_values", None) or getattr(outputs, "cache_params", None)
    if cache is None:
        raise _C.Error("the model output has no past_key_values; serve() requires a model with a KV cache")
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


# ---- Quantization


def _outputs(names):
    """Returns the output embeddings, which libraries do not quantize by default."""
    return [name for name in names if re.search(r"(^|\.)(lm_head|embed_out|output_projection)\.", name)]


def _matching(names, parts):
    """Returns the names that contain or match one of the parts: text, a pattern with *, or "re:" and an expression."""
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


def _quantization(configuration):
    """Returns (weight format, excluded modules) of the quantization_config, or None without one."""
    config = getattr(configuration, "quantization_config", None)
    if config is None:
        return None
    config = config if isinstance(config, dict) else config.to_dict()
    method = str(getattr(config.get("quant_method"), "value", config.get("quant_method"))).replace("-", "_")
    read = _METHODS.get(method)
    if read is None:
        raise _C.Error(f"unknown method '{method}' in quantization_config; pass weights= with one of "
                       + ", ".join(_C.weight_formats()))  # fmt: skip
    excluded = config.get("modules_to_not_convert") or config.get("ignore") or config.get("llm_int8_skip_modules")
    return read(config), list(excluded or ["lm_head"])


def _grouped(name):
    def read(said):
        group = said.get("group_size", said.get("q_group_size", 128))
        if group is None or group < 1:
            raise _C.Error(f"{name} with group_size {group} is not supported; pass weights= with a group size")
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
        raise _C.Error(f"compressed-tensors with {len(schemes)} config_groups is not supported; pass weights=")
    scheme, bits = schemes[0], schemes[0].get("num_bits")
    kind, strategy = scheme.get("type"), scheme.get("strategy")
    if kind == "float" and bits == 8:
        return "fp8" if strategy == "tensor" else "fp8-row"
    if kind == "int" and bits == 8 and strategy == "channel":
        return "int8-dynamic" if activations[0] else "llm-int8"
    if kind == "int" and strategy == "group":
        return f"{'w4a16' if scheme.get('symmetric', True) else 'awq'}:bits={bits},group={scheme.get('group_size')}"
    raise _C.Error(f"compressed-tensors with {bits}-bit {kind} weights and {strategy} scales is not supported; pass "
                   "weights=")  # fmt: skip


def _torchao(said):
    name = str(said.get("quant_type"))
    for part, form in (("int4", "int4"), ("int8", "int8"), ("float8", "fp8-row")):
        if part in name.lower().replace("_", ""):
            return form
    raise _C.Error(f"torchao quant_type {name} is not supported; pass weights=")


_METHODS = {
    "gptq": _grouped("gptq"), "awq": _grouped("awq"), "bitsandbytes": _bitsandbytes, "fp8": _fp8,
    "compressed_tensors": _compressed_tensors, "torchao": _torchao, "mxfp4": lambda said: "mxfp4",
}  # fmt: skip
