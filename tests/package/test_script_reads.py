"""TorchScript programs that read, print or save fake tensors: an error or a description, never a crash."""

import os

import pytest
import torch

import shadowgraph as sg


def printing(x):
    print("x is", x, 3)
    return x + 1


def text(x):
    return x + len(str(x))


def listing(x):
    values: list[float] = x.view(-1).tolist()
    return x + values[0]


def saving(x):
    torch.save(x, "saved.pt")
    return x


def saving_in_a_list(x):
    torch.save([x], "saved.pt")
    return x


class Program(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = torch.jit.script(function)

    def forward(self, x):
        return self.function(x)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    yield
    assert not os.path.exists("saved.pt")


@pytest.mark.parametrize("function, what", [(listing, "tolist"), (saving, "save"), (saving_in_a_list, "save")])
def test_refused(function, what):
    for _ in range(2):
        with pytest.raises(sg.Error, match=what) as raised:
            sg.capture(torch.jit.script(Program(function)), "f32[2,3]")
        assert "Caffe2" not in str(raised.value)
    with sg.fake(), pytest.raises(RuntimeError, match=what):
        torch.jit.script(function)(torch.empty(2, 3))
    assert not sg.is_fake(torch.ones(2))


def test_prints_describe(capfd):
    sg.capture(torch.jit.script(Program(printing)), "f32[2,3]")
    assert "x is <fake Float[2, 3] on cpu> 3" in capfd.readouterr().out
    assert "add.Scalar" in str(sg.capture(torch.jit.script(Program(text)), "f32[2,3]"))


def test_real_tensors_behave_as_before(capfd):
    sg.capture(torch.nn.Linear(3, 3), "f32[2,3]")
    x = torch.arange(6.0).view(2, 3)
    assert torch.equal(torch.jit.script(listing)(x), x)
    torch.jit.script(printing)(x)
    assert "0  1  2" in capfd.readouterr().out
    torch.jit.script(saving)(x)
    assert torch.equal(torch.load("saved.pt"), x)
    os.remove("saved.pt")


def saved(x):
    torch.save(x, "saved.pt")


def saved_in_a_dict(x):
    torch.save({"x": [x]}, "saved.pt")


def saved_in_the_old_format(x):
    torch.save(x, "saved.pt", _use_new_zipfile_serialization=False)


@pytest.mark.parametrize("save", [saved, saved_in_a_dict, saved_in_the_old_format])
def test_python_saves(save):
    with sg.fake(), pytest.raises(sg.Error, match="save"):
        save(torch.empty(2, 3))
    if os.path.exists("saved.pt"):
        os.remove("saved.pt")  # torch.save creates the file first


def test_python_prints(capsys):
    with sg.fake():
        x = torch.empty(2, 3)
        print(x, [x], f"{x}")
    assert capsys.readouterr().out.count("<fake Float[2, 3] on cpu>") == 3
