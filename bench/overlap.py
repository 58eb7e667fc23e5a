#!/usr/bin/env python3
"""Compares throughput of Llama 3 8B with FSDP2 on eight H100s, with and without overlap, with torchtitan.

    PYTHONPATH=build/python bench/overlap.py [LAYERS]

torchtitan (benchmarks/llama3_h100_202412_torchtitan.md) measured 5,762 tokens per second and GPU in eager mode, with
two sequences of 8,192 tokens, bfloat16 with float32 reductions, selective activation checkpoints per operator, and
H100s with HBM2e at 500 W.
"""

import functools
import sys
import types

import torch
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

import shadowgraph as sg

RANKS, SEQUENCES, LENGTH, PUBLISHED = 8, 2, 8192, 5762
KEPT = {torch.ops.aten._scaled_dot_product_flash_attention.default,
        torch.ops.aten._scaled_dot_product_efficient_attention.default,
        torch.ops.aten._scaled_dot_product_cudnn_attention.default}  # fmt: skip


def contexts():
    """Selective activation checkpoints of torchtitan: saves attention and every second matrix product."""
    products = {True: 0, False: 0}

    def policy(context, operator, *args, **kwargs):
        if operator is torch.ops.aten.mm.default:
            products[context.is_recompute] += 1
            keep = products[context.is_recompute] % 2 == 1
        else:
            keep = operator in KEPT
        return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


def make(layers):
    import transformers

    config = transformers.LlamaConfig(
        hidden_size=4096, intermediate_size=14336, num_hidden_layers=layers, num_attention_heads=32,
        num_key_value_heads=8, vocab_size=128256, max_position_embeddings=LENGTH, rope_theta=500000.0, use_cache=False,
        attn_implementation="sdpa")  # fmt: skip
    mesh = init_device_mesh("cuda", (RANKS,), mesh_dim_names=("fsdp",))
    model = transformers.LlamaForCausalLM(config)
    how = {"mesh": mesh, "mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)}
    for i, layer in enumerate(model.model.layers):
        wrapped = checkpoint_wrapper(layer, context_fn=contexts, preserve_rng_state=False)
        model.model.layers[i] = fully_shard(wrapped, **how)
    return fully_shard(model, **how)


def main(layers=32):
    # transformers imports torchvision, which may be built for another torch.
    sys.modules.setdefault("torchvision._meta_registrations", types.ModuleType("torchvision._meta_registrations"))
    ids = f"i64[{SEQUENCES},{LENGTH}]"
    with sg.fake_process_group(RANKS, rank=0):
        report = sg.profile(functools.partial(make, layers), {"input_ids": ids, "labels": ids}, loss=".loss",
                            optimizer=functools.partial(torch.optim.AdamW, fused=True), device="cuda",
                            steady_state=True, spec="h100", interconnect="h100")  # fmt: skip
    costs = report.dict()
    overlap = costs["communication"]["overlap"]
    for key, what in (("seconds", "with overlap"), ("at_most_seconds", "without overlap"),
                      ("compute_seconds", "without communication")):  # fmt: skip
        print(f"{SEQUENCES * LENGTH / overlap[key]:6.0f} tokens per second and GPU {what}")
    print(f"{PUBLISHED:6} measured")
    for cause in overlap["causes"]:
        print(f"{1e3 * cause['seconds']:6.1f} ms waiting for {cause['text']}")
    print(f"{1e3 * overlap['slowed_seconds']:6.1f} ms slower kernels")
    print(f"{costs['device_memory']['reserved_peak_bytes'] / 2**30:6.1f} GiB reserved, 82.4 measured")


if __name__ == "__main__":
    main(*(int(each) for each in sys.argv[1:]))
