"""Plans of models with skip connections and of encoder-decoders, compared with exhaustive search on eight devices."""

import itertools

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import shadowgraph as sg

DEVICES, BATCH, LENGTH = 8, 16, 64


class Down(nn.Module):
    def __init__(self, before, after):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(before, after, 3, stride=2, padding=1), nn.GroupNorm(4, after)

    def forward(self, x):
        return F.silu(self.norm(self.conv(x)))


class Up(nn.Module):
    def __init__(self, before, after):
        super().__init__()
        self.conv, self.norm = nn.ConvTranspose2d(before, after, 2, stride=2), nn.GroupNorm(4, after)

    def forward(self, x, skipped):
        return F.silu(self.norm(self.conv(torch.cat([x, skipped], 1))))


class UNet(nn.Module):
    """Adds the output of each downsampling step to the upsampling step of the same size."""

    def __init__(self):
        super().__init__()
        self.into, self.out = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 3, 1)
        self.down = nn.ModuleList([Down(16, 32), Down(32, 64), Down(64, 128)])
        self.up = nn.ModuleList([Up(256, 64), Up(128, 32), Up(64, 16)])

    def forward(self, image):
        x, skipped = self.into(image), []
        for step in self.down:
            x = step(x)
            skipped.append(x)
        for step in self.up:
            x = step(x, skipped.pop())
        return F.mse_loss(self.out(x).float(), image.float())


class EncoderDecoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(128, 64)
        how = dict(nhead=4, dim_feedforward=128, batch_first=True, dropout=0.0)
        self.encoder = nn.ModuleList([nn.TransformerEncoderLayer(64, **how) for _ in range(3)])
        self.decoder = nn.ModuleList([nn.TransformerDecoderLayer(64, **how) for _ in range(3)])
        self.head = nn.Linear(64, 128)

    def forward(self, ids):
        memory = target = self.words(ids)
        for layer in self.encoder:
            memory = layer(memory)
        for layer in self.decoder:
            target = layer(target, memory)
        return F.cross_entropy(self.head(target).flatten(0, 1).float(), ids.flatten())


CASES = {
    "U-Net": (UNet, lambda n: f"bf16[{n},3,64,64]"),
    "encoder and decoder": (EncoderDecoder, lambda n: f"i64[{n},{LENGTH}]"),
}


def cuts(units, stages):
    """Yields all ways to split units into stages, as stage sizes."""
    for places in itertools.combinations(range(1, units), stages - 1):
        ends = (0, *places, units)
        yield [end - begin for begin, end in itertools.pairwise(ends)]


@pytest.mark.parametrize("case", CASES)
def test_no_plan_and_no_cut_is_quicker_by_more_than_a_hundredth(case):
    model, inputs = CASES[case]
    how = dict(devices=f"{DEVICES}xh100", batch=BATCH, tensor=[1], schedule=["1f1b"], stages_per_rank=[1],
               micro_batch=[1, 2], recompute=["none"])  # fmt: skip
    asked = sg.PlanSweep(model, inputs, **how)
    found = asked.plan()
    units = sum(stage["units"] for stage in found.dict()["simulated"][0]["plan"]["stages"])
    best, tried = None, 0
    for pipeline, micro_batch in itertools.product((1, 2, 4, 8), (1, 2)):
        data = DEVICES // pipeline
        if data * micro_batch > BATCH or pipeline > units:
            continue
        for zero, outermost in itertools.product((1, 2, 3) if data > 1 else (0,), {False, pipeline > 1 and data > 1}):
            for stages in cuts(units, pipeline):
                plan = {"data": data, "pipeline": pipeline, "micro_batch": micro_batch, "zero": zero, "stages": stages,
                        "data_outermost": outermost}  # fmt: skip
                made = asked.simulate(plan)
                tried += 1
                if made.bytes <= found.dict()["memory"] and (best is None or made.seconds < best[0]):
                    best = made.seconds, str(plan)
    assert tried > 200
    assert found.seconds <= 1.01 * best[0], (str(found), best)
    assert found.bytes <= found.dict()["memory"]
