"""One line from a model to what it costs."""

import difflib
import html
import json
import os
import tempfile

from . import _capture, _ranks
from . import _shadowgraph as _C

__all__ = ["Report", "profile"]

EXPORTS = {
    "svg": ("graph.svg", lambda report: report.graph.svg()),
    "dot": ("graph.dot", lambda report: report.graph.dot()),
    "nodes-csv": ("nodes.csv", lambda report: report.nodes_csv()),
    "storages-csv": ("storages.csv", lambda report: report.storages_csv()),
    "trace": ("trace.json", lambda report: report.trace_json()),
    "model-explorer": ("model_explorer.json", lambda report: report.model_explorer_json()),
    "snapshot": ("snapshot.pickle", lambda report: report.memory_snapshot()),  # None if the step does not fit
}


class Report(_C.Profile):
    """What a program costs: prints as the tool prints, shows itself in a notebook, saves what the tool saves.

    graph: the graph that all of it was asked of. It must not change meanwhile.
    """

    @property  # type: ignore[misc]  # Profile's is how many there are
    def nodes(self):
        """The graph's nodes in program order, each with its own figures; what is not known is None.

            sum(node.flops for node in report.nodes if node.phase == "forward" and node.flops is not None)

        flops, elementwise_flops, transcendental; bytes_read, bytes_written; allocated_bytes, saved_bytes,
        scratch_bytes; seconds; wire_bytes, communication_seconds: see `ProfiledNode`.
        """
        return _C.profiled_nodes(self)

    def node(self, node):
        """A node of the graph with its figures. Raises Error for one of another graph."""
        return _C.profiled_node(self, node)

    def what_if(self, *, dtype=None, optimizer="", accumulate=1, checkpoint="", zero=0, ranks=1):
        """What this training step would hold otherwise, without running it again: a dict that prints as sentences.

        dtype: torch.bfloat16 or torch.float16 in place of float32. optimizer: "none", "sgd", "sgd_momentum", "adam",
        "adamw". accumulate: micro-batches a step. checkpoint: modules that backward computes again, "layers.*", "auto".
        zero, ranks: stage 1 to 3 of ZeRO over so many ranks. "ignored" says what the answer leaves out.
        """
        return WhatIfAnswer(*self._what_if(dtype, optimizer, accumulate, checkpoint, zero, ranks))

    def compare_trace(self, path, rows=10):
        """This prediction beside a trace of the real step, operator by operator: a dict that prints as tables.

        path: what `torch.profiler.profile(record_shapes=True)` exported, .json or .json.gz. rows: at most so many of a
        table; 0: all. "most_off" is what differs most, "only_measured" and "only_predicted" what one side alone has.
        """
        return ComparedTrace(*self._compare_trace(os.fspath(path), rows))

    def __str__(self):
        return self.text()

    def __repr__(self):
        return f"<shadowgraph.Report: {len(self.graph)} nodes, peak {self.peak_bytes} bytes>"

    def _repr_html_(self):
        return f"<pre>{html.escape(str(self))}</pre>"

    def html(self, title="", *, compare=None, compare_title="before", color=None):
        """The page that `shadowgraph draw` writes, as text: the graph, the memory, the tables; docs/pictures.md.

        compare: what it was before, a Report; or what a Report said of it: its `dict()`, or the path of a profile.json.
            Without a graph the page compares figures, modules and operators.
        color: values of nodes to colour by, too, e.g. measured times: a dict {"n12": 0.25}, or with a title and a unit
            {"title": ..., "unit": "seconds", "nodes": {...}}; or the path of a file of it (.json, .csv).
        """
        values = json.dumps(color) if isinstance(color, dict) else "" if color is None else os.fspath(color)
        if compare is None or isinstance(compare, Report):
            return self._html(title, compare, compare_title, "", values)
        if isinstance(compare, dict):
            saved = json.dumps(compare)
        else:
            with open(compare, encoding="utf-8") as file:
                saved = file.read()
        return self._html(title, None, compare_title, saved, values)

    def save_html(self, path, title="", *, compare=None, compare_title="before", color=None):
        """Writes that page, whole or not at all: one file that needs no network and no other."""
        _write(os.path.abspath(path), self.html(title, compare=compare, compare_title=compare_title, color=color))

    def page(self, title="", *, height=760, compare=None, compare_title="before", color=None):
        """That page for a notebook's cell, `height` pixels high."""
        return Page(self.html(title, compare=compare, compare_title=compare_title, color=color), height)

    def save(self, folder, export=()):
        """Writes graph.sg, profile.json and report.html into the folder, each whole or not at all, and names them.

        export: what else, by the tool's names (EXPORTS): "svg", "dot", "nodes-csv", "storages-csv"; "trace" for
        ui.perfetto.dev; "model-explorer"; "snapshot" for pytorch.org/memory_viz, which a step has that fits.
        """
        for name in export:
            if name not in EXPORTS:
                near = difflib.get_close_matches(name, EXPORTS, 1)
                hint = f" (did you mean {near[0]}?)" if near else ""
                raise _C.Error(f"there is no export '{name}'{hint}; there are {', '.join(EXPORTS)}")
        os.makedirs(folder, exist_ok=True)
        self.graph.save(os.path.join(folder, "graph.sg"))
        _write(os.path.join(folder, "profile.json"), json.dumps(self.dict(), indent=2) + "\n")
        self.save_html(os.path.join(folder, "report.html"))
        written = ["graph.sg", "profile.json", "report.html"]
        for name, (file, text) in EXPORTS.items():
            content = text(self) if name in export else None
            if content is not None:
                _write(os.path.join(folder, file), content)
                written.append(file)
        return written


