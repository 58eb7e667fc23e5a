"""sg.profile and its report."""

import html
import json
import os
import pathlib

from . import _capture, _ranks
from . import _shadowgraph as _C
from ._shared import nearest

EXPORTS = {
    "svg": ("graph.svg", lambda report: report.graph.svg()),
    "dot": ("graph.dot", lambda report: report.graph.dot()),
    "nodes-csv": ("nodes.csv", lambda report: report.nodes_csv()),
    "storages-csv": ("storages.csv", lambda report: report.storages_csv()),
    "trace": ("trace.json", lambda report: report.trace_json()),
    "model-explorer": ("model_explorer.json", lambda report: report.model_explorer_json()),
    "snapshot": ("snapshot.pickle", lambda report: report.memory_snapshot()),  # None if the step does not fit
}


class Profile(_C.Profile):
    """Memory, FLOPs and time of a program. Prints like the command line tool, and renders in notebooks.

    graph: the profiled graph, which must not be modified.
    """

    @property  # type: ignore[misc]  # in Profile, the number of nodes
    def nodes(self):
        """Nodes of the graph in program order with their costs; unknown costs are None.

            sum(node.flops for node in report.nodes if node.phase == "forward" and node.flops is not None)

        flops, elementwise_flops, transcendental; bytes_read, bytes_written; allocated_bytes, saved_bytes,
        scratch_bytes; seconds; wire_bytes, communication_seconds. See `ProfiledNode`.
        """
        return _C.profiled_nodes(self)

    def node(self, node):
        """Returns the costs of a node. Raises Error for a node of another graph."""
        return _C.profiled_node(self, node)

    def what_if(self, *, dtype=None, optimizer="", accumulate=1, checkpoint="", zero=0, ranks=1):
        """Estimates the memory of this training step under other settings, without another capture.

        dtype: torch.bfloat16 or torch.float16 instead of float32.
        optimizer: "none", "sgd", "sgd_momentum", "adam" or "adamw".
        accumulate: gradient accumulation steps.
        checkpoint: modules to recompute in backward, such as "layers.*", or "auto".
        zero, ranks: ZeRO stage 1 to 3 over this number of ranks.

        Returns a dict that prints as text. "ignored" lists effects that the estimate does not include.
        """
        return WhatIfResult(*self._what_if(dtype, optimizer, accumulate, checkpoint, zero, ranks))

    def compare_trace(self, path, rows=10):
        """Compares the estimated time with a trace of the real step, operator by operator.

        path: trace exported by `torch.profiler.profile(record_shapes=True)`, .json or .json.gz.
        rows: maximum number of rows per table; 0 for all.

        Returns a dict that prints as tables: "most_off" has the largest differences, "only_measured" and
        "only_predicted" the operators found on one side only.
        """
        return TraceComparison(*self._compare_trace(os.fspath(path), rows))

    def __str__(self):
        return self.text()

    def __repr__(self):
        return f"<shadowgraph.Profile: {len(self.graph)} nodes, peak {self.peak_bytes} bytes>"

    def _repr_html_(self):
        return f"<pre>{html.escape(str(self))}</pre>"

    def html(self, title="", *, compare=None, compare_title="before", color=None):
        """Returns the HTML page of `shadowgraph draw`: graph, memory timeline and tables. See docs/pictures.md.

        compare: an earlier Profile to compare with; or its `dict()` or the path of its profile.json, which compare only
            costs, modules and operators.
        color: additional values to color nodes by, such as measured times: a dict {"n12": 0.25}, a dict with a title
            and a unit {"title": ..., "unit": "seconds", "nodes": {...}}, or the path of a .json or .csv file.
        """
        values = json.dumps(color) if isinstance(color, dict) else "" if color is None else os.fspath(color)
        if compare is None or isinstance(compare, Profile):
            return self._html(title, compare, compare_title, "", values)
        saved = json.dumps(compare) if isinstance(compare, dict) else pathlib.Path(compare).read_text("utf-8")
        return self._html(title, None, compare_title, saved, values)

    def save_html(self, path, title="", *, compare=None, compare_title="before", color=None):
        """Writes the page of `html` to one self-contained file, atomically."""
        page = self.html(title, compare=compare, compare_title=compare_title, color=color)
        _C.write_file(os.path.abspath(path), page)

    def page(self, title="", *, height=760, compare=None, compare_title="before", color=None):
        """Returns the page of `html` for display in a notebook, `height` pixels high."""
        return Page(self.html(title, compare=compare, compare_title=compare_title, color=color), height)

    def save(self, folder, export=()):
        """Writes graph.sg, profile.json and report.html to a folder, each atomically. Returns the file names.

        export: further files to write: "svg", "dot", "nodes-csv", "storages-csv"; "trace" for ui.perfetto.dev;
            "model-explorer"; "snapshot" for pytorch.org/memory_viz, if the step fits in memory.
        """
        for name in export:
            if name not in EXPORTS:
                hint = nearest(name, EXPORTS, " (did you mean {}?)")
                raise _C.Error(f"unknown export '{name}'{hint}; expected one of {', '.join(EXPORTS)}")
        os.makedirs(folder, exist_ok=True)
        self.graph.save(os.path.join(folder, "graph.sg"))
        _C.write_file(os.path.join(folder, "profile.json"), json.dumps(self.dict(), indent=2) + "\n")
        self.save_html(os.path.join(folder, "report.html"))
        written = ["graph.sg", "profile.json", "report.html"]
        for name, (file, text) in EXPORTS.items():
            content = text(self) if name in export else None
            if content is not None:
                _C.write_file(os.path.join(folder, file), content)
                written.append(file)
        return written


