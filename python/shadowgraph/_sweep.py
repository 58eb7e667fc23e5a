"""Costs as a function of sizes: tables over batch sizes, and symbolic graphs."""

import contextlib
import html
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch

from . import _capture
from . import _shadowgraph as _C
from ._shadowgraph import Graph, SymbolicGraph

# Batch sizes to capture for a fit, as in the command line tool: small, because ranges start small, but not 1, which is
# special. The second set is for programs that change between the sizes of the first.
_SAMPLES = ((2, 3, 5, 7), (16, 17, 19, 23))
# {kind of memory, as in the command line tool: field of SizeCost}
_BY = {"live": "peak_bytes", "reserved": "reserved_bytes", "device": "footprint_bytes"}


class SizeCost(NamedTuple):
    """Costs of one batch size. Bytes count whole storages on the device; a multiply-accumulate is 2 FLOPs.

    captured: True for a capture at this batch size, False for an evaluation of the fitted polynomials.
    reserved_bytes: peak bytes reserved by PyTorch's caching allocator; None on the CPU.
    footprint_bytes: reserved bytes plus the CUDA context and NCCL buffers, as in nvidia-smi; None on the CPU.
    """

    batch: int
    peak_bytes: int
    saved_bytes: int
    flops: int
    captured: bool
    reserved_bytes: int | None = None
    footprint_bytes: int | None = None

    def bytes(self, by: str = "live") -> int:
        """Returns the bytes for `by`: "live", "reserved" or "device", as in `SizeSweep.largest`."""
        if by not in _BY:
            raise _C.Error(f"by={by!r}: expected one of {', '.join(_BY)}")
        count: int | None = getattr(self, _BY[by])
        if count is None:
            raise _C.Error(f"by={by!r} requires device='cuda', because the CPU has no caching allocator; use by='live'")
        return count


class SizeSweep:
    """Costs of a model over batch sizes. Prints as a table, renders in notebooks, and iterates over its rows.

    rows: a SizeCost per batch size.
    symbolic: the SymbolicGraph used to evaluate batch sizes, or None.
    why_captured: the reason why batch sizes were captured one by one instead, or None.
    """

    def __init__(self, rows: list[SizeCost], symbolic: SymbolicGraph | None, why_captured: str | None):
        self.rows, self.symbolic, self.why_captured = rows, symbolic, why_captured

    def __iter__(self) -> Iterator[SizeCost]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def largest(self, memory: int | str, by: str = "live") -> SizeCost | None:
        """Returns the row of the largest batch size that fits in memory, or None.

        memory: bytes, a size such as "24GiB", or the name of a device.
        by: kind of memory: "live" (tensors), "reserved" (by the caching allocator) or "device" (reserved plus the
            CUDA context).

        Rows hold the bytes of a device with unlimited memory. `profile(device_memory=...)` also says whether a larger
        batch fits because the allocator releases cached blocks in time.
        """
        if isinstance(memory, str):
            memory = _C.memory_limit(memory)[0]
        fitting = [row for row in self.rows if row.bytes(by) <= memory]
        return max(fitting, key=lambda row: row.batch, default=None)

    def dict(self) -> list[dict[str, int | bool | None]]:
        """Returns the rows as dicts, as accepted by pandas.DataFrame."""
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
        return f"<shadowgraph.SizeSweep of {len(self.rows)} batches>"

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"


def sweep(model: Any, inputs: Callable[[int], Any], batches: Iterable[int], *, loss: Any = None, optimizer: Any = None,
          device: str | torch.device = "cuda", dtype: torch.dtype | None = None, mode: str | None = None,
          steady_state: bool = False, options: Mapping[str, Any] | None = None, allocator: str = "",
          progress: bool | None = None, **training: Any) -> SizeSweep:  # fmt: skip
    """Computes peak, reserved and saved bytes and FLOPs of a model over batch sizes, from only a few captures.

        table = sg.sweep(Net, lambda batch: f"f32[{batch},3,224,224]", batches=range(8, 257, 8), loss=torch.mean)
        print(table, table.largest(24 << 30))

    model, loss, optimizer, device, dtype, mode, options: as for `profile`.
    steady_state, training: as for `capture_training_step`.
    inputs: a function from a batch size to the inputs of `profile`.
    batches: positive integers. More than five are evaluated by a `fit` of a few captures, which is validated by a
        capture at the largest. Batch sizes outside the fit, or all if the program differs, are captured.
    allocator: settings of the caching allocator, in the format of PYTORCH_ALLOC_CONF.
    progress: show a progress bar if tqdm is installed. Defaults to True on a terminal.

    Raises Error for invalid arguments, and the errors of the program.
    """
    wanted = _batches(batches)
    if not callable(inputs):
        raise _C.Error("inputs= must be a function of the batch size, such as lambda batch: f'i64[{batch},512]'")
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
            rows.append(SizeCost(batch, costs["peak_bytes"], costs["saved_bytes"], costs["flops"], captured,
                                 costs.get("reserved_bytes"), costs.get("footprint_bytes")))  # fmt: skip
    return SizeSweep(rows, symbolic, why)


