"""Costs over sizes: a table of batches, and one graph for all of them."""

import html
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch

from . import _capture
from . import _shadowgraph as _C
from ._shadowgraph import Graph, SymbolicGraph

__all__ = ["Sweep", "SweepRow", "fit", "sweep"]

# Where captures are made to learn from, as the tool does: small, since ranges begin small; without 1, which is not like
# others. The second try is for programs that change between those.
_SAMPLES = ((2, 3, 5, 7), (16, 17, 19, 23))
# What bytes are compared with a memory, by the tool's names.
_BY = {"live": "peak_bytes", "reserved": "reserved_bytes", "device": "footprint_bytes"}


class SweepRow(NamedTuple):
    """What one batch costs. Bytes are of whole storages on the device; FLOPs are 2 a multiply-accumulate.

    reserved_bytes: most bytes in the segments of PyTorch's caching allocator in a run; footprint_bytes: these, the
    assumed context and NCCL's buffers, about what nvidia-smi says. Both None on a CPU.
    """

    batch: int
    peak_bytes: int
    saved_bytes: int
    flops: int
    captured: bool  # False: answered by the polynomials
    reserved_bytes: int | None = None
    footprint_bytes: int | None = None

    def bytes(self, by: str = "live") -> int:
        """The bytes that "live", "reserved" or "device" stands for, as of `Sweep.largest`."""
        if by not in _BY:
            raise _C.Error(f"by={by!r}: one of {', '.join(_BY)}")
        figure: int | None = getattr(self, _BY[by])
        if figure is None:
            raise _C.Error(f"by={by!r}: a CPU has no caching allocator; by='live', or device='cuda'")
        return figure


class Sweep:
    """A table of what a model costs over batches: prints as one, shows itself in a notebook, iterates over its rows.

    rows: a SweepRow for each batch. symbolic: the SymbolicGraph that answered, if there is one.
    why_captured: why batches were captured one by one instead, or None.
    """

    def __init__(self, rows: list[SweepRow], symbolic: SymbolicGraph | None, why_captured: str | None):
        self.rows, self.symbolic, self.why_captured = rows, symbolic, why_captured

    def __iter__(self) -> Iterator[SweepRow]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def largest(self, memory: int | str, by: str = "live") -> SweepRow | None:
        """The row of the largest batch whose peak is at most so many bytes; None if there is none.

        memory: bytes, a size such as "24GiB", or a device's name.
        by: which bytes: "live", of tensors; "reserved", of the caching allocator; "device", these with the context.
        """
        if isinstance(memory, str):
            memory = _C.memory_limit(memory)[0]
        fitting = [row for row in self.rows if row.bytes(by) <= memory]
        return max(fitting, key=lambda row: row.batch, default=None)

    def dict(self) -> list[dict[str, int | bool | None]]:
        """The rows as dicts, as pandas.DataFrame takes them."""
        return [row._asdict() for row in self.rows]

    def __str__(self) -> str:
        lines = [f"{'BATCH':>8} {'PEAK':>14} {'RESERVED':>14} {'SAVED':>14} {'FLOPS':>14}"]
        for row in self.rows:
            reserved = "-" if row.reserved_bytes is None else _C.human_bytes(row.reserved_bytes)
            lines.append(f"{row.batch:>8} {_C.human_bytes(row.peak_bytes):>14} {reserved:>14} "
                         f"{_C.human_bytes(row.saved_bytes):>14} "
                         f"{_C.human_count(row.flops):>14}" + ("  captured" if row.captured else ""))  # fmt: skip
        if self.symbolic is not None:
            lines.append("FLOPs: " + "; ".join(f"{phase} {text}" for phase, text in self.symbolic.flops.items()))
        if self.why_captured:
            lines.append(f"Captured one by one: {self.why_captured}")
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"<shadowgraph.Sweep of {len(self.rows)} batches>"

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"