class Page:
    """A page in a notebook: a frame of its own, whose styles and scripts touch nothing else."""

    def __init__(self, text, height):
        self.text = text
        self.height = height

    def _repr_html_(self):
        return (
            f'<iframe srcdoc="{html.escape(self.text)}" sandbox="allow-scripts allow-downloads allow-modals" '
            f'style="width: 100%; height: {int(self.height)}px; border: 1px solid #8888"></iframe>'
        )


class _Printed(dict):
    """Figures by name; printed, as the tool prints them."""

    def __init__(self, figures, text):
        super().__init__(figures)
        self._text = text

    def __str__(self):
        return self._text


class WhatIfAnswer(_Printed):
    """The figures of `Report.what_if` by name, docs/memory.md."""


class ComparedTrace(_Printed):
    """The figures of `Report.compare_trace` by name, docs/time.md."""


def calibrate(trace, output=None, *, links=None, spec=""):
    """A device's figures from a trace of it: rates by class, a table of its operators, and tables of its collectives.

    trace: what `torch.profiler.profile(record_shapes=True)` exported, .json or .json.gz. output: file for the device's
    figures, which `spec=` takes then. links: file for those of its links, for `interconnect=`. spec: the device whose
    peaks hold, by name or file; without one, that of the trace if it is known, else what the trace reached. Returns a
    dict: calls, sizes, seconds, collectives, spec, links, left_out.
    """
    return _C.calibrate(os.fspath(trace), "" if output is None else os.fspath(output),
                        "" if links is None else os.fspath(links), spec)  # fmt: skip