def fit(model: Any, inputs: Callable[..., Any], sizes: Iterable[Mapping[str, int]], *, loss: Any = None,
        optimizer: Any = None, device: str | torch.device = "cuda", dtype: torch.dtype | None = None,
        mode: str | None = None, steady_state: bool = False, options: Mapping[str, Any] | None = None,
        allocator: str = "", progress: bool | None = None, **training: Any) -> SymbolicGraph:  # fmt: skip
    """Fits one symbolic graph to captures at several sizes, with all differing numbers as polynomials of the sizes.

        sizes = [dict(batch=b, seq=s) for b in (2, 3, 5) for s in (64, 128, 192)]
        symbolic = sg.fit(make, lambda batch, seq: {"input_ids": f"i64[{batch},{seq}]"}, sizes)
        symbolic.cost({"batch": 64, "seq": 1024}); symbolic.instantiate({"batch": 64, "seq": 1024}); symbolic.flops

    inputs: a function of the sizes, by name, that returns the inputs of `profile`.
    sizes: the sizes to capture at. Requires at least three values of each varying size, and at least two captures more
        than sizes. Sizes must not be 0 or 1.
    Other arguments are those of `sweep`.

    Raises UnsupportedError with the node or number that differs if the captures are not the same program.
    """
    how = dict(loss=loss, optimizer=optimizer, device=device, dtype=dtype, mode=mode, steady_state=steady_state,
               options=options, **training)  # fmt: skip
    points = list(sizes)
    for point in points:
        if not isinstance(point, Mapping):
            raise _C.Error(f"sizes= contains {point!r}; expected a dict of sizes by name, such as {{'batch': 2}}")
    captures = []
    with _Progress(progress) as bar:
        for point in bar.over(points):
            try:
                given = inspect.signature(inputs).bind(**point)
            except TypeError as error:
                message = f"inputs= must be a function that accepts the keywords {', '.join(point)}: {error}"
                raise _C.Error(message) from None
            captures.append((dict(point), _capture.of_model(model, inputs(*given.args, **given.kwargs), **how)[0]))
    return SymbolicGraph(captures, _capture.canonical(device), allocator)


def _batches(batches):
    wanted = list(batches)
    if not wanted:
        raise _C.Error("batches= is empty; pass at least one batch size")
    for batch in wanted:
        if isinstance(batch, bool) or not isinstance(batch, int) or batch < 1:
            raise _C.Error(f"batches= contains {batch!r}; expected positive ints")
    return wanted


def _fitted(captured_at, largest, device, allocator, bar):
    """Returns (symbolic graph or None, largest batch size it is valid for, reason for captures or None)."""
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
                return symbolic, trusted, f"the program at batch {largest} differs from that at {trusted}: {difference}"
            trusted = largest
        return symbolic, trusted, None
    return None, 0, why


class _Progress:
    """A tqdm progress bar, if enabled and installed."""

    def __init__(self, wanted):
        self._bar = None
        if wanted is not False:
            with contextlib.suppress(ImportError):
                import tqdm  # type: ignore[import-untyped]

                self._bar = tqdm.tqdm(total=0, disable=None if wanted is None else False, desc="captures and rows")

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        if self._bar is not None:
            self._bar.close()

    def over(self, items):
        if self._bar is not None:
            self._bar.total += len(items)
        for item in items:
            yield item
            if self._bar is not None:
                self._bar.update()
