"""The number of simulated devices, and that every way to put a tensor on a missing device is refused."""

import pytest
import torch

import shadowgraph as sg


class OnDevice(torch.nn.Module):
    def __init__(self, device):
        super().__init__()
        self.device = device

    def forward(self, x):
        return x + torch.ones(2, device=self.device)


def ways_to(device):
    """Calls that would create a tensor or generator on the device, or make it current, inside a mode."""
    x = torch.ones(2, 2)
    return {
        "a factory": lambda: torch.empty(2, device=device),
        "torch.tensor": lambda: torch.tensor([1, 2], device=device),
        "torch.as_tensor": lambda: torch.as_tensor([1.0], device=device),
        "a random factory": lambda: torch.randperm(3, device=device),
        "ones_like": lambda: torch.ones_like(x, device=device),
        "new_zeros": lambda: x.new_zeros(3, device=device),
        "new_tensor": lambda: x.new_tensor([1.0], device=device),
        "to": lambda: x.to(device),
        "cuda": lambda: x.cuda(torch.device(device).index or 0),
        "a module": lambda: torch.nn.Linear(2, 2, device=device),
        "a module's to": lambda: torch.nn.Linear(2, 2).to(device),
        "a default device": lambda: under(device, lambda: torch.empty(2)),
        "a generator": lambda: torch.Generator(device=device),
        "set_device": lambda: torch.cuda.set_device(device),
        "device": lambda: under(torch.cuda.device(device), lambda: None),
        "a stream": lambda: torch.cuda.Stream(device),
        "get_device_name": lambda: torch.cuda.get_device_name(device),
        "get_device_capability": lambda: torch.cuda.get_device_capability(device),
    }


def under(device, program):
    with torch.device(device) if isinstance(device, str) else device:
        return program()


def refused(ways):
    def is_refused(way):
        try:
            way()
        except sg.Error:
            return True
        return False

    return [name for name, way in ways.items() if not is_refused(way)]


def test_a_device_beyond_the_machines_is_refused():
    real = torch.ones(2)
    with sg.fake() as mode:
        assert refused(ways_to("cuda:99")) == []
        assert refused({"from_real": lambda: mode.from_real(real, "cuda:99")}) == []
        with pytest.raises(sg.Error, match="invalid device ordinal, the simulated machine has 8"):
            torch.empty(2, device="cuda:8")
        assert torch.empty(2, device="cuda:7").device.index == 7
        # device_count() is one, because trainers use every device that they see.
        assert torch.cuda.current_device() == 0 and torch.cuda.device_count() == 1
    with pytest.raises(sg.Error), sg.fake("cuda:8"):
        pass
    with pytest.raises(sg.Error, match="0 to 127"), sg.fake(device_count=128):
        pass
    with sg.fake("cuda:99", device_count=100):
        assert torch.empty(2, device="cuda:99").device.index == 99 and torch.cuda.device_count() == 100


def test_a_machine_without_devices_refuses_cuda():
    with sg.fake(device_count=0):
        assert refused(ways_to("cuda")) == []
        assert refused(ways_to("cuda:0")) == []
        with pytest.raises(sg.Error, match="has no accelerators"):
            torch.ones(3, device="cuda")
        with pytest.raises(sg.Error):
            torch.cuda.current_device()
        assert torch.cuda.device_count() == 0 and not torch.cuda.is_initialized()
        assert not torch.cuda.is_available() and not torch.cuda.is_bf16_supported()
        torch.manual_seed(3)
        layer = torch.nn.Linear(2, 2)
        layer(torch.ones(3, 2)).sum().backward()
        assert sg.is_fake(layer.weight.grad) and layer.weight.grad.device.type == "cpu"
        with sg.fake():
            assert torch.ones(2, device="cuda").is_cuda
    with pytest.raises(sg.Error), sg.fake("cuda", device_count=0):
        pass


def test_captures_and_descriptions_have_a_machine():
    with pytest.raises(sg.Error):
        sg.deferred_init(torch.nn.Linear, 2, 2, device="cuda:99")
    with pytest.raises(sg.Error), sg.DeferredInit(device_count=0):
        torch.nn.Linear(2, 2, device="cuda")
    with sg.DeferredInit(device_count=100):
        assert torch.nn.Linear(2, 2, device="cuda:99").weight.device.index == 99
    with pytest.raises(sg.Error):
        sg.capture(OnDevice("cuda:99"), "f32[2]", device="cuda")
    with pytest.raises(sg.Error):
        sg.capture(OnDevice("cuda:0"), "f32[2]", device="cuda:8")
    with pytest.raises(sg.Error):
        sg.capture(OnDevice("cuda"), "f32[2]", options={"device_count": 0})
    with pytest.raises(sg.Error), sg.fake(device_count=0), sg.Capture():
        torch.ones(2, device="cuda")


def test_a_graph_may_name_any_device():
    graph = sg.capture(OnDevice("cuda:99"), "f32[2]", device="cuda:99", options={"device_count": 100})
    assert "cuda:99" in graph.text()
    again = graph.propagate("f32[2]")
    assert again.outputs[0].device == torch.device("cuda:99")
