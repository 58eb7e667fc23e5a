#!/usr/bin/env python3
"""Inputs that once caused crashes, "internal error" or excessive memory; and names with quotes, markup and control
characters in every output.

    check_bad_input.py TOOL SERVER [PART ...]
"""

import ast
import csv
import gzip
import io
import json
import pathlib
import pickle
import re
import sys
import tempfile
import xml.etree.ElementTree
import zipfile

import hostile_inputs
from limited_runs import Runs, problem_of

LARGEST = 2**63 - 1
failures = []


def refuse(runs, words, *says):
    """Expects exit code 1 and a message of this kind, within the limits of time and memory."""
    code, _, err, resident = runs.run(*words)
    what = " ".join(map(str, words))
    problem = problem_of(code, err, resident)
    if problem or code != 1:
        failures.append(f"{what}: {problem or f'exit code {code}'}\n{err[-600:]}")
    for text in says:
        if str(text) not in err:
            failures.append(f"{what}: the message lacks '{text}':\n{err[-600:]}")


def accept(runs, words):
    code, out, err, resident = runs.run(*words)
    problem = problem_of(code, err, resident)
    if problem or code != 0:
        failures.append(f"{' '.join(map(str, words))}: {problem or f'exit code {code}'}\n{err[-600:]}")
    return out


def changed(path, target, pointer, value):
    """Copies a JSON file with another value at a path such as "classes/matmul/fixed"."""
    document = json.loads(path.read_text())
    place = document
    *way, last = [int(step) if step.isdigit() else step for step in pointer.split("/")]
    for step in way:
        place = place[step]
    place[last] = value
    target.write_text(json.dumps(document))
    return target


# By reader: the path of the wrong value, and the expected message.
WRONG = {
    "profile": [("peak/bytes", "much", "peak.bytes is not a number but a string"),
                ("modules", [], "modules is not an object but a list"),
                ("modules/children", {"a": 1}, "modules.children is not a list but an object"),
                ("modules/path", 7, "modules.path is not a string but a number"),
                ("operators", [1], "operators is not an object but a list"),
                ("flops", 3, "flops is not an object but a number"),
                ("nodes", -1, "nodes is not a finite number >= 0"),
                ("peek", {}, "peek is not a key of a profile (did you mean peak?)"),
                ("peak/by_kinds", {}, "peak.by_kinds is not a key of a profile (did you mean by_kind?)"),
                ("modules/children/0/peak_byte", 1, "modules.children[0].peak_byte is not a key of a profile"),
                ("top_at_peak/0/size", 1, "top_at_peak[0].size is not a key of a profile")],
    "device": [("version", "1", "version is not a number"),
               ("bandwidth", None, "bandwidth is missing"),
               ("matmul", [1], "matmul is not an object"),
               ("sources", [1], "sources is not an object"),
               ("classes", {"matmul": {"compute": [[1]]}}, "classes.matmul.compute[0] must be a pair [work, rate]"),
               ("classes", {"other": 1}, "classes.other is not an object"),
               ("gpu/stream", [1], "gpu.stream is not a number"),
               ("tables", {"aten::mm": 1}, "tables.aten::mm is not an object"),
               ("tables", {"copy": {"float32": [[1, "x"]]}}, "tables.copy.float32[0][1] is not a number"),
               ("device", "toaster", "device is 'toaster', which is not a device type"),
               ("memory", 80, "memory is not a key of a device spec (did you mean memory_bytes?)"),
               ("memory_bytes", 80, "memory_bytes must be a number of bytes from 1 MiB"),
               ("memory_bytes", 2**70, "memory_bytes must be a number of bytes"),
               ("memory_bytes", "NaN", "memory_bytes is not a finite number >= 0"),
               ("matmul/float32", 0, "matmul.float32 must be positive"),
               ("matmul/bfloat16", -1, "matmul.bfloat16 is not a finite number >= 0"),
               ("vector", 1e-300, "vector must be positive: a rate from 1 to 1e30 per second"),
               ("host_call", 1e300, "host_call must be at most 1e6 seconds"),
               ("gpu/moved", 1e-300, "gpu.moved must be positive"),
               ("gpu/streams", 1, "gpu.streams is not a key of gpu (did you mean stream?)"),
               ("host/lynk", 1, "host.lynk is not a key of host"),
               ("title", {}, "title is not a string")],
    "interconnect": [("levels", {}, "levels is not a list"),
                     ("levels/0/size", 0.5, "levels[0].size must be an integer"),
                     ("levels/0", "x", "levels[0] is not an object"),
                     ("sources", "x", "sources is not an object"),
                     ("base", [], "base is not a number"),
                     ("levels/0/latancy", 1, "levels[0].latancy is not a key of a level (did you mean latency?)"),
                     ("levels/0/bandwidth", 0, "levels[0].bandwidth must be positive"),
                     ("levels/0/latency", 1e9, "levels[0].latency must be at most 1e6 seconds"),
                     ("levls", [], "levls is not a key of an interconnect spec (did you mean levels?)"),
                     ("ring_fill", 1e300, "ring_fill must be at most 1000 steps"),
                     ("axes", {"tp": 1}, "axes.tp is not an object"),
                     ("tables", {"reduce": {"8": 1}}, "tables.reduce.8 is not a list"),
                     ("levels/0/groups", [1], "levels[0].groups[0] is not an object")],
    "color_json": [("nodes/n1", [], "nodes.n1 must be a number or a string"),
                   ("title", 1, "title is not a string")],
    "baseline": [("peak_bytes", -1, "peak_bytes is -1, not between 0"),
                 ("flops", 2**64, "flops is not an integer"),
                 ("nanosecond", 1, "nanosecond is not a key of a baseline (did you mean nanoseconds?)"),
                 ("kernels/0", [1], "kernels[0] is not [kind, module, operator, amount]")],
    "solution": [("version", 2, "version must be 1, not 2"),
                 ("choice/0", -1, "choice[0] is -1, not between 0"),
                 ("choise", [], "choise is not a key of a solution (did you mean choice?)")],
    "layouts": [("mesh/0/sise", 2, "mesh[0].sise is not a key of a mesh axis (did you mean size?)"),
                ("nodes/0/node", 2**70, "nodes[0].node is not an integer"),
                ("nodes/0/result", [], "nodes[0].result is not a key of a node (did you mean results?)"),
                ("versions", 1, "versions is not a key of a sharding plan (did you mean version?)")],
    "graph_json": [("nodes/0/phas", "forward", "/nodes/0: unknown key 'phas'"),
                   ("storages/0/size", 1, "/storages/0: unknown key 'size'")],
    "problem": [("problem/nodes/costs/1/0", "x", "problem.nodes.costs[1][0]: expected an integer")],
}