def _write(path, text):
    folder, name = os.path.split(path)
    handle, temporary = tempfile.mkstemp(prefix=name, dir=folder)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(text if isinstance(text, bytes) else text.encode())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def profile(model, inputs=None, *, loss=None, optimizer=None, device=None, dtype=None, mode=None, options=None,
            spec="", allocator="", device_memory=None, measure=False, steady_state=False, run=False, interconnect="",
            mesh="", cublas_workspace=None, ranks=None, world=None, roles=None, **training):  # fmt: skip
    """Runs `model` once on fakes, as a training step or for inference, and says what it costs.

    model: a torch.nn.Module (converted without being copied; it stays as it was), a function that makes one, or a
        transformers configuration, or the class of one of its models, with default configuration. Or a function that
        makes a schedule of torch.distributed.pipelining, or a tuple of one and its modules. Or a recorded Graph,
        which nothing runs: it takes device, spec, allocator, device_memory, measure, interconnect, mesh and
        cublas_workspace alone.
    inputs: a tensor, a sequence of arguments, or a dict of keyword arguments; "i64[4,512]" in place of a tensor, or
        nothing but shapes, (8, 3, 224, 224), of float32.
    loss: a function of what forward gives, or ".loss"; without one, its `.loss` or the mean of its first output.
    optimizer: a class or function that takes parameters, or "sgd", "adam", "adamw" with usual settings.
    device: the pretended device, "cuda" (the default), "cuda:1" or "cpu". For a Graph, the device whose memory is asked
        for; without one, that of its capture.
    dtype: of floating-point parameters and inputs, e.g. torch.bfloat16.
    options: those of `Capture`, e.g. {"host_reads": "finite"}; they may also be keywords: host_reads="finite".
    mode: "train" or "infer"; without one, "train" if there is a loss or an optimizer.
    spec: whose time is estimated: a name of `shadowgraph list devices`, or a file; without one, "h100" for CUDA, and
        for the CPU this machine as `shadowgraph calibrate` found it.
    allocator: settings of the caching allocator, as PYTORCH_ALLOC_CONF takes them.
    device_memory: of the device: bytes, a size such as "24GiB", or the device's name, "l4", which is then that of
        `spec`, too. The report begins with whether the program fits, and says where it does not.
    measure: for the CPU: run each distinct call once, for scratch memory inside kernels and seconds.
    steady_state: the second training step, with the optimizer's state there.
    run: also record the first three steps of a training run, and say what each holds.
    training: accumulate, clip_grad_norm, grad_scaler, ema, zero_grads and, for inference, too, autocast, context,
        target and return_outputs: `capture_training_step`.
    interconnect: links between processes, for programs with collectives: "h100", "pcie5", ..., or a file; without one,
        what is usual around the device of `spec`.
    cublas_workspace: of CUDA devices: bytes, or what CUBLAS_WORKSPACE_CONFIG is where the program runs, ":4096:8";
        without one, what PyTorch takes on the device of `spec`.
    mesh: "dp=8,tp=4": sizes of process groups that the graph names and does not describe.
    ranks: "all": of a program for many devices, a report for each role in it: `Ranks`. Or the ranks to look at.
    world: how many ranks there are; without one, as many as the fake process group has that this runs in.
    roles: which ranks do the same: a function from a rank to a name, or a dict from names to ranks. Without it,
        the function that makes the model runs as some ranks. Ranks are alike along an axis of their mesh if what they
        make has the same names and local sizes, at both ends of a stretch. One rank of each role is captured, and the
        last one of the first role, to compare: if it does something else, give roles.
    """
    asked = dict(spec=spec, allocator=allocator, device_memory=device_memory, measure=measure,
                 interconnect=interconnect, mesh=mesh, cublas_workspace=cublas_workspace)  # fmt: skip
    how = dict(loss=loss, optimizer=optimizer, dtype=dtype, mode=mode, options=options, **training)
    if isinstance(model, _C.Graph):
        _capture._loop_and_options(training, options)  # refuses names that are none
        _refuse_capturing(dict(inputs=inputs, ranks=ranks, world=world, roles=roles, **how), steady_state=steady_state,
                          run=run)  # fmt: skip
        return Report(model, device=None if device is None else str(device), **asked)
    if inputs is None:
        raise TypeError("profile() of a model takes its inputs, too: a tensor, shapes, a text such as 'f32[8,16]'")
    how["device"] = "cuda" if device is None else device
    if ranks is not None:
        return _ranks.of_ranks(
            model, lambda: profile(model, inputs, steady_state=steady_state, run=run, **how, **asked), ranks,
            world=world, roles=roles, inputs=inputs, target=training.get("target"), device=how["device"], dtype=dtype,
            train=_capture.is_training(mode, loss, optimizer, training.get("target")),
            options=_capture.mode_options(training, options))  # fmt: skip
    if world is not None or roles is not None:
        raise _C.Error("world= and roles= are of several ranks: give ranks='all'")
    graph, seconds = _capture.of_model(model, inputs, steady_state=steady_state, **how)
    steps = _capture.of_model(model, inputs, run_steps=3, **how)[0] if run else None
    return Report(graph, capture_seconds=seconds, run=steps, **asked)


def _refuse_capturing(keywords, **flags):
    """Raises for what says how a model is to be captured."""
    given = [name for name, value in keywords.items() if value is not None]
    given += [name for name, value in flags.items() if value]
    if given:
        raise _C.Error(f"{', '.join(given)} {'is' if len(given) == 1 else 'are'} of capturing, and a graph is captured "
                       "already: give it to capture_training_step or capture")  # fmt: skip
