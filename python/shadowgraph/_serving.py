"""Estimates how many concurrent requests an inference engine fits on a device, and their latency."""

import contextlib
import copy
import fnmatch
import inspect
import re
from collections.abc import Iterable
from typing import Any

import torch

from . import _capture, _keywords, _kv_cache, _models
from . import _shadowgraph as _C
from ._distributed import fake_process_group
from ._fake import fake
from ._shadowgraph import Serving


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
    make, sharding = _rank_factory(model, tensor_parallel)
    with fake_process_group(tensor_parallel) if tensor_parallel > 1 else contextlib.nullcontext():
        layers, names, arguments, assumptions = _inspect(make, configuration, dtype, context, tensor_parallel, options)
        # Libraries do not quantize output embeddings by default.
        default = stored[1] if stored else [r"re:(.*\.)?(lm_head|embed_out|output_projection)\."]
        excluded = _matching(names, default if keep is None else keep)

        def captured(batch, tokens):
            inputs = {"input_ids": f"i64[{batch},{tokens}]", **arguments}
            return _capture.of_model(make, inputs, device="cuda", dtype=dtype, mode="infer", options=options)[0]

        assumptions += sharding
        return _C.serve(captured, layers, spec, interconnect, memory, context, weights, excluded, assumptions, how)


_keywords.list_options(serve)


def _configuration_of(model):
    if _models._is_configuration(model):
        return model
    kind = getattr(model, "config_class", None)
    return kind() if isinstance(model, type) and kind is not None else None


def _rank_factory(model, devices):
    """Returns a function that creates the shard of one rank, and a list to which it adds assumptions when called."""
    notes: list[str] = []
    if devices == 1:
        return model, notes
    if not _models._is_configuration(model):
        raise _C.Error("tensor_parallel= requires a transformers configuration; for a function that shards the model "
                       "itself, call serve() inside sg.fake_process_group")  # fmt: skip
    from transformers.distributed import DistributedConfig
    from transformers.initialization import no_tie_weights

    def make():
        # As from_pretrained: tied embeddings are sharded like others and tied afterwards.
        config, said = _with_heads_for(model, devices)
        with no_tie_weights():
            whole = _models._from_configuration(config)
        kind = type(whole)
        if not whole.tp_plan:
            raise _C.Error(f"transformers has no tp_plan for {kind.__name__}, so it cannot be sharded for "
                           f"tensor_parallel={devices}; {_OWN_PLAN}")  # fmt: skip
        given, _, mesh = kind.prepare_distribute_model(DistributedConfig(tp_plan="auto", tp_size=devices))
        rank = kind.maybe_distribute_model(whole, given, mesh)
        notes[:] = [*said, *_replicated(rank, devices)]
        rank.tie_weights(recompute_mapping=False)
        return rank

    return make, notes


_OWN_PLAN = ("use tensor_parallel=1, set base_model_tp_plan of the configuration, or pass a function that shards the "
             "model itself, inside sg.fake_process_group")  # fmt: skip


def _with_heads_for(config, devices):
    """Returns the configuration with at least one KV head per device, as engines replicate them, and assumptions.

    Raises Error if the heads cannot be divided among the devices.
    """
    text = config.get_text_config(decoder=True)
    heads = getattr(text, "num_attention_heads", None)
    shared = getattr(text, "num_key_value_heads", heads)
    by_head = any(name.endswith((".q_proj", ".k_proj", ".query_key_value")) and style == "colwise"
                  for name, style in (getattr(text, "base_model_tp_plan", None) or {}).items())  # fmt: skip
    if not by_head:
        return config, ["the model's tp_plan does not divide attention heads: every device holds the whole KV cache"]
    if not isinstance(heads, int) or not isinstance(shared, int):
        return config, []
    if heads % devices or (shared % devices and devices % shared):
        fitting = [n for n in range(1, heads + 1) if heads % n == 0 and (shared % n == 0 or n % shared == 0)]
        raise _C.Error(f"tensor_parallel={devices} does not divide {heads} attention heads and {shared} KV heads; use "
                       + ", ".join(map(str, fitting)))  # fmt: skip
    if shared >= devices:
        return config, []
    config = copy.deepcopy(config)
    config.get_text_config(decoder=True).num_key_value_heads = devices
    return config, [f"{shared} KV heads for {devices} devices: each head is on {devices // shared} of them"]


