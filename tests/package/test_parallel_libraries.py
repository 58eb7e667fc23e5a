"""Libraries for distributed training: transformers' tensor parallel, accelerate's FSDP2, DCP, torchtitan."""

import functools
import math
import os
import sys
import types

import pytest
import torch
from parallel_programs import BATCH, LENGTH, PROGRAMS, Decoder, optimizer_of
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional as F

import shadowgraph as sg

sys.modules.setdefault("torchvision._meta_registrations", types.ModuleType("torchvision._meta_registrations"))


def loss_on_cuda(logits):
    return F.cross_entropy(logits.flatten(0, 1).float(),
                           torch.zeros(BATCH * LENGTH, dtype=torch.int64, device="cuda"))  # fmt: skip


def profiled(make, size, rank=0, inputs=f"i64[{BATCH},{LENGTH}]", **options):
    options = {"optimizer": functools.partial(torch.optim.AdamW, foreach=False), "loss": loss_on_cuda, **options}
    with sg.fake_process_group(size, rank):
        report = sg.profile(make, inputs, device="cuda", steady_state=True, **options)
    report.graph.verify()
    return report


def figures(report):
    kinds = report.dict()["communication"]["kinds"]
    return (report.peak_bytes, report.dict()["peak"]["by_kind"], report.dict()["parameters"],
            {name: (kind["calls"], kind["payload_bytes"]) for name, kind in kinds.items()})  # fmt: skip


# ---- The environment


def test_the_environment_is_torchruns(monkeypatch):
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    monkeypatch.setenv("RANK", "5")
    with sg.fake_process_group(8, rank=3):
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
        assert [os.environ[name] for name in names] == ["3", "8", "0", "1"]
    assert os.environ["RANK"] == "5" and "LOCAL_RANK" not in os.environ


# ---- transformers


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    transformers = pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("llama")
    config = transformers.LlamaConfig(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
                                      num_key_value_heads=2, vocab_size=128)  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    return config, folder


LLAMA = {"input_ids": "i64[4,32]", "labels": "i64[4,32]"}


def llama_by_hand(config, size):
    import transformers

    mesh = init_device_mesh("cuda", (size,), mesh_dim_names=("tp",))
    model = transformers.LlamaForCausalLM(config)
    plan = {f"self_attn.{name}": ColwiseParallel() for name in ("q_proj", "k_proj", "v_proj")}
    plan |= {"self_attn.o_proj": RowwiseParallel(), "mlp.gate_proj": ColwiseParallel(),
             "mlp.up_proj": ColwiseParallel(), "mlp.down_proj": RowwiseParallel()}  # fmt: skip
    for layer in model.model.layers:
        parallelize_module(layer, mesh, plan)
    return model