def wrong_types(runs, good, folder):
    """Each JSON reader reports the file, the path in it and the expected type."""
    graph = good["graph"][0]
    bad = folder / "bad.json"
    words = {"profile": ("compare", bad, graph), "device": ("profile", graph, "--spec", bad),
             "interconnect": ("profile", graph, "--interconnect", bad), "problem": ("shard", "--problem", bad),
             "color_json": ("draw", graph, "--color", bad, "-o", folder / "x.svg"), "graph_json": ("capture", bad),
             "baseline": ("check", bad, graph), "layouts": ("shard", graph, "--mesh", "2", "--solution", bad),
             "solution": ("shard", "--problem", good["problem"][0], "--solution", bad)}
    for reader, cases in WRONG.items():
        for pointer, value, says in cases:
            changed(good[reader][-1], bad, pointer, value)
            refuse(runs, words[reader], bad, says)
            if reader == "profile":
                refuse(runs, (*words[reader], "-o", folder / "x.html"), bad, says)
    for reader in ("profile", "device", "interconnect", "graph_json", "color_json"):
        for text, says in ((good[reader][0].read_text()[:-9], "invalid JSON"),
                           ('{"a": ' + "[" * 100000 + "]" * 100000 + "}", "nested too deeply"),
                           ('{"version": 1e999}', "invalid JSON")):
            bad.write_text(text)
            refuse(runs, words[reader], f"{bad}:", says)


def seconds_and_sizes(runs, good, folder):
    """Rates at the limits give finite times; a price is read strictly."""
    graph = good["graph"][0]
    slow = folder / "slow.json"
    document = json.loads(good["device"][0].read_text())
    document["matmul"] = {"float32": 1}
    document |= {"bandwidth": 1, "vector": 1, "transcendental": 1}
    document["gpu"] = None
    slow.write_text(json.dumps(document))
    out = accept(runs, ("profile", graph, "--spec", slow))
    if re.search(r"\b(inf|nan|-\d[\d,.]*) s\b", out):
        failures.append(f"a slow device: {out}")


