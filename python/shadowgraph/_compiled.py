"""Programs of torch.compile: inside modes they run as they were written, since Dynamo traces on fakes of its own."""

import functools
import sys

import torch

_stance = None  # torch's, while a mode is active and Dynamo is loaded


def run_eagerly():
    """While a mode is active. Dynamo may be loaded later: torch.compile then asks again."""
    global _stance
    if _stance is None and "torch._dynamo" in sys.modules:
        _stance = torch.compiler.set_stance("force_eager")


def run_compiled():
    """As it was before."""
    global _stance
    if _stance is not None:
        stance, _stance = _stance, None
        stance.__exit__(None, None, None)


def watch(is_active):
    """What is compiled while is_active() runs eagerly until no mode is active."""
    original = torch.compile

    @functools.wraps(original)
    def compile(*args, **kwargs):
        made = original(*args, **kwargs)
        if is_active():
            run_eagerly()
        return made

    torch.compile = compile


def is_compiled(model):
    """Whether any module of it was compiled."""
    return isinstance(model, torch.nn.Module) and any(
        module._compiled_call_impl is not None or hasattr(module, "_orig_mod") for module in model.modules()
    )
