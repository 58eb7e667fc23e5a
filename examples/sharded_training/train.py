#!/usr/bin/env python3
"""Shards a training step over a device mesh and runs it with one process per rank.

    python train.py --mesh dp=2,tp=2                       gloo, on the CPU
    python train.py --mesh dp=2,tp=2 --backend nccl        one GPU per process

Captures a small network. `shadowgraph shard` finds a sharding and writes the graph of each rank. A few layouts are
pinned, since a network this small would not be sharded. Each rank replays its graph on its shards of parameters and
batch, and compares the results with those of the full graph.
"""

import argparse
import pathlib
import re
import subprocess
import sys
import tempfile

import torch
import torch.distributed as dist
from torch.nn import functional as F

import shadowgraph as sg

WIDTH, INNER, BATCH = 32, 64, 24
# {tensor: {mesh axis: placement}}: the first axis shards the batch, the last of several the inner dimension.
PINS = {
    "batch": {0: "S(0)"},
    "up.weight": {-1: "S(0)"},
    "down.weight": {-1: "S(1)"},
}
RESULT_PINS = {"aten::gelu": {0: "S(0)", -1: "S(1)"}, "aten::gelu_backward": {0: "S(0)", -1: "S(1)"}}
PLACEHOLDERS = ("sg::parameter", "sg::buffer", "sg::input")


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.up = torch.nn.Linear(WIDTH, INNER)
        self.down = torch.nn.Linear(INNER, WIDTH)

    def forward(self, batch):
        return batch + self.down(F.gelu(self.up(self.norm(batch))))


def mesh_of(text):
    """Parses "dp=2,tp=2" into [("dp", 2), ("tp", 2)]."""
    return [(name, int(size)) for name, size in (axis.split("=") for axis in text.split(","))]


def coordinates(rank, mesh):
    """Returns the mesh coordinates of a rank. The last axis varies fastest."""
    places = []
    for _, size in reversed(mesh):
        places.insert(0, rank % size)
        rank //= size
    return places


def local_part(whole, layout, mesh, rank):
    """Returns the shard of `rank`. A layout is "S(0),R", or "S(0,8),R" for eight blocks that are sharded each."""
    cuts = []  # (dimension, blocks, axis), sorted from outer to inner
    for axis, placement in enumerate(re.findall(r"R|[SP]\([^)]*\)", layout)):
        if placement.startswith("S"):
            dim, outer = ([int(i) for i in placement[2:-1].split(",")] + [1])[:2]
            cuts.append((dim, outer, axis))
        elif placement.startswith("P"):
            raise ValueError(f"a partial tensor has no shards: {layout}")
    for dim, outer, axis in sorted(cuts):
        blocks = outer
        for other_dim, other_outer, other in cuts:
            if other_dim == dim and other_outer < outer:
                blocks //= mesh[other][1]
        pieces = whole.unflatten(dim, (blocks, mesh[axis][1], -1))
        whole = pieces.select(dim + 1, coordinates(rank, mesh)[axis]).flatten(dim, dim + 1)
    return whole.clone(memory_format=torch.contiguous_format)


def plan(folder, mesh_text, tool):
    """Captures the step and writes graph.sg and rankN.sg. Returns the number of ranks."""
    mesh = mesh_of(mesh_text)
    step = sg.capture_training_step(lambda: Net().double(), {"batch": f"f64[{BATCH},{WIDTH}]"},
                                    loss=lambda y: (y * y).sum(),
                                    optimizer=lambda p: torch.optim.SGD(p, lr=1e-3))  # fmt: skip
    step.save(str(folder / "step.sg"))
    given = dict(PINS)
    for node in step:
        if node.target in RESULT_PINS:
            given[node.name] = RESULT_PINS[node.target]
        elif node.target == "aten::mm" and INNER in node.results[0].shape and BATCH not in node.results[0].shape:
            # A weight gradient is summed over the shards of the batch.
            given[node.name] = {0: "P(sum)", -1: f"S({node.results[0].shape.index(INNER)})"}
    pins = []
    for name, by_axis in given.items():
        layout = ["R"] * len(mesh)
        for axis, placement in by_axis.items():
            if axis == 0 or len(mesh) > 1:
                layout[axis] = placement
        pins += ["--pin", f"{name}={','.join(layout)}"]
    size = 1
    for _, devices in mesh:
        size *= devices
    subprocess.run([tool, "shard", str(folder / "step.sg"), "--mesh", mesh_text, "--spec", "h100", "--interconnect",
                    "h100", "--all-ranks", "-o", str(folder), *pins], check=True, stdout=subprocess.PIPE)  # fmt: skip
    return size