GRAPH = ["shadowgraph 1 libtorch 2.13.0", "operator aten::relu(Tensor self) -> Tensor",
         "operator aten::stack(Tensor[] tensors, int dim=0) -> Tensor", "s0 = 64 cpu input"]


def large_graph(kind, nodes):
    """Returns a graph with a long or deep module path, or with many readers of one value."""
    path = {"path": "a" * (40 * nodes), "deep": ".".join("a" * (20 * nodes))}.get(kind, "net")
    other = path.replace("a", "b")
    head = [*GRAPH, *(f"s{i} = 64 cpu activation" for i in range(1, nodes + 1)),
            f'r1 = module "{path}" "A" call 0 in r0', f'r2 = module "{other}" "B" call 0 in r0']
    body = ['n0: %0 = sg::input(name="x") : f32[16] @s0']
    one = kind in ("readers", "outputs")
    body += [f"n{i}: %{i} = aten::relu(self=%{0 if one else i - 1}) : f32[16] @s{i} | r{1 + i % 2}"
             for i in range(1, nodes + 1)]
    last = ", ".join(f"%{i}" for i in range(1, nodes + 1)) if kind == "outputs" else f"%{nodes}"
    return "\n".join([*head, *body, f"n{nodes + 1}: sg::output(values=[{last}])", ""])


