"""Plans of training on a cluster, and pipelines of one captured step, simulated on all ranks."""

import copy
import inspect
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from . import _capture, _keywords, _models
from . import _shadowgraph as _C
from ._shadowgraph import ClusterPlan, Graph, PipelineRun, PipelineSchedule, PlanTable, SimulatedPlan

__all__ = ["PlanQuestions", "pipeline", "plan", "simulate_plan"]


class PlanQuestions:
    """Questions about a model on a cluster. Arguments are those of `sg.plan`.

        questions = sg.PlanQuestions(config, inputs, loss=".loss", devices="1024xh100", batch=2048, sequence=8192)
        print(questions.ask("devices", share=0.4))       # seconds by devices, and where efficiency falls under 40 %
        print(questions.ask("price", tokens="15T", within="14d", prices={"h100": 2.5, "a100": 1.2}))
        questions.plan()                                 # what `sg.plan` gives
    """

    def __init__(self, model: Any, inputs: Callable[..., Any], *, devices: str | int, batch: int, sequence: int = 0,
                 loss: Any = None, optimizer: Any = None, dtype: torch.dtype | None = torch.bfloat16,
                 layers: tuple[int, Callable[[int], Any]] | tuple[int, Callable[[int], Any], int] | None = None,
                 interconnect: str = "", name: str = "model", options: Mapping[str, Any] | None = None,
                 **how: Any) -> None:  # fmt: skip
        knobs = {knob: how.pop(knob) for knob in _KNOBS if knob in how}
        if not callable(inputs):
            raise _C.Error("inputs is no function: give one from a micro-batch to inputs, lambda n: f'i64[{n},512]'")
        if layers is not None and (not isinstance(layers, tuple) or len(layers) not in (2, 3)):
            raise _C.Error(f"layers={layers!r} is not (how many, a function that makes the model with fewer)")
        count, fewer, *first = layers if layers is not None else _layers_of(model)

        any_sequence = sequence > 0 and _takes_two(inputs)

        def captured(samples: int, wanted: int, tokens: int, kernel: str) -> Graph:
            given = inputs(samples, tokens) if any_sequence else inputs(samples)
            with _capture.attention(kernel):
                graph, _ = _capture.of_model(fewer(wanted) if wanted else model, given, loss=loss,
                                             optimizer=optimizer, device="cuda", dtype=dtype, mode="train",
                                             steady_state=knobs.get("captured_state") or False, options=options,
                                             **how)  # fmt: skip
            return graph

        made: Any = getattr(_C, "_PlanQuestions")  # noqa: B009 - not in the stub, which has what users see
        self._asked = made(captured, count, first[0] if first else 0, name, any_sequence, str(devices), interconnect,
                           batch, sequence, knobs)  # fmt: skip

    def plan(self) -> ClusterPlan:
        """The best plan; raises NoPlanError where nothing fits, with what would."""
        answer: ClusterPlan = self._asked.plan()
        return answer

    def simulate(self, plan: Mapping[str, Any]) -> SimulatedPlan:
        """What `sg.simulate_plan` gives."""
        made: SimulatedPlan = self._asked.simulate(json.dumps(dict(plan)))
        return made

    def ask(self, what: str, *, values: Iterable[Any] = (), **how: Any) -> PlanTable:
        """A table of plans of changed requests.

        what: "devices", "network", "memory", "batch", "sequence", "price".
        values: numbers of devices, factors of the links' speed, memories ("80GB"), samples, tokens of a sequence; by
          default around the request's own.
        prices may also be a mapping of devices, {"h100": 2.5, "a100": {"per_hour": 1.2, "most": 512}}.
        """
        if isinstance(how.get("prices"), Mapping):
            how["prices"] = json.dumps(dict(how["prices"]))
        table: PlanTable = self._asked.ask(what, [str(value) for value in values], how)
        return table


def plan(model: Any, inputs: Callable[..., Any], *, devices: str | int, batch: int, **how: Any) -> ClusterPlan:
    """How a model is best trained on a cluster: what is cut how many ways, and what a step takes.

        config = transformers.AutoConfig.from_pretrained("llama3-405b")
        plan = sg.plan(config, lambda n: {"input_ids": f"i64[{n},8192]", "labels": f"i64[{n},8192]"}, loss=".loss",
                       devices="1024xh100", batch=2048, sequence=8192)
        print(plan)                                              # the plan, its bound, what other values would bring
        plan.seconds, plan.bytes, plan.bound, plan.run, plan.dict()

    model, loss, options, and what is no knob: as for `profile`. The model is of one device.
    inputs: a function from the samples of a micro-batch to what `profile` takes as inputs. One of two arguments is
      given the tokens of a sample, too, so that other lengths can be asked about.
    devices: how many of which device, "1024xh100"; a number alone: of the usual one.
    batch: samples, or sequences, of a step on all devices.
    sequence: tokens of a sample, for tokens a second.
    layers: how many layers the model has, and a function that makes it with fewer. All are alike, or all behind the
      first few, whose number comes third. It is known of configurations of transformers with such layers. Without it
      each size is captured whole.
    Raises NoPlanError where nothing fits, with what would; Error for arguments that make no sense, and what the
    program raises.
    """
    return PlanQuestions(model, inputs, devices=devices, batch=batch, **how).plan()