def sweep(model: Any, inputs: Callable[[int], Any], batches: Iterable[int], *, loss: Any = None, optimizer: Any = None,
          device: str | torch.device = "cuda", dtype: torch.dtype | None = None, mode: str | None = None,
          steady_state: bool = False, options: Mapping[str, Any] | None = None, allocator: str = "",
          progress: bool | None = None, **training: Any) -> Sweep:  # fmt: skip
    """What a model costs over batch sizes: peak, reserved and saved bytes and FLOPs, mostly without running it there.

        table = sg.sweep(Net, lambda batch: f"f32[{batch},3,224,224]", batches=range(8, 257, 8), loss=torch.mean)
        print(table, table.largest(24 << 30))

    model, loss, optimizer, device, dtype, mode, options: as for `profile`.
    steady_state, training: as for `capture_training_step`.
    inputs: a function from a batch size to what `profile` takes as inputs.
    batches: positive ints. More than five are answered from a few captures (`fit`), compared with a capture at the
        largest; batches that the fit does not answer, or all if the program is another one there, are captured.
    allocator: settings of the caching allocator, as PYTORCH_ALLOC_CONF takes them.
    progress: a bar, if tqdm is installed; None: on a terminal.

    Raises Error for arguments that are none, and what the program raises.
    """
    wanted = _batches(batches)
    if not callable(inputs):
        raise _C.Error("inputs is no function: give one from a batch size to inputs, lambda batch: f'i64[{batch},512]'")
    bar = _Progress(progress)
    how = dict(loss=loss, optimizer=optimizer, device=device, dtype=dtype, mode=mode, steady_state=steady_state,
               options=options, **training)  # fmt: skip

    def captured_at(batch: int) -> Graph:
        return _capture.of_model(model, inputs(batch), **how)[0]

    with bar:
        symbolic, trusted, why = None, 0, None
        if len(wanted) > 5:
            symbolic, trusted, why = _fitted(captured_at, max(wanted), str(device), allocator, bar)
        rows = []
        for batch in bar.over(wanted):
            captured = symbolic is None or batch > trusted or symbolic.refusal({"batch": batch}) is not None
            if captured or symbolic is None:
                costs = _C.size_cost(captured_at(batch), str(device), allocator)
            else:
                costs = symbolic.cost({"batch": batch})
            rows.append(SweepRow(batch, costs["peak_bytes"], costs["saved_bytes"], costs["flops"], captured,
                                 costs.get("reserved_bytes"), costs.get("footprint_bytes")))  # fmt: skip
    return Sweep(rows, symbolic, why)


def fit(model: Any, inputs: Callable[..., Any], sizes: Iterable[Mapping[str, int]], *, loss: Any = None,
        optimizer: Any = None, device: str | torch.device = "cuda", dtype: torch.dtype | None = None,
        mode: str | None = None, steady_state: bool = False, options: Mapping[str, Any] | None = None,
        allocator: str = "", progress: bool | None = None, **training: Any) -> SymbolicGraph:  # fmt: skip
    """One graph for all sizes: captures at a few, with every number that differs as a polynomial in them.

        sizes = [dict(batch=b, seq=s) for b in (2, 3, 5) for s in (64, 128, 192)]
        symbolic = sg.fit(make, lambda batch, seq: {"input_ids": f"i64[{batch},{seq}]"}, sizes)
        symbolic.cost({"batch": 64, "seq": 1024}); symbolic.instantiate({"batch": 64, "seq": 1024}); symbolic.flops

    inputs: a function of the sizes, by name. sizes: where to capture. There must be at least three values of each size
    that varies, and two captures more than there are sizes. None of them may be 0 or 1. The rest is as for `sweep`.

    Raises UnsupportedError, which names the node or number, if the captures are not one program.
    """
    how = dict(loss=loss, optimizer=optimizer, device=device, dtype=dtype, mode=mode, steady_state=steady_state,
               options=options, **training)  # fmt: skip
    points = [dict(point) for point in sizes]
    captures = []
    with _Progress(progress) as bar:
        for point in bar.over(points):
            try:
                given = inspect.signature(inputs).bind(**point)
            except TypeError as error:
                raise _C.Error(f"inputs does not take the sizes {', '.join(point)} by name: {error}") from None
            captures.append((point, _capture.of_model(model, inputs(*given.args, **given.kwargs), **how)[0]))
    return SymbolicGraph(captures, _capture.canonical(device), allocator)


def _batches(batches):
    wanted = list(batches)
    if not wanted:
        raise _C.Error("batches is empty")
    for batch in wanted:
        if isinstance(batch, bool) or not isinstance(batch, int) or batch < 1:
            raise _C.Error(f"batches has {batch!r}; it takes positive ints")
    return wanted


def _fitted(captured_at, largest, device, allocator, bar):
    """(symbolic or None, up to which batch it is trusted, why batches are captured instead or None)."""
    why = None
    for samples in _SAMPLES:
        captures = [({"batch": batch}, captured_at(batch)) for batch in bar.over(samples)]
        try:
            symbolic = SymbolicGraph(captures, _capture.canonical(device), allocator)
        except _C.UnsupportedError as error:
            why = why or str(error)
            continue
        trusted = symbolic.dimensions["batch"][2]
        if largest > trusted:
            difference = symbolic.difference_from({"batch": largest}, captured_at(largest))
            if difference is not None:
                return symbolic, trusted, f"at batch {largest} the program is another than at {trusted}: {difference}"
            trusted = largest
        return symbolic, trusted, None
    return None, 0, why


class _Progress:
    """A tqdm bar, or nothing."""

    def __init__(self, wanted):
        self._bar = None
        if wanted is not False:
            try:
                import tqdm  # type: ignore[import-untyped]

                self._bar = tqdm.tqdm(total=0, disable=None if wanted is None else False, desc="captures and rows")
            except ImportError:
                pass

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        if self._bar is not None:
            self._bar.close()

    def over(self, items):
        if self._bar is None:
            return items
        return self._counted(items, self._bar)

    @staticmethod
    def _counted(items, bar):
        bar.total += len(items)
        for item in items:
            yield item
            bar.update()