class Page:
    """An HTML page in a sandboxed iframe, for notebooks."""

    def __init__(self, text, height):
        self.text = text
        self.height = height

    def _repr_html_(self):
        return (
            f'<iframe srcdoc="{html.escape(self.text)}" sandbox="allow-scripts allow-downloads allow-modals" '
            f'style="width: 100%; height: {int(self.height)}px; border: 1px solid #8888"></iframe>'
        )


class _PrintableDict(dict):
    """A dict that prints as the text of the command line tool."""

    def __init__(self, values, text):
        super().__init__(values)
        self._text = text

    def __str__(self):
        return self._text


class WhatIfResult(_PrintableDict):
    """Result of `Profile.what_if`. See docs/memory.md for the keys."""


class TraceComparison(_PrintableDict):
    """Result of `Profile.compare_trace`. See docs/time.md for the keys."""


def calibrate(trace, output=None, *, links=None, spec=""):
    """Calibrates a device from a profiler trace: rates per operator class, operator table and collective tables.

    trace: trace exported by `torch.profiler.profile(record_shapes=True)`, .json or .json.gz.
    output: file for the device specs, which `spec=` accepts.
    links: file for the link specs, which `interconnect=` accepts.
    spec: device, by name or file, whose peak rates apply. Defaults to the device of the trace if it is known, else to
        the highest rates in the trace.

    Returns a dict with calls, sizes, seconds, collectives, spec, links, left_out.
    """
    return _C.calibrate(os.fspath(trace), "" if output is None else os.fspath(output),
                        "" if links is None else os.fspath(links), spec)  # fmt: skip