def memory_is_linear(runs, good, folder):
    """At most 100 bytes per byte of the input and 200 MB, at three sizes each; the time limit bounds the time."""
    def within(words, path):
        code, _, err, resident = runs.run(*words)
        most = (100 * path.stat().st_size + 200_000_000) // 1024
        if problem_of(code, err, 0) or code > 1 or resident > most:
            failures.append(f"{' '.join(map(str, words))}: {code}, {resident >> 10} of {most >> 10} MiB\n{err[-300:]}")

    path = folder / "large.sg"
    for kind in ("path", "deep", "readers", "outputs"):
        for nodes in (1000, 4000, 16000):
            path.write_text(large_graph(kind, nodes))
            within(("profile", path, "-o", folder / "out", "--export", "trace"), path)
            within(("opt", path, "--pass", "cse"), path)
            if kind in ("readers", "outputs"):
                within(("shard", path, "--mesh", "2", "--time-limit", "1"), path)
    packed = folder / "trace.json.gz"
    event = b'{"ph": "X", "cat": "cpu_op", "name": "a", "pid": 1, "tid": 1, "ts": 1, "dur": 1},'
    for filler in (b" ", event, b"[" * 10):
        for size in (1 << 24, 1 << 26, 1 << 28):
            with gzip.open(packed, "wb", 6) as file:
                file.write(b'{"traceEvents": [')
                for _ in range(size >> 20):
                    file.write(filler * ((1 << 20) // len(filler)))
            within(("calibrate", "--trace", packed, "-o", folder / "x.json"), packed)


def enormous(runs, good, folder):
    """Sizes whose sum overflows; a device of one kilobyte."""
    train = good["graph"][0].read_text()
    huge = folder / "huge.sg"
    huge.write_text(re.sub(r"(?m)^(s\d*[05] = )\d+ (\S+ temporary)", rf"\g<1>{LARGEST} \2", train))
    for words in (("--pareto",), ("--bytes", "1MB"), ("--pareto", "--cost", "time", "--spec", "h100")):
        refuse(runs, ("checkpoint", huge, *words), "2^58 bytes")
    refuse(runs, ("opt", huge, "--pass", "checkpoint{policy=budget;bytes=1MB;modules=*}"), "2^58 bytes")
    for words in (("profile",), ("profile", "--allocator", "expandable_segments:True", "--spec", "h100"),
                  ("draw",), ("profile", "-o", folder / "report")):
        accept(runs, (words[0], huge, *words[1:]))
    expandable = ("--allocator", "expandable_segments:True", "--spec", "h100")
    for memory in ("1KB", "1B", "8000000TB"):
        accept(runs, ("profile", good["graph"][0], *expandable, "--memory", memory))


def rewrite(path, target, change):
    """Copies a zip file; change(name, content) returns each record's new content."""
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(target, "w") as packed:
        for name in source.namelist():
            packed.writestr(name, change(name, source.read(name)))
    return target


def damaged_torchscript(runs, good, folder):
    traced = good["torchscript"][0]
    bad = folder / "bad.pt"
    shape = ("--input", "f32[4,8]")
    accept(runs, ("capture", traced, *shape))

    def in_code(old, new):
        return lambda name, content: content.replace(old, new) if name.endswith(".py") else content

    # The last item of a list of indices into the string table.
    last = re.compile(rb"K(.)(?=e?tR)", re.DOTALL)

    def beyond_the_table(name, content):
        return last.sub(b"K\xfe", content) if name.endswith(".debug_pkl") else content

    refuse(runs, ("capture", rewrite(traced, bad, beyond_the_table), *shape), bad, "debug_pkl", "out of range")
    for text in (b"", b"\x80\x02.", b"\x80\x02K\x01.", pickle.dumps((), 2), pickle.dumps(((1, 2), 3), 2)):
        def replaced(name, content, text=text):
            return text if name.endswith(".debug_pkl") else content

        refuse(runs, ("capture", rewrite(traced, bad, replaced), *shape), bad, "debug_pkl")
    for old, new in ((b"class ", b"class\xff "), (b"(", b"["), (b":", b"["), (b"Tensor", b"Tensr"),
                     (b"return", b"retrn")):
        refuse(runs, ("capture", rewrite(traced, bad, in_code(old, new)), *shape))
    nested = b"return " + b"(" * 100000
    refuse(runs, ("capture", rewrite(traced, bad, in_code(b"return ", nested)), *shape), "too deeply")
    chains = b"return " + b"-" * 100000
    refuse(runs, ("capture", rewrite(traced, bad, in_code(b"return ", chains)), *shape), "expression is too long")
    blocks = b"".join(b" " * i + b"if True:\n" for i in range(2, 3000))
    refuse(runs, ("capture", rewrite(traced, bad, in_code(b"  return ", blocks + b"  return ")), *shape), "too deeply")
    largest = b"J" + (2**31 - 1).to_bytes(4, "little")

    def larger(name, content):
        if not name.endswith("/data.pkl"):
            return content
        return content.replace(b"K\x20tQ", largest + b"tQ").replace(b"(K\x20t", b"(" + largest + b"t")

    refuse(runs, ("capture", rewrite(traced, bad, larger), *shape), bad, "larger than the file")
    most = b"\xff\xff\xff\x7f"
    for ending in ("/data.pkl", "/constants.pkl", ".debug_pkl"):
        for stated, says in ((b"r" + most, "memo"), (b"j" + most, "memo"), (b"X" + most, "length"),
                             (b"B" + most, "length"), (b"\x8b" + most, "length"), (b"\xfe", "not a pickle opcode")):

            def stating(name, content, ending=ending, stated=stated):
                return content[:2] + stated + content[2:] if name.endswith(ending) else content

            refuse(runs, ("capture", rewrite(traced, bad, stating), *shape), bad, ending.strip("/"), says)
    with zipfile.ZipFile(traced) as source, zipfile.ZipFile(bad, "w", zipfile.ZIP_DEFLATED) as packed:
        for name in source.namelist():
            packed.writestr(name, source.read(name) + (bytes(1 << 28) if name.endswith("data/0") else b""))
    refuse(runs, ("capture", bad, *shape), bad, "larger than the file")


# ---- Names

def escaped(name):
    return "".join(chr(b) if 32 <= b < 127 and chr(b) not in '"\\' else f"\\x{b:02x}" for b in name.encode())


def hostile_graph(source, target):
    """Returns the graph with a hostile name wherever one is allowed."""
    names = iter(range(10**6))

    def another(_):
        return f'"{escaped(hostile_inputs.NAMES[next(names) % len(hostile_inputs.NAMES)])}"'

    lines = []
    for line in source.read_text().split("\n"):
        if re.match(r"r\d+ = module", line):
            line = re.sub(r'"[^"]*"', another, line)
        elif re.match(r"n\d+: ", line):
            line = re.sub(r'(?<=name=)"[^"]*"', lambda m: f'"{escaped(f"{next(names)}")}{another(m)[1:]}', line)
            line = re.sub(r' "[^"]*"$', lambda m: " " + another(m), line)
            if not line.endswith('"') and " | " in line:
                line += " " + another(None)
        elif line.startswith('meta "model"'):
            line = 'meta "model" = ' + f'"{escaped("".join(hostile_inputs.NAMES[:12]))}"'
        lines.append(line)
    target.write_text("\n".join(lines))
    return target


CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


def no_controls(what, text):
    found = CONTROLS.search(text)
    if found:
        failures.append(f"{what} has {found[0]!r}: {text[max(0, found.start() - 40):found.end() + 40]!r}")


def check_dot(what, text):
    """Every quoted string ends on its line, and none starts like HTML."""
    for line in text.splitlines():
        if line.lstrip()[:1] != "<" and '"' in re.sub(r'"(?:[^"\\]|\\.)*"', "", line):
            failures.append(f"{what}: {line!r}")


def check_file(path, tags):
    """Parses the file according to its extension."""
    if path.suffix == ".pickle":
        pickle.loads(path.read_bytes())
        return
    text = path.read_text("utf-8")
    if path.suffix == ".svg":
        xml.etree.ElementTree.fromstring(text)
    elif path.suffix == ".dot":
        check_dot(path.name, text)
    elif path.suffix == ".json":
        json.loads(text)
    elif path.suffix == ".csv":
        widths = {len(row) for row in csv.reader(io.StringIO(text, newline=""), strict=True)}
        if len(widths) != 1:
            failures.append(f"{path.name}: rows of {widths} fields")
    elif path.suffix == ".html" and re.findall(r"</?[a-z]+", text) != tags:
        failures.append(f"{path.name}: other tags than with plain names")
    if path.suffix not in (".json", ".html"):
        no_controls(path.name, text)


def hostile_names(runs, good, folder):
    graph = hostile_graph(good["graph"][0], folder / "names.sg")
    accept(runs, ("capture", graph, "--verify"))
    out = folder / "out"
    every = "svg,dot,nodes-csv,storages-csv,trace,snapshot,model-explorer"
    accept(runs, ("profile", graph, "-o", out, "--export", every))
    for command in (("capture", graph), ("capture", graph, "--preset", "short"), ("profile", graph), ("draw", graph),
                    ("compare", graph, good["graph"][0]), ("compare", out / "profile.json", good["graph"][0]),
                    ("checkpoint", graph, "--pareto"), ("shard", graph, "--mesh", "2", "--time-limit", "1"),
                    ("compare", graph, good["graph"][1], "--nodes")):
        code, said, err, _ = runs.run(*command)
        if code not in (0, 1) or (code == 1 and "--nodes" not in command):
            failures.append(f"{command}: {code}\n{err}")
        no_controls(" ".join(map(str, command)), said + err)
        if "--json" not in command and command[0] != "draw" and "--nodes" not in command and command[0] != "capture":
            json.loads(accept(runs, (*command, "--json")))
    for name in ("a.svg", "a.dot", "a.html"):
        accept(runs, ("draw", graph, "-o", out / name))
    accept(runs, ("checkpoint", graph, "--pareto", "--svg", out / "curve.svg"))
    accept(runs, ("shard", graph, "--mesh", "2", "--time-limit", "1", "-o", out))
    accept(runs, ("draw", good["graph"][0], "-o", out / "plain.html"))
    tags = re.findall(r"</?[a-z]+", (out / "plain.html").read_text())
    for path in sorted(out.iterdir()):
        if path.is_file():
            try:
                check_file(path, tags)
            except (ValueError, SyntaxError, csv.Error, pickle.UnpicklingError) as error:
                failures.append(f"{path.name}: {error}")
    for language in ("python", "cpp"):
        code = folder / language
        accept(runs, ("emit", graph, "--lang", language, "-o", code))
        for path in code.rglob("*"):
            if path.suffix == ".py":
                ast.parse(path.read_text())
            if path.is_file():
                no_controls(path.name, path.read_bytes().decode("utf-8", "replace"))


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        runs = Runs(sys.argv[1], sys.argv[2], folder)
        (folder / "good").mkdir()
        good = hostile_inputs.make_good(folder / "good", runs.good)
        parts = (wrong_types, seconds_and_sizes, memory_is_linear, enormous, damaged_torchscript, hostile_names)
        for part in [part for part in parts if part.__name__ in sys.argv[3:] or len(sys.argv) == 3]:
            (folder / part.__name__).mkdir()
            part(runs, good, folder / part.__name__)
    for failure in failures:
        print(failure)
    print(f"{len(failures)} failures")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
