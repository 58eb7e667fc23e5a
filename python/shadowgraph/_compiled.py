"""Runs torch.compile'd programs eagerly inside fake modes, since Dynamo would trace with its own fake tensors."""

import sys

import torch

from ._shared import replaces


def run_eagerly(context):
    """Forces eager execution until the context ends. If Dynamo is not loaded yet, torch.compile calls this again."""
    if "torch._dynamo" in sys.modules:
        frames = sys.modules["torch._dynamo.eval_frame"]
        context.on_exit(frames._set_stance, frames._stance)
        torch.compiler.set_stance("force_eager")


def watch(flags):
    """Patches torch.compile so that functions compiled while a mode is active run eagerly until none is."""
    original = torch.compile

    @replaces(torch, "compile")
    def compile(*args, **kwargs):
        compiled = original(*args, **kwargs)
        if flags.in_use:
            run_eagerly(flags)
        return compiled


def is_compiled(model):
    """Returns True if any submodule is compiled."""
    return isinstance(model, torch.nn.Module) and any(
        module._compiled_call_impl is not None or hasattr(module, "_orig_mod") for module in model.modules()
    )
