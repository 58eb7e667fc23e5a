"""Damaged and hostile files for check_hostile.py: valid files for every reader, and seeded mutations of them."""

import copy
import gzip
import io
import json
import pathlib
import random
import re
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[2]

# Unusual and malicious names; only JSON can express a lone surrogate.
NAMES = ['"', "'", "{0}{{", "}", "</script><script>alert(1)</script>", "<img src=x onerror=alert(1)>", "&lt;", "]]>",
         "\x00nul", "\x1b[31mred", "\x7f\x85", "\u202eabc\u2066", "\u2028", "a,b;c", "=1+1", "%s%n", "../../x",
         "\\N{1}", "\n", "\r\nn0: %0", "$(touch x)", "`id`", "", "x" * 5000, "\ufeff", "é" * 100]
NUMBERS = [0, 1, -1, 2, 7, 2**31 - 1, 2**31, 2**32, 2**53, 2**62, 2**63 - 1, 2**63, 2**64, -2**63, 10**30, 1e308,
           -1e308, 1e-320, 0.5]
VALUES = [None, True, False, [], {}, "", "x", [[]], {"a": 1}, [1, 2], "Infinity", "NaN"]


def json_places(value, into):
    """Collects every (container, key) of a document."""
    for key, inner in list(value.items()) if isinstance(value, dict) else list(enumerate(value)):
        into.append((value, key))
        if isinstance(inner, (dict, list)):
            json_places(inner, into)
    return into


def deep(rng):
    depth = rng.choice([100, 2000, 100000])
    return "[" * depth + "]" * depth


def mutate_json(text, rng):
    document = json.loads(text)
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        places = json_places(document, [])
        if not places:
            break
        container, key = rng.choice(places)
        kind = rng.randrange(8)
        if kind == 0 and isinstance(container, dict):
            container[rng.choice(NAMES)] = container.pop(key)
        elif kind == 1:
            del container[key]
        elif kind == 2:
            container[key] = rng.choice(NUMBERS)
        elif kind == 3:
            container[key] = rng.choice(NAMES)
        elif kind == 4:
            other, inner = rng.choice(places)
            container[key] = copy.deepcopy(other[inner])
        elif kind == 5 and isinstance(container, list):
            container[key:key] = [copy.deepcopy(container[key]) for _ in range(rng.choice([1, 3, 1000]))]
        else:
            container[key] = copy.deepcopy(rng.choice(VALUES))
    text = json.dumps(document)
    if rng.random() < 0.05:
        text = text.replace("1", deep(rng), 1)
    if rng.random() < 0.05:
        text = text.replace('": ', '": ' + rng.choice(["1e999", "-", "NaN", '"\\ud800"', "01"]) + " ,", 1)
    return text


def mutate_text(text, rng):
    lines = text.split("\n")
    for _ in range(rng.choice([1, 1, 2, 3, 8])):
        at = rng.randrange(len(lines))
        kind = rng.randrange(9)
        if kind == 0:
            del lines[at]
            lines = lines or [""]
        elif kind == 1:
            lines.insert(at, lines[rng.randrange(len(lines))])
        elif kind == 2:
            other = rng.randrange(len(lines))
            lines[at], lines[other] = lines[other], lines[at]
        elif kind in (3, 4, 5):
            numbers = list(re.finditer(r"-?\d+(\.\d+)?", lines[at]))
            if numbers:
                number = rng.choice(numbers)
                lines[at] = lines[at][:number.start()] + str(rng.choice(NUMBERS)) + lines[at][number.end():]
        elif kind == 6:
            quoted = list(re.finditer(r'"[^"]*"', lines[at]))
            name = rng.choice(NAMES).encode("utf-8", "backslashreplace")
            escaped = "".join(chr(b) if 32 <= b < 127 and chr(b) not in '"\\' else f"\\x{b:02x}" for b in name)
            if quoted:
                place = rng.choice(quoted)
                lines[at] = lines[at][:place.start()] + f'"{escaped}"' + lines[at][place.end():]
        else:
            words = lines[at].split(" ")
            donor = lines[rng.randrange(len(lines))].split(" ")
            words[rng.randrange(len(words))] = rng.choice(donor)
            lines[at] = " ".join(words)
    text = "\n".join(lines)
    if rng.random() < 0.05:
        text = text.replace("[", deep(rng).replace("]", ""), 1)
    return text


