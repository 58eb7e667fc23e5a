"""`shadowgraph fit` of models in Python: the largest batch or sequence, or a table of either or of both."""

import argparse
import json
import re

_MOST = 1 << 24  # sizes beyond are not looked for
_SAID = {"device": "on the device", "reserved": "reserved", "live": "live"}


def add_options(command):
    """Those of the tool that other verbs do not have, and sizes, which may be ranges."""
    command.add_argument("--batch", type=_batches, help="a batch; or a range, 1..512 or 8..512:8: a row for each")
    command.add_argument("--seq", type=_sequences, default=512,
                         help="sequence length, 512; 1k.. for the longest from there on; 512..8k: a table, with "
                         "--batch A..B")  # fmt: skip
    command.add_argument("--by", choices=["live", "reserved", "device"], help="which bytes --memory is of: of tensors, "
                         "of the caching allocator, or these with the context (default; on a CPU: live)")
    command.add_argument("--spec", default="", metavar="DEVICE|FILE", help="device whose memory is asked for, if "
                         "--memory names none")  # fmt: skip


class Longest(int):
    """The sequence length to begin at in looking for the longest."""


def _length(text):
    found = re.fullmatch(r"(\d{1,9})([kK]?)", text)
    return int(found[1]) * (1024 if found[2] else 1) if found else 0


def _batches(text):
    found = re.fullmatch(r"(\d+)(?:\.\.(\d+)(?::(\d+))?)?", text)
    first, last, step = (int(found[1]), int(found[2] or found[1]), int(found[3] or 1)) if found else (0, 0, 0)
    if not found or not 1 <= first <= last or step < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is neither a batch nor a range such as 1..512 or 8..512:8")
    return range(first, last + 1, step) if found[2] else first


def _sequences(text):
    first, dots, last = text.partition("..")
    if not _length(first) or (last and _length(last) < _length(first)) or (not dots and last):
        raise argparse.ArgumentTypeError(f"'{text}' is neither a length such as 512 or 1k nor a range such as 1k.. or "
                                         "512..8k")  # fmt: skip
    if not dots:
        return _length(first)
    return range(_length(first), _length(last) + 1) if last else Longest(_length(first))


def check_inputs(sg, given, specs):
    """Whether the inputs say where the sizes are that are looked for."""

    def named(size):
        return any(re.search(rf"\b{size}\b", spec) for spec in specs)

    looks_for_batch = not isinstance(given.seq, Longest) or isinstance(given.batch, range)
    if looks_for_batch and not named("batch"):
        raise sg.Error("the inputs must say where the batch is: --input 'f32[batch,3,224,224]'")
    if isinstance(given.seq, range | Longest) and not named("seq"):
        raise sg.Error("the inputs must say where the sequence is: --input 'i64[batch,seq]'")


def run(sg, given, program, inputs, how):
    """The exit code. inputs: of a batch and a sequence length; how: as of a capture."""
    from . import _capture

    memory = given.memory or given.spec or None
    if given.by and not memory:
        raise sg.Error("--by says which bytes --memory is of: give --memory, too")
    fitting = _Fitting(sg, given, memory, lambda batch, seq: _capture.of_model(program, inputs(batch, seq), **how)[0])
    if isinstance(given.batch, range) and isinstance(given.seq, int) and not isinstance(given.seq, Longest):
        if given.checkpoint:
            raise sg.Error("--checkpoint is of one graph; leave it out with a range of batches")
        return _rows(sg, given, memory, sg.sweep(program, lambda batch: inputs(batch, given.seq), given.batch,
                                                 allocator=given.allocator, **how), fitting.by)  # fmt: skip
    if memory is None:
        raise sg.Error("what must it fit into? Give --memory: l4, 24GiB; or --spec")
    if isinstance(given.seq, range) or isinstance(given.batch, range):
        return fitting.table()
    return fitting.search()


def _rows(sg, given, memory, table, by):
    bytes_of_memory = sg._shadowgraph.memory_limit(memory)[0] if memory else None
    largest = table.largest(bytes_of_memory, by) if memory else None
    if given.json:
        figures = {"batches": table.dict()}
        if table.symbolic is not None:
            figures["flops_polynomials"] = dict(table.symbolic.flops)
        if memory:
            figures |= {"memory_limit": bytes_of_memory, "by": by, "largest_batch": largest and largest.batch}
        print(json.dumps(figures, indent=2))
        return 0
    print(table)
    if memory:
        human = sg._shadowgraph.human_bytes
        limit, said = human(bytes_of_memory), _SAID[by]
        if largest is None:
            print(f"no batch of the range fits into {limit} (bytes {said})")
        else:
            print(f"largest batch within {limit}: {largest.batch}, with {human(largest.bytes(by))} {said} at the peak")
    return 0


