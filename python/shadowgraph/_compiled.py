"""Runs torch.compile'd programs eagerly inside fake modes, since Dynamo would trace with its own fake tensors."""

import functools
import sys

import torch

_stance = None  # the active set_stance context, while a mode is active and Dynamo is loaded


def run_eagerly():
    """Forces eager execution while a mode is active. If Dynamo is not loaded yet, torch.compile calls this again."""
    global _stance
    if _stance is None and "torch._dynamo" in sys.modules:
        _stance = torch.compiler.set_stance("force_eager")


def run_compiled():
    """Restores the previous compiler stance."""
    global _stance
    if _stance is not None:
        stance, _stance = _stance, None
        stance.__exit__(None, None, None)


def watch(is_active):
    """Patches torch.compile so that functions compiled while is_active() run eagerly until no mode is active."""
    original = torch.compile

    @functools.wraps(original)
    def compile(*args, **kwargs):
        compiled = original(*args, **kwargs)
        if is_active():
            run_eagerly()
        return compiled

    torch.compile = compile


def is_compiled(model):
    """Returns True if any submodule is compiled."""
    return isinstance(model, torch.nn.Module) and any(
        module._compiled_call_impl is not None or hasattr(module, "_orig_mod") for module in model.modules()
    )
