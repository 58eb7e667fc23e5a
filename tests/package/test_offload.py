"""Activations offloaded to the CPU: the pass, plans, and programs that offload themselves."""

import collections
import json

import pytest
import torch
from decoder import DecoderOf
from test_plans import llama, plan
from torch import nn
from torch.nn import functional as F

import shadowgraph as sg

LEAST = 1 << 20
WIDTH, TOKENS, LAYERS = 512, 2048, 6


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Host:
    """Offloads saved tensors of a layer while the next layer runs, and fetches them during that layer's backward."""

    def __init__(self, model):
        self.out, self.back = torch.cuda.Stream(), torch.cuda.Stream()
        self.stays = {parameter.untyped_storage()._cdata for parameter in model.parameters()}
        self.kept, self.leaving, self.there = collections.defaultdict(dict), {}, collections.defaultdict(dict)
        self.readers = collections.Counter()

    def run(self, number, layer, x):
        def pack(tensor):
            storage = tensor.untyped_storage()
            if storage.nbytes() < LEAST or storage._cdata in self.stays:
                return tensor
            if storage._cdata not in self.kept[number]:
                whole = tensor.as_strided((storage.nbytes() // tensor.itemsize,), (1,), 0)
                self.out.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(self.out):
                    self.kept[number][storage._cdata] = whole.to("cpu", non_blocking=True)
                self.leaving.setdefault(number, []).append(tensor)
            self.readers[number, storage._cdata] += 1
            return storage._cdata, tensor.shape, tensor.stride(), tensor.storage_offset()

        def unpack(packed):
            if isinstance(packed, torch.Tensor):
                return packed
            self.fetch(number)
            self.fetch(number - 1)
            storage, *view = packed
            self.readers[number, storage] -= 1
            there = self.there[number]
            return (there[storage] if self.readers[number, storage] else there.pop(storage)).as_strided(*view)

        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            y = layer(x)
        if number > 0:
            torch.cuda.current_stream().wait_stream(self.out)
            self.leaving.pop(number - 1)
        if number == LAYERS - 1:
            self.leaving.pop(number)
        return y

    def fetch(self, number):
        if not self.kept[number]:
            return
        with torch.cuda.stream(self.back):
            for key, tensor in self.kept[number].items():
                self.there[number][key] = tensor.to("cuda", non_blocking=True)
        self.kept[number].clear()
        torch.cuda.current_stream().wait_stream(self.back)


class OffloadedDecoder(DecoderOf):
    def forward(self, ids):
        host, x = Host(self), self.words(ids)
        for number, layer in enumerate(self.layers):
            x = host.run(number, layer, x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1).float(), ids.flatten())


def step(kind):
    return sg.profile(lambda: kind([Block() for _ in range(LAYERS)], WIDTH, 256), f"i64[4,{TOKENS}]", mode="train",
                      device="cuda", dtype=torch.bfloat16)  # fmt: skip


def test_a_program_that_does_it_itself_holds_the_same():
    plain, own = step(DecoderOf), step(OffloadedDecoder)
    graph = sg.Graph.parse(plain.graph.text())
    graph.run_passes("offload{modules=layers.*}")
    graph.verify()
    made = sg.profile(graph)
    assert made.peak_bytes == own.peak_bytes < 0.55 * plain.peak_bytes
    memory = [report.dict()["device_memory"]["allocated_peak_bytes"] for report in (made, own)]
    assert memory[0] == memory[1]
    copies = [node for node in graph.find("aten::_to_copy") if dict(node.notes).get("kernel") == "copy engine"]
    assert len(copies) == len([node for node in own.graph.find("aten::_to_copy") if "stream" in dict(node.notes)])


def test_a_step_takes_as_long_as_its_copies(tmp_path):
    plain = step(DecoderOf).graph
    graph = sg.Graph.parse(plain.text())
    graph.run_passes("offload{modules=layers.*}")
    copies = [node for node in graph.find("aten::_to_copy") if dict(node.notes).get("kernel")]
    copied = sum(node.results[0].nbytes for node in copies) / 2

    def seconds(which, link):
        spec = tmp_path / f"{link}.json"
        spec.write_text(json.dumps({"base": "h100", "version": 1, "host": {"link": link}}))
        return sg.profile(which, spec=str(spec)).dict()["time"]["seconds"]

    alone = seconds(plain, 1e15)
    assert seconds(graph, 1e15) < 1.6 * alone  # issuing the copies takes host time, too
    # Copies in both directions are serialized: backward starts after the last layer's copy to the CPU.
    assert seconds(graph, 1e9) == pytest.approx(2 * copied / 1e9, rel=0.2)
    assert seconds(graph, 1e9) > 1.9 * seconds(graph, 2e9)


def long_ids(samples):
    return {"input_ids": f"i64[{samples},8192]", "labels": f"i64[{samples},8192]"}


def simulated(given, **changed):
    how = dict(loss=".loss", devices="2xh100", batch=16, sequence=8192)
    return sg.simulate_plan(llama(), long_ids, {"micro_batch": 8, "pipeline": 2} | given, **how | changed)


def test_plans_of_others_may_have_layers_on_the_host():
    here, there = simulated({}), simulated({"offloaded": "all"})
    ranks = [made.run.dict()["ranks"] for made in (here, there)]
    assert there.bytes < here.bytes
    for one, other in zip(*ranks, strict=True):
        assert other["activations_peak_bytes"] < one["activations_peak_bytes"]
    assert there.on_host > 0 == here.on_host
    assert there.seconds > here.seconds  # so small a model has no compute to hide copies behind
    half = simulated({"offloaded": [3, 3]})
    assert half.dict()["offloaded"] == there.dict()["offloaded"]
    assert [stage["offloaded"] for stage in half.dict()["stages"]] == [3, 3]


def test_plans_of_others_may_have_the_optimizer_on_the_host():
    here, there = simulated({}), simulated({"optimizer_on_host": True})
    assert there.seconds > here.seconds
    on_host = there.on_host
    gone = [one["resident_bytes"] - other["resident_bytes"]
            for one, other in zip(here.run.dict()["ranks"], there.run.dict()["ranks"], strict=True)]  # fmt: skip
    assert max(gone) == on_host > 0 == on_host % 12


@pytest.mark.parametrize(("given", "why"), [
    ({"offloaded": ["model.layers.9"]}, "not a layer of the model"),
    ({"offloaded": [9, 0]}, "exceeds the"),
    ({"optimizer_on_host": 1}, "optimizer_on_host"),
])  # fmt: skip
def test_what_is_no_such_plan_is_refused(given, why):
    with pytest.raises(sg.Error, match=why):
        simulated(given)


def test_a_plan_says_what_is_on_the_host():
    found = plan(offload=["optimizer", "activations"])
    knobs = {row["option"] for row in found.dict()["neighbors"]}
    assert "optimizer on" in knobs
    with pytest.raises(sg.Error, match="'weights' is not one of activations, optimizer"):
        plan(offload=["weights"])


def test_a_device_without_a_host_is_refused(tmp_path):
    spec = tmp_path / "alone.json"
    spec.write_text(json.dumps({"version": 1, "bandwidth": 3e12, "matmul": {"float32": 6e13, "bfloat16": 9e14}}))
    with pytest.raises(sg.Error, match="has no host.link"):
        plan(offload=["activations"], devices=f"8x{spec}", interconnect="h100")