class _Fitting:
    """Sizes of one program, captured where they are asked for."""

    def __init__(self, sg, given, memory, captured):
        self._sg, self._given, self._memory = sg, given, memory
        self._captured = captured
        self._figures = {}  # by batch and sequence
        self._limit = ""  # why larger ones were not tried, if it was not memory
        self.by = given.by or ("live" if given.device == "cpu" else "device")

    def _graph(self, batch, seq):
        graph = self._captured(batch, seq)
        if self._given.checkpoint:
            graph.run_passes(f"checkpoint{{modules={self._given.checkpoint}}}")
        return graph

    def _device(self):
        return "cuda:0" if self._given.device == "cuda" else self._given.device

    def table(self):
        given, C = self._given, self._sg._shadowgraph
        batches = given.batch if isinstance(given.batch, range) else range(1, 65)
        seqs = given.seq if isinstance(given.seq, range) else range(given.seq, given.seq * 64 + 1)
        figures, text = C.size_grid(self._graph, _doubling(batches), _doubling(seqs), self._memory, self.by,
                                    self._device(), given.allocator)  # fmt: skip
        limit, device, title, _ = C.memory_limit(self._memory)
        if given.json:
            print(json.dumps({"model": given.source, **figures}, indent=2))
        else:
            print(f"{C.human_bytes(limit)} of memory{f' ({title})' if device else ''}\n{text}", end="")
        return 0

    def search(self):
        given, C = self._given, self._sg._shadowgraph
        longest = isinstance(given.seq, Longest)
        limit, device, title, _ = C.memory_limit(self._memory)
        what, least = ("seq", given.seq) if longest else ("batch", 1)
        size = self._largest(int(least), limit, (lambda size: (given.batch or 1, size)) if longest
                             else lambda size: (size, given.seq))  # fmt: skip
        into = f"{C.human_bytes(limit)}{f' ({title})' if device else ''}"
        if size is None:
            raise self._sg.Error(f"{given.source} does not fit into {into} at {what} {least}")
        figures = self._figures[(given.batch or 1, size) if longest else (size, given.seq)]
        held = self._bytes(figures)
        if given.json:
            answer = {what: size, "bytes": held, "peak_bytes": figures["peak_bytes"], "flops": figures["flops"],
                      "memory_bytes": limit, "by": self.by, "captures": len(self._figures)}  # fmt: skip
            answer |= {"device": device} if device else {}
            print(json.dumps(answer | ({"limit": self._limit} if self._limit else {}), indent=2))
            return 0
        print(f"largest {what} within {into}: {size}, with {C.human_bytes(held)} {_SAID[self.by]}; "
              f"{len(self._figures)} captures")  # fmt: skip
        if self._limit:
            print(f"no larger one: {self._limit}")
        return 0

    def _bytes(self, figures):
        return figures[{"live": "peak_bytes", "reserved": "reserved_bytes", "device": "footprint_bytes"}[self.by]]

    def _fits(self, sizes, limit):
        try:
            graph = self._graph(*sizes)
        except Exception as error:  # the program ends at some size, by whatever it raises
            if not self._figures:
                raise
            self._limit = (str(error).splitlines() or [type(error).__name__])[0]
            return False
        figures = self._figures[sizes] = self._sg._shadowgraph.size_cost(graph, self._device(), self._given.allocator)
        if figures.get("footprint_bytes") is None and self.by != "live":
            raise self._sg.Error(f"--by {self.by}: a CPU has no caching allocator; --by live, or --device cuda")
        fits = self._bytes(figures) <= limit
        if not fits:
            self._limit = ""
        return fits

    def _largest(self, least, limit, sizes):
        """The largest size from `least` on that fits; None if that does not. sizes: (batch, seq) of it."""
        if not self._fits(sizes(least), limit):
            return None
        good, step, bad = least, max(1, least), None
        while bad is None and good < _MOST:
            if self._fits(sizes(good + step), limit):
                good, step = good + step, step * 2
            else:
                bad = good + step
        while bad is not None and bad - good > 1:
            middle = (good + bad) // 2
            good, bad = (middle, bad) if self._fits(sizes(middle), limit) else (good, middle)
        return good


def _doubling(sizes):
    """The first, twice that, and so on, and the last."""
    found, size = [], sizes[0]
    while size < sizes[-1]:
        found.append(size)
        size *= 2
    return [*found, sizes[-1]]