def mutate_bytes(data, rng):
    data = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 4, 16])):
        if not data:
            break
        at = rng.randrange(len(data))
        kind = rng.randrange(6)
        if kind == 0:
            data[at] = rng.randrange(256)
        elif kind == 1:
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 2:
            del data[at:at + rng.choice([1, 2, 8, 64])]
        elif kind == 3:
            begin = rng.randrange(len(data))
            data[at:at] = data[begin:begin + rng.choice([1, 2, 8, 64])]
        elif kind == 4:
            data[at:at + 4] = rng.choice([b"\xff" * 4, b"\x00" * 4, b"\x7f\xff\xff\xff", b"\xff\xff\xff\x7f"])
        else:
            data[at:at] = bytes(rng.randrange(256) for _ in range(rng.choice([1, 3])))
    if rng.random() < 0.1:
        del data[rng.randrange(len(data) + 1):]
    return bytes(data)


def is_json(data):
    try:
        json.loads(data)
    except (ValueError, RecursionError):
        return False
    return True


def mutate_zip(data, rng):
    """Damages records and repacks them with valid checksums, so that the zip reader accepts them."""
    if rng.random() < 0.15:
        return mutate_bytes(data, rng)
    records = {}
    with zipfile.ZipFile(io.BytesIO(data)) as source:
        for name in source.namelist():
            records[name] = source.read(name)
    inner = [name for name in records if records[name]]
    chosen = [name for name in inner if re.search(r"\.(pkl|py|json|debug_pkl)$", name)] or inner
    for _ in range(rng.choice([1, 1, 2])):
        name = rng.choice(chosen if rng.random() < 0.9 else inner)
        kind = rng.randrange(12)
        if kind == 0:
            records.pop(name, None)
        elif name not in records:
            continue
        elif name.endswith(".json") and rng.random() < 0.8 and is_json(records[name]):
            records[name] = mutate_json(records[name].decode(), rng).encode("utf-8", "surrogatepass")
        elif name.endswith(".py") and rng.random() < 0.7:
            records[name] = mutate_text(records[name].decode("latin1"), rng).encode()
        else:
            records[name] = mutate_bytes(records[name], rng)
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED if rng.random() < 0.95 else zipfile.ZIP_DEFLATED) as packed:
        for name, content in records.items():
            packed.writestr(name, content)
    return out.getvalue()


def mutate(path, rng):
    """Returns a mutation of the valid file at `path`."""
    data = path.read_bytes()
    if path.suffix in (".pt", ".pt2"):
        return mutate_zip(data, rng)
    if rng.random() < 0.2:
        return mutate_bytes(data, rng)
    if path.suffix == ".gz":
        return gzip.compress(mutate_json(gzip.decompress(data).decode(), rng).encode("utf-8", "surrogatepass"))
    text = data.decode()
    return (mutate_json if path.suffix == ".json" else mutate_text)(text, rng).encode("utf-8", "surrogatepass")


