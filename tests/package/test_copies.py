"""copy.deepcopy of fake tensors: a loop that keeps an exponential moving average of its model, against the CPU."""

import copy

import torch
from test_peaks import bytes_of
from torch import nn

import shadowgraph as sg


def net():
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 6 * 6, 4))


def averaged_steps(device):
    model = net().to(device)
    average = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.ones(2, 3, 8, 8, device=device)).mean().backward()
        optimizer.step()
        with torch.no_grad():
            for kept, now in zip(average.parameters(), model.parameters()):
                kept.lerp_(now, 0.1)
            for kept, now in zip(average.buffers(), model.buffers()):
                kept.copy_(now)
    return model, average


def test_a_loop_with_an_average(tmp_path):
    for device in ("cuda", "cpu"):
        with sg.Capture(device) as session:
            _, average = averaged_steps(device)
            assert {tensor.device.type for tensor in average.state_dict().values()} == {device}
            graph = session.finish(list(average.state_dict().values()))
        graph.verify()
        graph.save(str(tmp_path / "loop.sg"))
        assert sg.Graph.load(str(tmp_path / "loop.sg")).difference(graph) is None
        assert bytes_of(average.state_dict().values()) == bytes_of(net().state_dict().values())
    replayed = graph.compile(net())  # on the CPU, with the same parameters
    torch.manual_seed(0)
    expected = list(averaged_steps("cpu")[1].state_dict().values())
    torch.manual_seed(0)
    assert all(torch.equal(ours, real) for ours, real in zip(replayed(), expected))


def test_tensors_of_one_storage_stay_so():
    with sg.fake("cuda"):
        base = torch.empty(6, 4, device="cuda")
        odd = torch.empty(7, dtype=torch.uint8, device="cuda")[:4].view(torch.float32)
        views = copy.deepcopy({"rows": base[2:], "columns": base.t(), "odd": odd})
        assert views["rows"].untyped_storage()._cdata == views["columns"].untyped_storage()._cdata
        assert views["rows"].untyped_storage()._cdata != base.untyped_storage()._cdata
        assert (views["rows"].storage_offset(), views["columns"].stride()) == (8, (1, 4))
        assert views["odd"].device.type == "cuda" and views["odd"].untyped_storage().nbytes() == 7
        counts = nn.BatchNorm1d(3).cuda().num_batches_tracked
        assert sg.known_contents(copy.deepcopy(counts)).item() == 0