def test_a_checkpoint_is_loaded_in_parts_by_transformers(checkpoint):
    pytest.importorskip("accelerate")
    from transformers import LlamaForCausalLM

    config, folder = checkpoint
    report = profiled(lambda: LlamaForCausalLM.from_pretrained(folder, tp_plan="auto"), 2, 1, LLAMA, loss=".loss")
    by_hand = profiled(lambda: llama_by_hand(config, 2), 2, 1, LLAMA, loss=".loss")
    # transformers shards the embedding and the head, too.
    figures_of_both = [each.dict() for each in (report, by_hand)]
    whole = sum(parameter.numel() for parameter in LlamaForCausalLM(config).parameters())
    assert [each["whole_parameters"] for each in figures_of_both] == [whole, whole]
    assert report.dict()["parameters"] == by_hand.dict()["parameters"] - 2 * (128 * 64 // 2)
    # Two moments and a step count for each local parameter.
    by_kind = report.dict()["peak"]["by_kind"]
    assert by_kind["parameter"] == 4 * report.dict()["parameters"]
    assert by_kind["optimizer_state"] == 8 * report.dict()["parameters"]
    kinds = [each["communication"]["kinds"]["all_reduce"]["calls"] for each in figures_of_both]
    assert kinds[0] >= 2 * 2 and kinds[1] >= 2 * 2
    # Two of four heads. Since 2.14 the efficient kernel supports grouped heads; before, attention runs as matrix
    # products.
    attention = ("aten::bmm", "aten::_scaled_dot_product_efficient_attention")
    matrices = {math.prod(node.results[0].shape[:-2]) for node in report.graph if node.target in attention}
    assert matrices == {4 * 2}


def test_transformers_cuts_a_model_that_is_not_loaded(checkpoint):
    pytest.importorskip("accelerate")
    from transformers import LlamaForCausalLM
    from transformers.distributed import DistributedConfig

    config, folder = checkpoint

    def make():
        given, _, mesh = LlamaForCausalLM.prepare_distribute_model(DistributedConfig(tp_plan="auto", tp_size=2))
        return LlamaForCausalLM.maybe_distribute_model(LlamaForCausalLM(config), given, mesh)

    made = profiled(make, 2, 0, LLAMA, loss=".loss")
    loaded = profiled(lambda: LlamaForCausalLM.from_pretrained(folder, tp_plan="auto"), 2, 0, LLAMA, loss=".loss")
    assert figures(made) == figures(loaded)


@pytest.mark.parametrize("how", ["grouped_mm", "eager"])
def test_transformers_sends_tokens_to_experts(how):
    transformers = pytest.importorskip("transformers")
    from transformers.distributed import DistributedConfig

    config = transformers.MixtralConfig(hidden_size=64, intermediate_size=128, num_hidden_layers=2, vocab_size=128,
                                        num_attention_heads=4, num_key_value_heads=2, num_local_experts=4)  # fmt: skip

    def make():
        kind = transformers.MixtralForCausalLM
        given, _, mesh = kind.prepare_distribute_model(DistributedConfig(tp_size=2, ep_size=2))
        model = kind(config)
        model.set_experts_implementation(how)
        return kind.maybe_distribute_model(model, given, mesh)

    report = profiled(make, 2, 1, LLAMA, loss=".loss")
    # Each rank has 64 of the 128 tokens, and sends each to two of four experts.
    assert any(text.startswith("routing0: 128 evenly over 4, assumed") for text in report.dict()["assumptions"])
    assert report.dict()["communication"]["kinds"]["all_to_all"]["calls"] >= 2 * 4
    experts = 3 * 64 * 128 * 4 * 2
    whole, here = report.dict()["whole_parameters"], report.dict()["parameters"]
    assert here < experts / 2 + (whole - experts)


# ---- accelerate


def accelerated(model):
    accelerate = pytest.importorskip("accelerate")
    plugin = accelerate.FullyShardedDataParallelPlugin(
        fsdp_version=2, auto_wrap_policy="transformer_based_wrap", transformer_cls_names_to_wrap=["Block"]
    )
    accelerator = accelerate.Accelerator(fsdp_plugin=plugin)
    return accelerator, *accelerator.prepare(model, torch.optim.AdamW(model.parameters()))


def sharded_by_hand():
    """accelerate shards the final norm separately."""
    mesh = init_device_mesh("cuda", (4,))
    model = Decoder()
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard([model.norm], mesh=mesh, reshard_after_forward=False)
    return fully_shard(model, mesh=mesh)


@pytest.mark.parametrize("rank", [1, 2])
def test_accelerate_shards_as_by_hand(rank):
    report = profiled(lambda: accelerated(Decoder())[1], 4, rank, optimizer=torch.optim.AdamW)
    by_hand = profiled(sharded_by_hand, 4, rank, optimizer=torch.optim.AdamW)
    assert figures(report) == figures(by_hand)
    assert report.dict()["whole_parameters"] == 4 * report.dict()["parameters"]


def test_accelerate_in_a_loop_of_ones_own():
    with sg.fake_process_group(4, 1), sg.fake("cuda"):
        accelerator, model, optimizer = accelerated(Decoder())
        ids = torch.zeros(BATCH, LENGTH, dtype=torch.int64, device="cuda")
        for _ in range(2):
            with sg.Capture("cuda") as capture:
                capture.name_module(model)
                capture.name_input(ids, "ids")
                loss = loss_on_cuda(model(ids))
                accelerator.backward(loss)
                with sg.phase("optimizer"):
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                    optimizer.step()
                    optimizer.zero_grad()
                graph = capture.finish([loss.detach()])
    graph.verify()
    report = sg.Profile(graph)
    assert report.dict()["whole_parameters"] == 4 * report.dict()["parameters"] == 161600
    assert report.dict()["peak"]["by_kind"]["optimizer_state"] == 2 * 161600
    assert {"all_gather", "reduce_scatter", "all_reduce"} <= set(report.dict()["communication"]["kinds"])


def test_accelerate_forgets_the_rank():
    accelerate = pytest.importorskip("accelerate")
    seen = []
    for rank in (0, 1):
        with sg.fake_process_group(2, rank), sg.fake("cuda"):
            seen.append(accelerate.PartialState().process_index)
    assert seen == [0, 1]


# ---- Checkpoints are planned, but not written


@pytest.mark.parametrize("name", ["ddp", "fsdp", "hsdp", "tp", "fsdp x tp"])
def test_plans_of_checkpoints_sum_to_the_whole(name):
    from torch.distributed.checkpoint import DefaultSavePlanner
    from torch.distributed.checkpoint.planner import WriteItemType
    from torch.distributed.checkpoint.state_dict import get_state_dict

    def bytes_of(plan):
        tensors = [item for item in plan.items if item.type != WriteItemType.BYTE_IO]
        return sum(math.prod(item.tensor_data.chunk.sizes) * item.tensor_data.properties.dtype.itemsize
                   for item in tensors)  # fmt: skip

    size = 4 if name in ("hsdp", "fsdp x tp") else 2
    plans = []
    for rank in range(size):
        with sg.fake_process_group(size, rank), sg.fake("cuda"):
            model = PROGRAMS[name](size, "cuda").cuda()
            optimizer = optimizer_of(name)(model.parameters())
            loss_on_cuda(model(torch.zeros(BATCH, LENGTH, dtype=torch.int64, device="cuda"))).backward()
            optimizer.step()
            optimizer.zero_grad()
            states = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer)))
            planner = DefaultSavePlanner()
            planner.set_up_planner(states, None, rank == 0)
            plans.append(planner.create_local_plan())
    with sg.fake_process_group(size, 0), sg.fake("cuda"):
        planner.set_up_planner(states, None, True)
        everybodys, _ = planner.create_global_plan(plans)
    parameters = list(Decoder().parameters())
    # A parameter, two moments, and its step count.
    whole = 3 * 4 * sum(parameter.numel() for parameter in parameters) + 4 * len(parameters)
    assert sum(map(bytes_of, everybodys)) == whole
    if name != "ddp":
        assert max(map(bytes_of, plans)) < 0.6 * whole