def simulate_plan(model: Any, inputs: Callable[..., Any], plan: Mapping[str, Any], *, devices: str | int, batch: int,
                  **how: Any) -> SimulatedPlan:  # fmt: skip
    """What a plan of a cluster that somebody else made takes, by what `plan` finds its own with.

        made = sg.simulate_plan(model, inputs, {"tensor": 8, "pipeline": 16, "schedule": "interleaved",
                                                "stages_per_rank": 8, "zero": 1, "recomputed": "all"},
                                devices="8192xh100", batch=2048, sequence=8192)
        made.seconds, made.bytes, made.run, made.dict()

    plan: as ClusterPlan.dict() has its plans. `data` and `microbatches` are what devices and batch leave.
      `stages` may be numbers of units: layers, and what comes before and behind them.
      `recomputed` may be "all", or how many layers of each stage; so may `selective`, of the other layers, and
      `offloaded`, of all.

    Other arguments are as for `plan`. Nothing is refused for its memory.
    Raises ParseError for what is no plan of the model; Error for plans that take more devices or have no schedule.
    """
    return PlanQuestions(model, inputs, devices=devices, batch=batch, **how).simulate(plan)


def pipeline(step: Graph, schedule: str | PipelineSchedule = "1f1b", *, ranks: int | None = None,
             microbatches: int | None = None, stages_per_rank: int | None = None, cuts: Iterable[str] = (),
             spec: str = "", interconnect: str = "", allocator: str = "", **how: Any) -> PipelineRun:  # fmt: skip
    """Cuts a training step of one micro-batch into stages and runs all ranks of a schedule against each other.

        step = sg.capture_training_step(make, "i64[1,2048]", loss=".loss", optimizer=torch.optim.AdamW, device="cuda")
        run = sg.pipeline(step, "1f1b", ranks=4, microbatches=16)
        print(run)                                     # each rank's seconds, waits and bytes, and the worst rank
        run.seconds, run.bubble, run.dict()["ranks"][0]["peak_bytes"]

    schedule: one of PipelineSchedule.names(), with `ranks`, `microbatches` and where it is open `stages_per_rank`; or a
    PipelineSchedule, of a CSV for example.
    cuts: modules at which the second stage begins, the third, ...; by default where the slowest stage is quickest.

    run.piece(step, 2, "I") is the input gradient of stage 2 as a graph, with names of what goes in and comes out.

    Raises Error for graphs that are no training steps, cuts that are no modules, sizes that do not fit the schedule.
    """
    if isinstance(schedule, str):
        if ranks is None or microbatches is None:
            raise _C.Error(f"schedule {schedule!r} needs ranks= and microbatches=")
        schedule = PipelineSchedule(schedule, ranks, microbatches, stages_per_rank)
    elif any(given is not None for given in (ranks, microbatches, stages_per_rank)):
        raise _C.Error("a PipelineSchedule has its ranks, micro-batches and stages: give the name of one with others")
    return PipelineRun(step, schedule, list(cuts), spec, interconnect, allocator, how)


_KNOBS = _keywords.list_options(plan)
_keywords.list_options(PlanQuestions.ask)
_keywords.list_options(pipeline)


def _takes_two(inputs: Callable[..., Any]) -> bool:
    """Whether it asks for two arguments; one with a default is its own affair."""
    try:
        parameters = inspect.signature(inputs).parameters.values()
    except (TypeError, ValueError):
        return False
    places = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(one.kind in places and one.default is one.empty for one in parameters) == 2


def _layers_of(model: Any) -> tuple[int, Callable[[int], Any], int]:
    """(how many layers, what makes the model with fewer, how many of another kind come first).

    (0, ..) where layers are not known to be alike.
    """
    first = getattr(model, "first_k_dense_replace", 0) or 0
    alike = (
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
        derived = isinstance(getattr(type(fewer), "layer_types", None), property)  # from the number of layers
        if getattr(fewer, "layer_types", None) and not derived:
            fewer.layer_types = fewer.layer_types[:count]
        return fewer

    return (model.num_hidden_layers, with_layers, first) if alike else (0, lambda count: model, 0)
