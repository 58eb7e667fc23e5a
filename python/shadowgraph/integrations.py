"""Callbacks for trainers: the peak that was predicted beside the one that is measured, in the trainer's own logs.

    with sg.Capture("cuda", host_reads=["finite", {"bool": False}]) as session:
        trainer_of(max_steps=2).train()                     # on fakes, in seconds and without a GPU
        graph = session.finish()
    trainer = trainer_of(max_steps=1000)
    trainer.add_callback(sg.integrations.trainer_callback(sg.profile(graph)))
    trainer.train()                                         # its logs say predicted_peak_bytes, measured_peak_bytes

Measured is what torch.cuda's allocator had allocated at most in the first steps. Without CUDA it is what the CPU's
allocator was asked for, as torch.profiler tells it; that slows those steps. Inside a mode nothing is measured.
"""

import torch

from . import _shadowgraph as _C

__all__ = ["lightning_callback", "trainer_callback"]


class Peak:
    """The peak of a training's first steps."""

    def __init__(self, predicted, steps):
        if steps < 1:
            raise _C.Error(f"steps={steps!r}: the peak of at least 1 step is measured")
        self._predicted, self._steps, self._done = predicted, steps, 0
        self._profiler = None
        self._base = 0
        self._measured = None

    def figures(self):
        """By name, for logs; what is not known is absent."""
        found = {}
        if self._predicted is not None:
            on_gpu = torch.cuda.is_available() and not isinstance(self._predicted, int)
            found["predicted_peak_bytes"] = _of_report(self._predicted, on_gpu)
        if self._measured is not None:
            found["measured_peak_bytes"] = self._measured
        return found

    def begin(self, module):
        """Before the first step; the module is where it trains."""
        if _C.is_active():
            return
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
            return
        held = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes()
                for t in (*module.parameters(), *module.buffers())}  # fmt: skip
        self._base = sum(held.values())
        self._profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True)
        self._profiler.__enter__()

    def step_ended(self):
        self._done += 1
        if self._done == self._steps:
            self.end()

    def end(self):
        """After the last step that counts, or a training with fewer."""
        if _C.is_active() or self._measured is not None:
            return
        if torch.cuda.is_available():
            self._measured = torch.cuda.max_memory_allocated()
        elif self._profiler is not None:
            profiler, self._profiler = self._profiler, None
            profiler.__exit__(None, None, None)
            self._measured = self._base + most_alive(profiler)


def most_alive(profiler):
    """Most bytes that the CPU's allocator was asked for at once, beyond what there was before the profiler."""
    events = (event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]")
    live = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        live += event.nbytes()
        most = max(most, live)
    return most


def _of_report(predicted, on_gpu):
    if isinstance(predicted, int):
        return predicted
    figures = predicted.dict()
    # The allocator's figure is the one that torch.cuda measures.
    return figures["device_memory"]["allocated_peak_bytes"] if on_gpu else figures["peak_with_scratch"]["bytes"]


def trainer_callback(predicted=None, *, steps=2):
    """A callback of transformers' Trainer, and so of TRL's: its logs have both peaks.

    predicted: a Report, or bytes; None predicts nothing.
    steps: of so many first steps the peak is measured; the second has the optimizer's state.
    """
    from transformers import TrainerCallback

    peak = Peak(predicted, steps)

    class PeakCallback(TrainerCallback):
        def on_train_begin(self, args, state, control, model=None, **kwargs):
            peak.begin(model)

        def on_step_end(self, args, state, control, **kwargs):
            peak.step_ended()

        def on_train_end(self, args, state, control, **kwargs):
            peak.end()

        def on_log(self, args, state, control, logs=None, **kwargs):
            logs.update(peak.figures())
            state.log_history[-1].update(peak.figures())

    return PeakCallback()


def lightning_callback(predicted=None, *, steps=2):
    """The same for Lightning, whose module logs both peaks after each batch once they are known."""
    from lightning.pytorch import Callback

    peak = Peak(predicted, steps)

    class PeakCallback(Callback):
        def on_train_start(self, trainer, pl_module):
            peak.begin(pl_module)

        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            if trainer.global_step > peak._done:
                peak.step_ended()
            if not _C.is_active():
                pl_module.log_dict({name: float(value) for name, value in peak.figures().items()})

        def on_train_end(self, trainer, pl_module):
            peak.end()

    return PeakCallback()