# ---- torchtitan


def titans(size, device, depth=3):
    """Sets up as torchtitan: meta device, tensor parallel, selective checkpoints, FSDP2, then allocation and init."""
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
    from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

    kept = {torch.ops.aten.mm.default, torch.ops.aten.addmm.default,
            torch.ops.aten._scaled_dot_product_flash_attention.default}  # fmt: skip

    def policy(context, operator, *args, **kwargs):
        return CheckpointPolicy.MUST_SAVE if operator in kept else CheckpointPolicy.PREFER_RECOMPUTE

    mesh = init_device_mesh(device, (size // 2, 2), mesh_dim_names=("fsdp", "tp"))
    with torch.device("meta"):
        model = Decoder()
    plan = {f"attention.{name}": ColwiseParallel() for name in ("query", "key", "value")}
    plan |= {"attention.out": RowwiseParallel(), "feed_forward.up": ColwiseParallel(),
             "feed_forward.down": RowwiseParallel()}  # fmt: skip
    for i, block in enumerate(model.blocks):
        parallelize_module(block, mesh["tp"], plan)
        contexts = functools.partial(create_selective_checkpoint_contexts, policy)
        model.blocks[i] = checkpoint_wrapper(block, context_fn=contexts, preserve_rng_state=False)
    how = {"mesh": mesh["fsdp"], "mp_policy": MixedPrecisionPolicy(torch.bfloat16, torch.float32)}
    for block in model.blocks:
        fully_shard(block, **how)
    fully_shard(model, **how)
    model.to_empty(device=device)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                torch.nn.init.trunc_normal_(parameter, mean=0.0, std=0.02)
            else:
                torch.nn.init.normal_(parameter)
    return model


def test_a_training_setup_like_torchtitans():
    report = profiled(lambda: titans(4, "cuda"), 4, 3)
    whole = sum(parameter.numel() for parameter in Decoder().parameters())
    assert report.dict()["whole_parameters"] == whole
    # Blocks are sharded over four ranks, except norms and the biases of row-parallel layers; the rest over two.
    here = report.dict()["parameters"]
    assert whole / 4 < here < whole / 2
    by_kind = report.dict()["peak"]["by_kind"]
    assert by_kind["parameter"] == 4 * here and by_kind["optimizer_state"] == 8 * here
    # Selective checkpointing keeps matrix products and recomputes the rest.
    again = [node.target for node in report.graph if node.phase == "backward" and node.forward is not None]
    assert any("gelu" in name for name in again)


@pytest.mark.parametrize("backend", ["partial_dtensor"])
def test_torchtitans_llama(backend):
    pytest.importorskip("torchtitan.models.llama3", exc_type=ImportError)
    from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig
    from torchtitan.distributed import ParallelDims
    from torchtitan.distributed import utils as titan
    from torchtitan.distributed.activation_checkpoint import SelectiveAC
    from torchtitan.models.llama3 import model_registry

    spec = model_registry("debugmodel")
    length = 256

    class WithMask(torch.nn.Module):
        def __init__(self, model):
            super().__init__()
            self.model = model

        def forward(self, tokens):
            positions = torch.arange(length, device=tokens.device).expand(len(tokens), length)
            masks = self.model.get_attention_masks(positions=positions)
            return self.model(tokens, positions=positions, attention_masks=masks)

    def make():
        parallelism = ParallelismConfig(tensor_parallel_degree=2, spmd_backend=backend)
        training = TrainingConfig(seq_len=length, local_batch_size=2)
        dims = ParallelDims.from_config(parallelism, 4)
        dims.build_mesh()
        titan.set_spmd_backend(backend)
        compiling = CompileConfig(enable=False)
        spec.model.update_from_config(config=types.SimpleNamespace(
            parallelism=parallelism, training=training, debug=types.SimpleNamespace(), compile=compiling))  # fmt: skip
        with torch.device("meta"):
            model = spec.model.build()
        how = {"training": training, "parallelism": parallelism, "compile_config": compiling, "dump_folder": ""}
        model = spec.parallelize_fn(model, parallel_dims=dims, ac_config=SelectiveAC.Config(), **how)
        model.to_empty(device="cuda")
        with torch.no_grad():
            model.init_weights(buffer_device=None)
        return WithMask(model)

    def loss(logits):
        return (logits.full_tensor() if hasattr(logits, "full_tensor") else logits).float().square().mean()

    with torch.compiler.set_stance("force_eager"):
        report = profiled(make, 4, 1, f"i64[2,{length}]", loss=loss, optimizer=torch.optim.AdamW)
    here, whole = report.dict()["parameters"], report.dict()["whole_parameters"]
    assert whole / 4 <= here < 1.01 * whole / 4
    assert {"all_gather", "all_reduce", "reduce_scatter"} <= set(report.dict()["communication"]["kinds"])
