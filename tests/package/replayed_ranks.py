"""One rank of test_replayed_ranks.py: replays a captured step over gloo and compares it with the program's own step.

    python replayed_ranks.py RANK SIZE STORE NAME...

Both start from the same parameters and inputs. The line of JSON has, by name, the differences of gradients, of
parameters after the step, and of losses.
"""

import json
import os
import sys

import flash_on_cpu
import parallel_programs
import pipeline_programs
import torch
import torch.distributed as dist

import shadowgraph as sg

EXCHANGED = 1 << 20


def is_pipeline(name):
    return name in pipeline_programs.PROGRAMS


def captured(name, size, rank):
    """Captures the first step. Pipeline stages exchange their shapes during it, which the graph does not contain."""
    with sg.fake_process_group(size, rank):
        if is_pipeline(name):
            ids = f"i64[{pipeline_programs.ALL},{parallel_programs.LENGTH}]"
            return sg.capture_training_step(lambda: pipeline_programs.PROGRAMS[name]("cpu"), ids, target=ids,
                                            optimizer=pipeline_programs.optimizer_of(name), device="cpu")  # fmt: skip
        ids = f"i64[{parallel_programs.BATCH},{parallel_programs.LENGTH}]"
        return sg.capture_training_step(lambda: parallel_programs.PROGRAMS[name](size, "cpu"), ids,
                                        loss=parallel_programs.loss_of, device="cpu",
                                        optimizer=parallel_programs.optimizer_of(name),
                                        context=parallel_programs.context_of(name))  # fmt: skip


class Real:
    """The real program with its inputs: a pipeline has the same inputs on all ranks, other programs one per rank."""

    def __init__(self, name, size, rank):
        torch.manual_seed(0)
        self.name, self.is_pipeline = name, is_pipeline(name)
        if self.is_pipeline:
            self.schedule = pipeline_programs.PROGRAMS[name]("cpu")
            self.modules = {f"stage{index}.": module
                            for index, module in pipeline_programs.modules_of(self.schedule).items()}  # fmt: skip
            self.last = self.schedule._num_stages - 1
            make, batch = pipeline_programs.optimizer_of(name), pipeline_programs.ALL
        else:
            self.modules = {"": parallel_programs.PROGRAMS[name](size, "cpu")}
            make, batch = parallel_programs.optimizer_of(name), parallel_programs.BATCH
            # With tensor or context parallel, all ranks use the same batch.
            torch.manual_seed(1 if "tp" in name or "context" in name else rank + 1)
        words = parallel_programs.WIDTH, (batch, parallel_programs.LENGTH)  # some programs return one score per word
        self.inputs = {"input0": torch.randint(*words), "target": torch.randint(*words)}
        self.parameters = {prefix + name: parameter for prefix, module in self.modules.items()
                           for name, parameter in module.named_parameters()}  # fmt: skip
        self.buffers = {prefix + name: buffer for prefix, module in self.modules.items()
                        for name, buffer in module.named_buffers()}  # fmt: skip
        self.optimizer = make(list(self.parameters.values()))

    def step(self):
        """Runs the step and returns the losses."""
        if self.is_pipeline:
            losses: list[torch.Tensor] = []
            is_last = f"stage{self.last}." in self.modules
            given = [self.inputs["input0"]] if "stage0." in self.modules else []
            self.schedule.step(*given, target=self.inputs["target"] if is_last else None, losses=losses)
        else:
            with parallel_programs.context_of(self.name)(self.inputs["input0"]):
                losses = [parallel_programs.loss_of(self.modules[""](self.inputs["input0"]))]
                losses[0].backward()
        self.optimizer.step()
        return [loss.detach() for loss in losses]


def exchanged(rank, size):
    """Two ranks both post a receive before they send: returns the received and the expected value."""

    def program(x):
        got = torch.empty_like(x)
        both = [dist.P2POp(dist.irecv, got, 1 - rank), dist.P2POp(dist.isend, 2 * x, 1 - rank)]
        for work in dist.batch_isend_irecv(both):
            work.wait()
        return got + x

    with sg.fake_process_group(size, rank):
        graph = sg.capture(program, f"f32[{EXCHANGED}]", device="cpu")
    dist.init_process_group("gloo", rank=rank, world_size=size, store=dist.FileStore(f"{sys.argv[3]}.exchange", size))
    (got,) = graph.compile()(torch.full((EXCHANGED,), rank + 1.0))
    dist.destroy_process_group()
    return [float(got.min()), float(got.max()), 2.0 * (2 - rank) + rank + 1]


def local(tensor):
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def copies_for(graph, real):
    """Returns a tensor per placeholder: copies of the program's tensors, with the same aliases; zeros for the
    others."""
    named = {name: local(tensor).detach() for name, tensor in (real.parameters | real.buffers).items()}
    memory, zeros = {}, {}

    def copied(tensor):
        storage = tensor.untyped_storage()
        copy = memory.setdefault(storage.data_ptr(), storage.clone())
        return torch.empty(0, dtype=tensor.dtype).set_(copy, tensor.storage_offset(), tensor.shape, tensor.stride())

    given = {}
    for node in graph:
        if not node.is_placeholder or node.target == "sg::constant":
            continue
        name, value = node.argument("name"), node.results[0]
        if name in named:
            given[name] = copied(named[name])
        elif name in real.inputs:
            given[name] = real.inputs[name].clone()
        else:  # a gradient bucket or a receive buffer
            whole = zeros.setdefault(value.storage, torch.zeros(1 << 20, dtype=value.dtype))
            given[name] = whole.as_strided(value.shape, value.stride, value.offset)
    return given


def apart(ours, theirs):
    pairs = [(a.detach(), b.detach()) for a, b in zip(ours, theirs, strict=True) if b.numel()]
    return max((float((a - b).abs().max()) for a, b in pairs), default=0.0)


def compared(name, size, rank):
    graph = captured(name, size, rank)
    dist.init_process_group("gloo", rank=rank, world_size=size, store=dist.FileStore(f"{sys.argv[3]}.{name}", size))
    real = Real(name, size, rank)
    given = copies_for(graph, real)
    before = {key: tensor.clone() for key, tensor in given.items() if key in real.parameters}
    replay = graph.compile(check_results=True).run(given)
    losses = real.step()
    gradients = {key: local(parameter.grad) for key, parameter in real.parameters.items()}
    result = {
        "gradients": apart([replay.gradients[key] for key in gradients], gradients.values()),
        "parameters": apart([given[key] for key in real.parameters], map(local, real.parameters.values())),
        "losses": apart([output for output in replay.outputs if output is not None][: len(losses)], losses),
        # The compared values are nonzero and have changed.
        "largest gradient": max(float(each.abs().max()) for each in gradients.values() if each.numel()),
        "moved": apart([given[key] for key in before], before.values()),
        "communications": sum("c10d" in node.target for node in graph),
    }
    if name in ("fsdp", "tp"):
        twin = Real(name, size, rank)
        graph.compile(twin.modules[""])(input0=twin.inputs["input0"])
        result["by module"] = apart(map(local, twin.parameters.values()), map(local, real.parameters.values()))
    dist.destroy_process_group()
    return result


if __name__ == "__main__":
    flash_on_cpu.register()
    rank, size = int(sys.argv[1]), int(sys.argv[2])
    done = {name: compared(name, size, rank) for name in sys.argv[4:]}
    if size == 2:
        done["exchange"] = exchanged(rank, size)
    print(json.dumps(done), flush=True)
    os._exit(0)  # gloo's threads may outlive the interpreter, which then aborts
