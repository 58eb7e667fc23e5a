"""Parallelism plans for training on a cluster, and pipeline simulation of a captured training step."""

import copy
import inspect
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from . import _capture, _keywords, _models
from . import _shadowgraph as _C
from ._shadowgraph import ClusterPlan, Graph, PipelineRun, PipelineSchedule, PlanTable, SimulatedPlan


class PlanSweep:
    """Plans a model on a cluster under varying settings. Arguments are those of `sg.plan`.

    sweep = sg.PlanSweep(config, inputs, loss=".loss", devices="1024xh100", batch=2048, sequence=8192)
    print(sweep.run("devices", share=0.4))       # step time by devices, marking efficiency below 40%
    print(sweep.run("price", tokens="15T", within="14d", prices={"h100": 2.5, "a100": 1.2}))
    sweep.plan()                                 # same as `sg.plan`
    """

    def __init__(self, model: Any, inputs: Callable[..., Any], *, devices: str | int, batch: int, sequence: int = 0,
                 loss: Any = None, optimizer: Any = None, dtype: torch.dtype | None = torch.bfloat16,
                 layers: tuple[int, Callable[[int], Any]] | tuple[int, Callable[[int], Any], int] | None = None,
                 interconnect: str = "", name: str = "model", options: Mapping[str, Any] | None = None,
                 **how: Any) -> None:  # fmt: skip
        plan_options = {option: how.pop(option) for option in _PLAN_OPTIONS if option in how}
        if not callable(inputs):
            raise _C.Error("inputs= must be a function of the micro-batch size, such as lambda n: f'i64[{n},512]'")
        if layers is not None and (not isinstance(layers, tuple) or len(layers) not in (2, 3)):
            raise _C.Error(f"layers={layers!r}: expected (number of layers, function of a number of layers)")
        count, fewer, *first = layers if layers is not None else _layers_of(model)

        any_sequence = sequence > 0 and _takes_two(inputs)

        def captured(samples: int, wanted: int, tokens: int, kernel: str) -> Graph:
            given = inputs(samples, tokens) if any_sequence else inputs(samples)
            with _capture.attention(kernel):
                graph, _ = _capture.of_model(fewer(wanted) if wanted else model, given, loss=loss,
                                             optimizer=optimizer, device="cuda", dtype=dtype, mode="train",
                                             steady_state=plan_options.get("captured_state") or False, options=options,
                                             **how)  # fmt: skip
            return graph

        self._questions = _C._PlanSweep(captured, count, first[0] if first else 0, name, any_sequence, str(devices),
                                        interconnect, batch, sequence, plan_options)  # fmt: skip

    def plan(self) -> ClusterPlan:
        """Returns the fastest plan. Raises InfeasibleError if none fits, with settings that would fit."""
        return self._questions.plan()

    def simulate(self, plan: Mapping[str, Any]) -> SimulatedPlan:
        """Simulates a given plan. See `sg.simulate_plan`."""
        return self._questions.simulate(json.dumps(dict(plan)))

    def run(self, what: str, *, values: Iterable[Any] = (), **how: Any) -> PlanTable:
        """Plans the model for several values of one setting and returns a table.

        what: the setting: "devices", "network", "memory", "batch", "sequence", "price".
        values: numbers of devices, factors of link bandwidth, memory sizes ("80GB"), batch sizes in samples, or
          sequence lengths in tokens. By default, values around the current one.
        prices may also be a mapping by device: {"h100": 2.5, "a100": {"per_hour": 1.2, "most": 512}}.
        """
        if isinstance(how.get("prices"), Mapping):
            how["prices"] = json.dumps(dict(how["prices"]))
        return self._questions.run(what, [str(value) for value in values], how)


def plan(model: Any, inputs: Callable[..., Any], *, devices: str | int, batch: int, **how: Any) -> ClusterPlan:
    """Finds the fastest parallelism plan for training a model on a cluster that fits in memory.

        config = transformers.AutoConfig.from_pretrained("llama3-405b")
        plan = sg.plan(config, lambda n: {"input_ids": f"i64[{n},8192]", "labels": f"i64[{n},8192]"}, loss=".loss",
                       devices="1024xh100", batch=2048, sequence=8192)
        print(plan)                                              # plan, lower bound, effect of other options
        plan.seconds, plan.bytes, plan.bound, plan.run, plan.dict()

    model, loss, options, and keywords not listed here: as for `profile`. The model must be a single-device model.
    inputs: a function from the micro-batch size to the inputs of `profile`. A function with two arguments also gets the
      sequence length, which allows planning for other lengths.
    devices: number and model of devices, "1024xh100"; a number alone uses the default device.
    batch: global batch size in samples (sequences).
    sequence: tokens per sample, for throughput in tokens per second.
    layers: (number of layers, function that creates the model with fewer layers). All layers must be identical, or all
      after the first k with (..., ..., k). Known for most transformers configurations. Without it, the full model is
      captured for each micro-batch size.

    Raises InfeasibleError if no plan fits, with settings that would fit; Error for invalid arguments; and the errors of
    the program.
    """
    return PlanSweep(model, inputs, devices=devices, batch=batch, **how).plan()


