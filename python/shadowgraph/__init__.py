"""Captures and profiles PyTorch programs without a GPU and without allocating the model.

    import shadowgraph as sg

    report = sg.profile(lambda: GPT2LMHeadModel(config), {"input_ids": "i64[4,512]", "labels": "i64[4,512]"},
                        loss=".loss", optimizer=torch.optim.AdamW, device="cuda")
    print(report)                                     # cost per module, peak memory, FLOPs

The program runs once on fake tensors and is captured below autograd as one graph: forward, backward and optimizer.
All analyses run on that graph.
"""

import sys as _sys
from typing import TYPE_CHECKING as _TYPE_CHECKING

if _sys.argv[:1] == ["-m"] and "shadowgraph" in _sys.orig_argv:  # `python -m shadowgraph`, before its __main__
    from _shadowgraph_tool import exit_on_interrupt as _exit_on_interrupt

    _exit_on_interrupt()

import torch as _torch
from _shadowgraph_build import TORCH_VERSION, TORCH_VERSIONS

if _torch.__version__.split("+")[0] != TORCH_VERSION:
    raise ImportError(
        f"this build of shadowgraph requires torch {TORCH_VERSION}, but torch {_torch.__version__} is installed; the "
        f"C++ ABI of libtorch differs between versions. Install torch=={TORCH_VERSION}, or a shadowgraph wheel for "
        f"your torch (available: {', '.join(TORCH_VERSIONS)}), or build from source for the installed torch with "
        "`pip install --no-build-isolation`"
    )

from . import integrations
from ._capture import Capture, capture, capture_training_step
from ._deferred import (
    DeferredInit,
    deferred_init,
    dematerialize,
    is_deferred,
    materialize_module,
    materialize_shard,
    materialize_tensor,
    save_weights,
)
from ._distributed import fake_process_group
from ._fake import CrossRefMode, detect_fake_mode, fake
from ._fx import from_fx, to_fx
from ._fx_checkpoints import checkpoint_fx
from ._graph import CompiledGraph, ReplayResult
from ._kernels import compile_operators, override_kernel
from ._pipelines import PipelineShapes, pipeline_shapes
from ._plans import PlanSweep, pipeline, plan, simulate_plan
from ._profile import Profile, calibrate, profile
from ._ranks import RankProfiles, Role
from ._serving import serve
from ._shadowgraph import (
    BakedSize,
    ClusterPlan,
    CommunicationProfiler,
    CompiledOperators,
    CrossRefDifference,
    DataDependentError,
    DeferredError,
    DistributedRun,
    Error,
    FileError,
    FlopProfiler,
    Graph,
    GraphError,
    GraphProfiler,
    InfeasibleError,
    MemoryProfiler,
    Node,
    NodeCost,
    NodeTable,
    NoRuleError,
    OperandShapes,
    OutOfMemoryError,
    ParseError,
    PassError,
    PipelineRun,
    PipelineSchedule,
    PlanTable,
    ProfiledNode,
    Region,
    ReplayError,
    ScopedKernelOverride,
    Serving,
    ShapePropagation,
    Storage,
    SymbolicGraph,
    TensorShape,
    TimeProfiler,
    UnsupportedError,
    Value,
    compilable_operators,
    deferred_graph,
    is_fake,
    known_contents,
    operators_with_rule,
    operators_without_kernels,
    passes,
    register_cost,
    register_devices,
    weight_formats,
)
from ._shadowgraph import version as __version__
from ._shapes import propagate, register_composite_rule, register_rule
from ._sharding import Sharding, shard
from ._sweep import SizeCost, SizeSweep, fit, sweep
from ._training import phase, region
from ._unfake import unfake
from ._weights import Weights

# Declared as methods in the stub.
setattr(Graph, "to_fx", to_fx)  # noqa: B010
setattr(Graph, "propagate", propagate)  # noqa: B010

__all__ = [name for name in dir() if not name.startswith("_")]

# Names of other tools (docs/coming-from.md).
_NAMES_ELSEWHERE = {
    "FakeTensorMode": "sg.fake(device)", "ShapeProp": "graph.propagate(x)", "fake_mode": "sg.fake(device)",
    "fakeify": "mode.fakeify(module)", "make_fx": "sg.capture(module, inputs)", "meta_like": 't.to("meta")',
    "register_shape_impl": "sg.register_rule", "symbolic_profile": "sg.profile(module, inputs)",
    "symbolic_trace": "sg.capture(module, inputs)",
}  # fmt: skip

if not _TYPE_CHECKING:  # type checkers would accept any name

    def __getattr__(name):
        hint = f"; use {_NAMES_ELSEWHERE[name]} (docs/coming-from.md)" if name in _NAMES_ELSEWHERE else ""
        raise AttributeError(f"module 'shadowgraph' has no attribute '{name}'{hint}")