def placeholders(graph):
    return [node for node in graph if node.target in PLACEHOLDERS]


def whole_inputs(graph, device):
    """Returns random inputs that are the same on every rank."""
    torch.manual_seed(7)
    return [torch.randn(node.results[0].shape, dtype=torch.float64).to(device) for node in placeholders(graph)]


def make_groups(mesh, rank, size):
    """Registers a process group per mesh axis under the axis name, which the collectives of the graph use."""
    mine = coordinates(rank, mesh)
    for axis, (name, _) in enumerate(mesh):
        seen = set()
        for other in range(size):
            place = coordinates(other, mesh)
            key = tuple(place[:axis] + place[axis + 1 :])
            if key in seen:
                continue
            seen.add(key)
            members = [
                r for r in range(size) if tuple(coordinates(r, mesh)[:axis] + coordinates(r, mesh)[axis + 1 :]) == key
            ]
            group = dist.new_group(members)
            if key == tuple(mine[:axis] + mine[axis + 1 :]):
                torch._C._distributed_c10d._register_process_group(name, group)


def run_rank(folder, mesh_text, rank, size, backend):
    """Runs one rank. Returns (largest error relative to the largest element of the tensor, number of collectives)."""
    mesh = mesh_of(mesh_text)
    device = torch.device("cuda", rank) if backend == "nccl" else torch.device("cpu")
    dist.init_process_group(backend, store=dist.FileStore(str(folder / "store"), size), rank=rank, world_size=size)
    try:
        make_groups(mesh, rank, size)
        whole_graph = sg.Graph.load(str(folder / "graph.sg"))
        graph = sg.Graph.load(str(folder / f"rank{rank}.sg"))
        whole = whole_inputs(whole_graph, device)
        layouts = [node.notes["layout"] for node in placeholders(graph)]
        parts = [local_part(tensor, layout, mesh, rank) for tensor, layout in zip(whole, layouts)]
        expected = whole_graph.compile(device=str(device)).run(*whole)  # parameters are updated in place
        actual = graph.compile(device=str(device)).run(*parts)

        worst = 0.0

        def compare(expected, actual, layout):
            nonlocal worst
            expected = local_part(expected, layout, mesh, rank)
            worst = max(worst, ((expected - actual).abs().max() / expected.abs().max().clamp_min(1e-4)).item())

        for before, after, layout in zip(whole, parts, layouts):
            compare(before, after, layout)
        ends = {node.target: [] for node in graph}
        for node in graph:
            ends[node.target].append(node)
        for value, local, layout in zip(expected.outputs, actual.outputs,
                                        ends["sg::output"][0].notes["layout"].split(";")):  # fmt: skip
            compare(value, local, layout)
        by_name = {}
        for node in ends.get("sg::gradient", []):
            by_name[node.inputs[0].producer.argument("name")] = node.notes["layout"]
        for name, layout in by_name.items():
            compare(expected.gradients[name], actual.gradients[name], layout)
        sent = sum("_c10d_functional" in node.target and "wait" not in node.target for node in graph)
        print(f"rank {rank}: {len(graph)} nodes, {sent} collectives over {backend}, error {worst:.1e}", flush=True)
        return worst, sent
    finally:
        dist.destroy_process_group()


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mesh", default="dp=2,tp=2")
    parser.add_argument("--backend", default="gloo", choices=["gloo", "nccl"])
    parser.add_argument("--tool", default="shadowgraph", help="path of the command line tool")
    parser.add_argument("--folder", type=pathlib.Path, help="folder for the graphs (default: a temporary one)")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--size", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.rank is not None:
        worst, sent = run_rank(options.folder, options.mesh, options.rank, options.size, options.backend)
        return 0 if worst <= 1e-10 and sent > 0 else 1
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or pathlib.Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "store").unlink(missing_ok=True)
        size = plan(folder, options.mesh, options.tool)
        ranks = [subprocess.Popen([sys.executable, __file__, "--mesh", options.mesh, "--backend", options.backend,
                                   "--folder", str(folder), "--rank", str(rank), "--size", str(size)])
                 for rank in range(size)]  # fmt: skip
        failed = [rank for rank, process in enumerate(ranks) if process.wait() != 0]
    print("as expected" if not failed else f"not as expected on ranks {failed}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