def profile(model, inputs=None, *, loss=None, optimizer=None, device=None, dtype=None, mode=None, options=None,
            spec="", allocator="", device_memory=None, measure=False, steady_state=False, run=False, interconnect="",
            mesh="", cublas_workspace=None, ranks=None, world=None, roles=None, **training):  # fmt: skip
    """Runs `model` once on fake tensors, as a training step or for inference, and returns a `Profile` of its costs.

    model: a torch.nn.Module (neither copied nor modified), a function that creates one, a transformers configuration or
        model class, a function that creates a schedule of torch.distributed.pipelining (or a tuple of one and its
        modules), or a captured Graph. With a Graph, only device, spec, allocator, device_memory, measure, interconnect,
        mesh and cublas_workspace are accepted.
    inputs: a tensor, a sequence of arguments, or a dict of keyword arguments. A string such as "i64[4,512]" creates a
        tensor; a shape (8, 3, 224, 224), or a sequence of only shapes, creates float32 tensors.
    loss: a function of the model output, or ".loss". Defaults to its `.loss`, else the mean of its first output.
    optimizer: a class or function that takes parameters, or "sgd", "adam", "adamw" with common settings.
    device: the simulated device: "cuda" (the default), "cuda:1" or "cpu". For a Graph, the device whose memory is
        reported; defaults to that of its capture.
    dtype: dtype of floating-point parameters and inputs, such as torch.bfloat16.
    options: options of `Capture`, for example {"host_reads": "finite"}; also accepted as keywords: host_reads="finite".
    mode: "train" or "infer". Defaults to "train" if a loss or an optimizer is given.
    spec: device whose time is estimated: a name from `shadowgraph list devices`, or a file. Defaults to "h100" for
        CUDA, and for the CPU to this machine as measured by `shadowgraph calibrate`.
    allocator: settings of the caching allocator, in the format of PYTORCH_ALLOC_CONF.
    device_memory: memory of the device: bytes, a size such as "24GiB", or the name of a device such as "l4", which then
        also sets `spec`. The report then starts with whether the program fits, and where it runs out of memory.
    measure: on the CPU, run each distinct operator call once to measure scratch memory and time.
    steady_state: profile the second training step, when the optimizer state already exists.
    run: also capture the first three training steps and report the memory of each.
    training: accumulate, clip_grad_norm, grad_scaler, ema, zero_grads; and also for inference autocast, context, target
        and return_outputs. See `capture_training_step`.
    interconnect: links between processes, for programs with collectives: "h100", "pcie5", ..., or a file. Defaults to
        the usual links of `spec`.
    cublas_workspace: cuBLAS workspace on CUDA devices: bytes, or a value of CUBLAS_WORKSPACE_CONFIG such as ":4096:8".
        Defaults to PyTorch's choice for `spec`.
    mesh: sizes of process groups that are known only by name, such as "dp=8,tp=4".
    ranks: "all", or a list of ranks, of a distributed program. Returns `RankProfiles`, with a report per role.
    world: number of ranks. Defaults to the size of the active fake process group.
    roles: groups of identical ranks: a function from a rank to a name, or a dict from names to ranks. By default, roles
        are found by creating the models of some ranks: ranks along a mesh axis are considered identical if the models
        at both ends of a range have the same names and local sizes. One rank per role is captured. The last rank of the
        first role is captured, too, and Error is raised if it differs; pass roles in this case.
    """
    settings = dict(spec=spec, allocator=allocator, device_memory=device_memory, measure=measure,
                    interconnect=interconnect, mesh=mesh, cublas_workspace=cublas_workspace)  # fmt: skip
    how = dict(loss=loss, optimizer=optimizer, dtype=dtype, mode=mode, options=options, **training)
    if isinstance(model, _C.Graph):
        _capture._loop_and_options(training, options)  # rejects unknown names
        _refuse_capturing(dict(inputs=inputs, ranks=ranks, world=world, roles=roles, **how), steady_state=steady_state,
                          run=run)  # fmt: skip
        return Profile(model, device=None if device is None else str(device), **settings)
    if isinstance(model, _capture.Capture):
        raise TypeError("profile() requires the graph of a Capture: pass session.finish()")
    if inputs is None:
        raise TypeError("profile() of a model requires inputs: a tensor, shapes, or a string such as 'f32[8,16]'")
    how["device"] = "cuda" if device is None else device
    if ranks is not None:
        return _ranks.of_ranks(
            model, lambda: profile(model, inputs, steady_state=steady_state, run=run, **how, **settings), ranks,
            world=world, roles=roles, inputs=inputs, target=training.get("target"), device=how["device"], dtype=dtype,
            train=_capture.is_training(mode, loss, optimizer, training.get("target")),
            options=_capture.mode_options(training, options))  # fmt: skip
    if world is not None or roles is not None:
        raise _C.Error("world= and roles= require ranks='all'")
    graph, seconds = _capture.of_model(model, inputs, steady_state=steady_state, **how)
    steps = _capture.of_model(model, inputs, run_steps=3, **how)[0] if run else None
    return Profile(graph, capture_seconds=seconds, run=steps, **settings)


def _refuse_capturing(keywords, **flags):
    """Raises Error for arguments that only apply to capturing."""
    given = [name for name, value in keywords.items() if value is not None]
    given += [name for name, value in flags.items() if value]
    if given:
        raise _C.Error(f"profile() of a Graph does not accept {', '.join(given)}, which "
                       f"{'applies' if len(given) == 1 else 'apply'} to capturing; pass "
                       f"{'it' if len(given) == 1 else 'them'} to capture() or capture_training_step()")  # fmt: skip