def _replicated(rank, devices):
    """Returns assumptions about the matrices that every device holds whole. Raises Error if no layer is sharded."""
    embeddings = {id(part) for part in (rank.get_input_embeddings(), rank.get_output_embeddings())}
    layers_are_sharded = False
    whole: dict[str, int] = {}
    for path, part in rank.named_modules():
        for name, parameter in part.named_parameters(recurse=False):
            if hasattr(parameter, "to_local") and parameter.to_local().numel() < parameter.numel():
                layers_are_sharded |= id(part) not in embeddings
            elif parameter.dim() > 1:
                where = re.sub(r"\.\d+(?=\.|$)", ".*", f"{path}.{name}")
                whole[where] = whole.get(where, 0) + parameter.nbytes
    if not layers_are_sharded:
        raise _C.Error(f"the tp_plan of {type(rank).__name__} in transformers shards only the embeddings, so each of "
                       f"{devices} devices would hold all of its layers; {_OWN_PLAN}")  # fmt: skip
    largest = sorted(whole, key=whole.__getitem__, reverse=True)
    if not largest:
        return []
    more = f" and {len(largest) - 3} more" if len(largest) > 3 else ""
    return [f"the model's tp_plan does not shard {', '.join(largest[:3])}{more}: every device holds all "
            f"{sum(whole.values()) / 2**20:,.1f} MiB of them"]  # fmt: skip


def _inspect(make, configuration, dtype, context, tensor_parallel, options):
    """Returns (terms of the cache, names of parameters, further arguments of forward, assumptions)."""
    in_mode = {name: value for name, value in (options or {}).items() if name in _capture._OF_MODE}
    with fake("cuda", **in_mode), torch.no_grad():
        module = _models.create(make, "cuda", dtype).eval()
        configuration = configuration or getattr(module, "config", None)
        takes = inspect.signature(module.forward).parameters
        if getattr(configuration, "is_encoder_decoder", False):
            raise _C.Error(f"{type(module).__name__} has an encoder and a decoder; serve() supports models that "
                           "generate from input_ids alone")  # fmt: skip
        if "use_cache" not in takes:
            raise _C.Error(f"{type(module).__name__}.forward has no use_cache argument; serve() requires a model with "
                           "a KV cache, as in transformers")  # fmt: skip

        def run(tokens):
            return module(input_ids=torch.zeros(1, tokens, dtype=torch.int64, device="cuda"), use_cache=True)

        text = configuration.get_text_config(decoder=True) if hasattr(configuration, "get_text_config") else None
        # Cache bytes per token and layer of multi-head latent attention, which caches latents.
        rank, rotary = (getattr(text, name, None) for name in ("kv_lora_rank", "qk_rope_head_dim"))
        latent = (rank + rotary) * dtype.itemsize if rank and rotary else 0
        longest = getattr(text, "max_position_embeddings", None) or 1 << 30
        try:
            cache = _kv_cache.terms_of(run, context, longest, latent)
        except RuntimeError as error:
            if tensor_parallel == 1 or isinstance(error, _C.Error):
                raise
            raise _C.Error(f"{type(module).__name__} does not run with tensor_parallel={tensor_parallel} and the "
                           f"tp_plan of transformers: {error}") from error  # fmt: skip
        names = [name for name, _ in module.named_parameters()]
        beyond = _models.beyond_positions(module, context)
    arguments = {"use_cache": False} | ({"logits_to_keep": 1} if "logits_to_keep" in takes else {})
    assumptions = [beyond] if beyond else []
    if latent:
        assumptions.append("latent attention caches the latent vectors, and its time is that of reading them")
    strides = sorted({term.stride for term in cache if term.stride > 1})
    if strides:
        assumptions.append(f"the cache has compressed entries, one for {' or '.join(map(str, strides))} tokens")
    if strides or getattr(text, "index_topk", None):
        assumptions.append("sparse attention takes the time of reading the whole cache")
    return cache, names, arguments, assumptions


def _matching(names, parts):
    """Returns the names that contain or match one of the parts: text, a pattern with *, or "re:" and an expression."""

    def fits(name, part):
        if part.startswith("re:"):
            return re.match(part[3:], name) is not None
        return fnmatch.fnmatch(name, f"*{part}*") if "*" in part else part in name

    return [name for name in names if any(fits(name, part) for part in parts)]


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