def write_programs(folder):
    """Saves small programs as TorchScript and as torch.export archives."""
    import torch

    class Mixed(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first = torch.nn.Linear(8, 32)
            self.norm = torch.nn.BatchNorm1d(32)
            self.last = torch.nn.Linear(32, 4)
            self.register_buffer("order", torch.arange(32))

        def forward(self, x):
            y = torch.relu(self.norm(self.first(x)))[:, self.order]
            return self.last(torch.cat([y[:, :16], y[:, 16:] * 2], 1)).softmax(-1)

    class Branches(torch.nn.Module):
        def forward(self, x, steps: int = 3):
            parts = []
            for i in range(steps):
                parts.append(x * i if i % 2 == 0 else x + 1)
            return {"sum": torch.stack(parts).sum(0), "first": parts[0]}

    x = torch.zeros(4, 8)
    model = Mixed().eval()
    torch.jit.trace(model, x).save(folder / "traced.pt")
    torch.jit.script(Branches()).save(folder / "scripted.pt")
    rows = torch.export.Dim("rows", min=2, max=64)
    torch.export.save(torch.export.export(model, (x,), dynamic_shapes=({0: rows},)), folder / "net.pt2")


RULES = "aten::mm: m k, k n -> m n; linear self | mat2\naten::relu: pointwise; monotone self\n" \
        "aten::sum: reduction sum\naten::glu: *a (two x)@dim *b -> *a x *b; two whole\n" \
        "aten::addmm: +{m n}, m k, k n -> m n; linear self mat1 | self mat2\n"
PATTERNS = "rule addmm\n%p = aten::mm(self=%x, mat2=%w)\n%y = aten::add.Tensor(self=%p, other=%b)\nreturn %y\n=>\n" \
           "%y = aten::addmm(self=%b, mat1=%x, mat2=%w)\nreturn %y\n"
COLORS = {"nodes": {"n1": 2.5, "n2": 1, "%3": 7}, "title": "mine", "unit": "seconds"}
MANIFEST = {"version": 1, "name": "aten::add_Tensor", "key": "k", "identity": "some compiler", "sha256": "00",
            "verdicts": {"CPU": "equal"}}
IOPDDL = {"problem": {"name": "small",
                      "nodes": {"intervals": [[0, 2], [1, 3], [2, 4]], "costs": [[1, 2], [3, 1], [0, 5]],
                                "usages": [[4, 2], [1, 1], [2, 8]]},
                      "edges": {"nodes": [[0, 1], [1, 2]], "costs": [[0, 1, 2, 3], [5, 0, 0, 5]]}, "usage_limit": 9}}


def make_good(folder, run):
    """Writes valid inputs for every reader into `folder`; returns files by reader name."""
    graphs = []
    for kind, options in (("train", ("--device", "cuda")), ("infer", ("--device", "cpu"))):
        graph = folder / f"{kind}.sg"
        run("capture", "lstm_lm", "--batch", "2", "--seq", "3", "--mode", kind, *options, "-o", graph)
        graphs.append(graph)
    for i, path in enumerate(sorted([*ROOT.glob("tests/passes/*/*.sg"), *ROOT.glob("tests/golden/ir/*.sg")])[::5]):
        copy = folder / f"{i}-{path.name}"
        copy.write_text(path.read_text().split("\n====")[0])
        graphs.append(copy)
    for graph in graphs[:6]:
        document = run("capture", graph, "--json")
        if document.startswith("{"):
            copy = folder / f"{graph.stem}-graph.json"
            copy.write_text(document)
    train = graphs[0]
    run("profile", train, "-o", folder / "report", "--export", "nodes-csv")
    run("shard", train, "--mesh", "2", "--time-limit", "1", "--export", folder / "assignment.json")
    run("shard", "--problem", folder / "assignment.json", "--time-limit", "1", "-o", folder / "solution.json")
    run("shard", train, "--mesh", "2", "--time-limit", "1", "-o", folder / "sharded")
    run("check", folder / "baseline.json", train, "--spec", "h100", "--update")
    run("profile", train, "--spec", "h100", "-o", folder / "traced", "--export", "trace")
    trace = (folder / "traced/trace.json").read_bytes()
    (folder / "trace.json.gz").write_bytes(gzip.compress(trace))
    for name, content in (("colors.json", json.dumps(COLORS)), ("rules.txt", RULES), ("patterns.txt", PATTERNS),
                          ("manifest.json", json.dumps(MANIFEST)), ("iopddl.json", json.dumps(IOPDDL)),
                          ("h100.json", (ROOT / "profiler/time/devices/h100.json").read_text()),
                          ("links.json", (ROOT / "profiler/communication/interconnects/h100.json").read_text())):
        (folder / name).write_text(content)
    write_programs(folder)
    return good_in(folder)


def good_in(folder):
    """Returns the files written by make_good."""
    good = {"graph": [folder / "train.sg", *sorted(set(folder.glob("*.sg")) - {folder / "train.sg"})],
            "graph_json": sorted(folder.glob("*-graph.json"))}
    one = {"profile": "report/profile.json", "device": "h100.json", "interconnect": "links.json", "rules": "rules.txt",
           "pattern": "patterns.txt", "color_json": "colors.json", "color_csv": "report/nodes.csv",
           "manifest": "manifest.json", "exported": "net.pt2", "solution": "solution.json",
           "layouts": "sharded/layouts.json", "baseline": "baseline.json"}
    good |= {reader: [folder / name] for reader, name in one.items()}
    good["problem"] = [folder / "assignment.json", folder / "iopddl.json"]
    good["device_trace"] = [folder / "traced/trace.json", folder / "trace.json.gz"]
    good["torchscript"] = [folder / "traced.pt", folder / "scripted.pt"]
    return good


GRAPH_COMMANDS = [
    "capture FILE", "capture FILE --verify", "capture FILE --json", "profile FILE", "profile FILE -o OUT",
    "profile FILE --allocator expandable_segments:True --memory 1KB --spec h100",
    "profile FILE --allocator max_split_size_mb:64 --spec a100 --json",
    "profile FILE -o OUT --export svg,dot,nodes-csv,storages-csv,trace,snapshot,model-explorer",
    "checkpoint FILE --pareto", "checkpoint FILE --bytes 1MB --cost time --spec h100", "draw FILE -o OUT/x.html",
    "draw FILE -o OUT/x.svg", "draw FILE -o OUT/x.dot", "draw FILE", "compare FILE GOOD --nodes", "compare FILE GOOD",
    "compare GOOD FILE -o OUT/x.html", "opt FILE --pass functionalize,dce",
    "opt FILE --pass decompose,cse,canonicalize",
    "opt FILE --pass const-fold,merge-constants", "opt FILE --pass collapse", "opt FILE --pass shape-prop",
    "opt FILE --pass fuse-groups,find-repeats,partition", "opt FILE --pass reinplace,free-at-last-use,split-bias",
    "opt FILE --pass checkpoint{policy=optimal;bytes=1MB}", "emit FILE -o OUT/code",
    "shard FILE --mesh 2 --time-limit 1", "profile FILE --what-if dtype=bf16,zero=1,ranks=8"]
COMMANDS = {
    "graph": GRAPH_COMMANDS,
    "graph_json": GRAPH_COMMANDS[:12],
    "profile": ["compare FILE GOOD", "compare GOOD FILE --json", "compare FILE GOOD -o OUT/x.html"],
    "device": ["profile GOOD --spec FILE", "checkpoint GOOD --pareto --cost time --spec FILE", "shard GOOD --mesh 2 "
               "--time-limit 1 --spec FILE", "profile GOOD --spec FILE -o OUT"],
    "interconnect": ["profile GOOD --interconnect FILE", "shard GOOD --mesh 2 --time-limit 1 --interconnect FILE"],
    "rules": ["shard GOOD --mesh 2 --time-limit 1 --rules FILE"],
    "problem": ["shard --problem FILE --time-limit 2 -o OUT/solution.json"],
    "solution": ["shard --problem INPUTS/assignment.json --solution FILE --json"],
    "layouts": ["shard GOOD --mesh 2 --time-limit 1 --solution FILE"],
    "baseline": ["check FILE GOOD", "check FILE GOOD --json"],
    "device_trace": ["calibrate --trace FILE -o OUT/x.json", "compare GOOD FILE"],
    "pattern": ["opt GOOD --pass rewrite{file=FILE}"],
    "color_json": ["draw GOOD --color FILE -o OUT/x.svg", "draw GOOD --color FILE -o OUT/x.html"],
    "color_csv": ["draw GOOD --color FILE:flops -o OUT/x.dot", "draw GOOD --color FILE:bytes_read"],
    "manifest": ["list kernels --verify --dir DIR", "list kernels --dir DIR --json"],
    "torchscript": ["capture FILE --input f32[4,8]", "profile FILE --input f32[4,8]",
                    "capture FILE --input f32[4,8] --mode train -o OUT/x.sg"],
    "exported": ["capture FILE", "profile FILE --input f32[8,8]", "capture FILE --mode train"],
}


def command(reader, rng):
    return rng.choice(COMMANDS[reader])


def generator(seed, number):
    return random.Random(f"{seed}/{number}")
