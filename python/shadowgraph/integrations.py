"""Trainer callbacks that log the predicted and the measured peak memory.

    with sg.Capture("cuda", host_reads=["finite", {"bool": False}]) as session:
        trainer_of(max_steps=2).train()                     # on fake tensors, without a GPU
        graph = session.finish()
    trainer = trainer_of(max_steps=1000)
    trainer.add_callback(sg.integrations.trainer_callback(sg.profile(graph)))
    trainer.train()                                         # logs predicted_peak_bytes and measured_peak_bytes

The measured peak is torch.cuda.max_memory_allocated() over the first steps. Without CUDA, it is that of CPU allocations
recorded by torch.profiler, which slows these steps. Nothing is measured inside a fake mode.
"""

import torch

from . import _shadowgraph as _C

__all__ = ["lightning_callback", "trainer_callback"]


class Peak:
    """Measures the peak memory of the first training steps."""

    def __init__(self, predicted, steps):
        if steps < 1:
            raise _C.Error(f"steps={steps!r}: expected at least 1")
        self._predicted, self._steps, self._done, self._base = predicted, steps, 0, 0
        self._profiler = self._measured = None

    def metrics(self):
        """Returns the known peaks by name, for logging."""
        found = {}
        if self._predicted is not None:
            on_gpu = torch.cuda.is_available() and not isinstance(self._predicted, int)
            found["predicted_peak_bytes"] = _of_report(self._predicted, on_gpu)
        if self._measured is not None:
            found["measured_peak_bytes"] = self._measured
        return found

    def begin(self, module):
        """Starts measuring. Call before the first step, when the module is on its device."""
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
        """Stops measuring. Called after the last measured step, or at the end of a shorter training."""
        if _C.is_active() or self._measured is not None:
            return
        if torch.cuda.is_available():
            self._measured = torch.cuda.max_memory_allocated()
        elif self._profiler is not None:
            profiler, self._profiler = self._profiler, None
            profiler.__exit__(None, None, None)
            self._measured = self._base + peak_allocated(profiler)


def peak_allocated(profiler):
    """Returns the peak of CPU allocations in bytes, relative to the start of the profiler."""
    events = (event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]")
    live = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    return peak


def _of_report(predicted, on_gpu):
    if isinstance(predicted, int):
        return predicted
    costs = predicted.dict()
    # max_memory_allocated() includes the allocator's rounding.
    return costs["device_memory"]["allocated_peak_bytes"] if on_gpu else costs["peak_with_scratch"]["bytes"]


def trainer_callback(predicted=None, *, steps=2):
    """Returns a callback for the transformers Trainer (and TRL) that logs both peaks.

    predicted: a Profile, or bytes; None logs only the measured peak.
    steps: number of first steps to measure. From the second on, the optimizer state exists.
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
            logs.update(peak.metrics())
            state.log_history[-1].update(peak.metrics())

    return PeakCallback()


def lightning_callback(predicted=None, *, steps=2):
    """Returns a callback for Lightning that logs both peaks after each batch. See `trainer_callback`."""
    from lightning.pytorch import Callback

    peak = Peak(predicted, steps)

    class PeakCallback(Callback):
        def on_train_start(self, trainer, pl_module):
            peak.begin(pl_module)

        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            if trainer.global_step > peak._done:
                peak.step_ended()
            if not _C.is_active():
                pl_module.log_dict({name: float(value) for name, value in peak.metrics().items()})

        def on_train_end(self, trainer, pl_module):
            peak.end()

    return PeakCallback()