def simulate_plan(model: Any, inputs: Callable[..., Any], plan: Mapping[str, Any], *, devices: str | int, batch: int,
                  **how: Any) -> SimulatedPlan:  # fmt: skip
    """Estimates time and memory of a given parallelism plan, with the same cost model as `plan`.

        simulated = sg.simulate_plan(model, inputs, {"tensor": 8, "pipeline": 16, "schedule": "interleaved",
                                                     "stages_per_rank": 8, "zero": 1, "recomputed": "all"},
                                     devices="8192xh100", batch=2048, sequence=8192)
        simulated.seconds, simulated.bytes, simulated.run, simulated.dict()

    plan: in the format of ClusterPlan.dict(). `data` and `microbatches` follow from devices and batch.
      `stages` may be numbers of units per stage: layers, and the parts before and after them.
      `recomputed` may be "all" or the number of layers per stage; so may `selective`, for the other layers, and
      `offloaded`, for all layers.

    Other arguments are those of `plan`. Plans that exceed the memory are accepted.
    Raises ParseError for an invalid plan; Error for a plan that requires more devices or has no schedule.
    """
    return PlanSweep(model, inputs, devices=devices, batch=batch, **how).simulate(plan)


def pipeline(step: Graph, schedule: str | PipelineSchedule = "1f1b", *, ranks: int | None = None,
             microbatches: int | None = None, stages_per_rank: int | None = None, cuts: Iterable[str] = (),
             spec: str = "", interconnect: str = "", allocator: str = "", **how: Any) -> PipelineRun:  # fmt: skip
    """Splits a training step of one micro-batch into stages and simulates all ranks of a pipeline schedule.

        step = sg.capture_training_step(make, "i64[1,2048]", loss=".loss", optimizer=torch.optim.AdamW, device="cuda")
        run = sg.pipeline(step, "1f1b", ranks=4, microbatches=16)
        print(run)                                     # time, waiting time and memory per rank
        run.seconds, run.bubble, run.dict()["ranks"][0]["peak_bytes"]

    schedule: one of PipelineSchedule.names(), with `ranks`, `microbatches` and optionally `stages_per_rank`; or a
      PipelineSchedule, for example read from CSV.
    cuts: modules at which the second and later stages begin. By default, chosen to minimize the slowest stage.

    run.piece(step, 2, "I") returns the input gradient computation of stage 2 as a graph, with input and output names.

    Raises Error for a graph that is not a training step, unknown modules in `cuts`, or sizes that the schedule does not
    support.
    """
    if isinstance(schedule, str):
        if ranks is None or microbatches is None:
            raise _C.Error(f"schedule={schedule!r} requires ranks= and microbatches=")
        schedule = PipelineSchedule(schedule, ranks, microbatches, stages_per_rank)
    elif any(given is not None for given in (ranks, microbatches, stages_per_rank)):
        raise _C.Error("ranks=, microbatches= and stages_per_rank= cannot be combined with a PipelineSchedule object")
    return PipelineRun(step, schedule, list(cuts), spec, interconnect, allocator, how)


_PLAN_OPTIONS = _keywords.list_options(plan)
_keywords.list_options(PlanSweep.run)
_keywords.list_options(pipeline)


def _takes_two(inputs: Callable[..., Any]) -> bool:
    """Returns True if `inputs` takes two required positional arguments."""
    try:
        parameters = inspect.signature(inputs).parameters.values()
    except (TypeError, ValueError):
        return False
    places = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(one.kind in places and one.default is one.empty for one in parameters) == 2


def _layers_of(model: Any) -> tuple[int, Callable[[int], Any], int]:
    """Returns (number of layers, function that creates the model with fewer, number of leading layers that differ).

    The first is 0 unless the layers are known to be identical.
    """
    first = getattr(model, "first_k_dense_replace", 0) or 0
    identical = (
        _models._is_configuration(model)
        and isinstance(getattr(model, "num_hidden_layers", None), int)
        and len(set((getattr(model, "layer_types", None) or ["one"])[first:])) == 1
        and not getattr(model, "is_encoder_decoder", False)
        and not getattr(model, "mlp_only_layers", None)
        and getattr(model, "decoder_sparse_step", 1) == 1
        and model.num_hidden_layers > first
    )

    def with_layers(count: int) -> Any:
        fewer = copy.deepcopy(model)
        fewer.num_hidden_layers = count
        derived = isinstance(getattr(type(fewer), "layer_types", None), property)  # computed from the number of layers
        if getattr(fewer, "layer_types", None) and not derived:
            fewer.layer_types = fewer.layer_types[:count]
        return fewer

    return (model.num_hidden_layers, with_layers, first) if identical else (0, lambda count: model, 0)
