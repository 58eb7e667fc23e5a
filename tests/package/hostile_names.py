"""Writes graphs with random hostile names through every writer and looks for names that escaped: a fuzz target.

    python hostile_names.py --seconds 60        random seeds, printed if they find something (`make fuzz`)

Every payload tries to run, declare or address something called canary. Each medium has a check that reads the output as
its reader would: Python's parser, a C++ lexer, HTML, XML, JSON, CSV and Markdown parsers, a terminal.
"""

import argparse
import ast
import contextlib
import csv
import html.parser
import io
import json
import os
import pickletools
import random
import re
import tempfile
import time
import xml.etree.ElementTree

import torch

import shadowgraph as sg
from shadowgraph import _shadowgraph as _C

PAYLOADS = [
    '"""\ncanary()\n"""', "'''\ncanary()\n'''", '";canary();"', "';canary();'", '\\";canary();//', "x\\",
    "\\\ncanary()", "\ncanary()\n#", "\r\ncanary()", "\u2028canary()", "\u0085canary()", "*/canary();/*",
    "??/\ncanary();", '??""canary();', "{canary()}", "{0}{name}%s%n", "${canary()}`canary()`", '")canary()("',
    "]);canary([", "\0canary()", "R\"(\ncanary();", "\x1b[31mcanary", "\x1b]0;canary\x07", "\x9b31mcanary",
    "\u202ecanary\u2066", "\n::error::canary", "::add-mask::canary", " \t::stop-commands::canary", "##[command]canary",
    "##vso[task.setvariable]canary", "@canary", "=canary()", "+canary()", "-canary()", "\t=canary()", "\r=canary()",
    "|canary|", "`canary`", "</script><canary>", "<!--<script>", "<canary x=y>", "<script>canary()</script>",
    '"><canary onload=canary()>', "' onload=canary() '", "&lt;canary&gt;", "&#60;canary>", "]]><canary/>",
    '"];canary[label="', "\\l\\N\\Gcanary", "%0acanary", "../../canary", "/canary", "..", "~canary", "-rf", "getattr",
    "bytearray", "INT_MAX", "M_PI", "NULL", "int64_t", "None", "import", "lambda", "class", "self", "torch",
    "CONSTANTS", "__class__", "run_canary", "canary", "", " ", b"\xff\xfe", b"\xed\xa0\x80", "\U0001f600", "\ufeff",
    "\uffff", "a" * 300]  # fmt: skip

# Words of the program's names, which hostile ones replace.
WORDS = ["Net", "Block", "Linear", "layers", "up", "down", "weight", "bias", "scale", "input0", "recompute", "SOURCE",
         "NOTE", "VALUE"]  # fmt: skip


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(16, 32), torch.nn.Linear(32, 16)
        self.register_buffer("scale", torch.arange(16.0))

    def forward(self, x):
        return self.down(torch.nn.functional.gelu(self.up(x))) * self.scale


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList([Block() for _ in range(2)])

    def forward(self, x):
        for layer in self.layers:
            x = torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False)
        return x + torch.full((100,), 3.0).sum()


def programs():
    """Returns the texts of a training step and of a forward pass, whose names consist of WORDS."""
    step = sg.capture_training_step(Net(), "f32[8,16]", optimizer=torch.optim.SGD, loss=lambda y: y.sum(),
                                    device="cuda")
    forward = sg.capture(Net().eval(), "f32[8,16]")
    for graph in (step, forward):
        graph.set_metadata("other", "VALUE")
        for node in graph:
            if node.target == "aten::addmm":
                node.set_note("NOTE", "VALUE")
    return [re.sub(r'"[^"]*\.py:\d+"', '"SOURCE"', graph.text()) for graph in (step, forward)]


def quoted(text):
    raw = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    return "".join(chr(byte) if chr(byte).isalnum() and byte < 128 else f"\\x{byte:02x}" for byte in raw)


def random_name(random):
    name = random.choice(PAYLOADS)
    if random.random() < 0.3 and isinstance(name, str):
        other = random.choice(PAYLOADS)
        name += other if isinstance(other, str) else "x"
    return name


def hostile(text, random):
    """Returns the graph with a random payload for each word, other words unchanged with a small probability."""
    names = {word: quoted(random_name(random)) if random.random() < 0.8 else word for word in WORDS}
    rename = lambda match: re.sub(r"[A-Za-z]\w*", lambda word: names.get(word[0], word[0]), match[0])  # noqa: E731
    lines = [line if line.startswith(("operator", "shadowgraph")) else re.sub(r'"[^"]*"', rename, line)
             for line in text.split("\n")]  # fmt: skip
    return sg.Graph.parse("\n".join(lines))


# ---- Media. Each check raises AssertionError.


HIDDEN = re.compile(
    r"[^\n\t -~\u00a0-\u2027\u202f-\u2065\u206a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]"
)


def check_visible(text):
    """No control, bidirectional or invalid character, which would steer a terminal or hide code from its reader."""
    hidden = HIDDEN.search(text)
    assert hidden is None, f"{hidden[0]!r} in {text[max(0, hidden.start() - 40) : hidden.end() + 40]!r}"


def check_terminal(text):
    check_visible(text)
    command = re.search(r"^[ \t]*::.*|##\[.*|##vso\[.*", text, re.MULTILINE)
    assert command is None, command[0]


def check_python(text):
    check_visible(text)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call):
            called = getattr(node.func, "id", getattr(node.func, "attr", ""))
            assert called != "canary", f"line {node.lineno}: {text.splitlines()[node.lineno - 1]}"


CPP_TOKEN = re.compile(
    r"""//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1\"|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|.""", re.DOTALL
)


def check_cpp(text):
    check_visible(text)
    assert not re.search(r"\?\?[=/'()!<>-]", text), "a trigraph"
    code = ""
    for token in CPP_TOKEN.finditer(text):
        if token[0].startswith("//"):
            assert not token[0].endswith("\\"), token[0]
        elif not token[0].startswith(("/*", '"', "'", 'R"')):
            code += token[0]
        elif len(token[0]) == 1:
            raise AssertionError(f"unterminated literal: {text[token.start() : token.start() + 80]!r}")
    assert not re.search(r"\bcanary\s*\(", code)


class Tags(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.names = set()

    def handle_starttag(self, tag, attrs):
        self.names.update([tag, *(name for name, _ in attrs)])

    def handle_comment(self, data):
        self.names.update(["canary in a comment"] if "canary" in data else [])

    def handle_data(self, data):
        if self.cdata_elem != "script":
            check_visible(data)


def check_html(text):
    tags = Tags()
    tags.feed(text)
    strange = [name for name in tags.names if "canary" in name or name == "onload"]
    assert not strange, strange


def check_svg(text):
    check_visible(text)
    for element in xml.etree.ElementTree.fromstring(text).iter():
        assert "canary" not in element.tag and not any(name in ("onload", "x:y") for name in element.attrib)


def check_dot(text):
    check_visible(text)
    for table in re.findall(r"label=<\s*(<TABLE.*?</TABLE>)", text, re.DOTALL):
        check_svg(table)
        text = text.replace(table, "")
    assert "canary" not in re.sub(r'"(?:[^"\\]|\\.)*"', "", text, flags=re.DOTALL)
    assert text.count("{") - text.count("\\{") >= 1 and text.rstrip().endswith("}")


def check_json(text):
    json.loads(text)
    check_visible(re.sub(r"[\x7f-\x9f\u2028-\u202e\u2066-\u2069\ufeff\uffff]", "", text))  # not escaped in JSON


def check_csv(text):
    check_visible(text)
    rows = list(csv.reader(io.StringIO(text)))
    for row in rows:
        assert len(row) == len(rows[0]), row
        for cell in row:
            assert not re.match(r"[=+\-@\t\r]", cell) or re.fullmatch(r"-?[\d.e+-]+", cell), cell


def check_markdown(text):
    check_terminal(text)
    assert not re.search(r"<(?!!-- -->)|@\w", text), text
    pipes = {len(re.findall(r"(?<!\\)(?:\\\\)*\|", line)) for line in text.splitlines() if line.startswith("|")}
    assert pipes <= {6, 7}, text


def check_text(text):
    check_visible(text)
    assert "canary" not in text, text


def check_graph(text):
    assert text.isascii() and sg.Graph.parse(text).text() == text
    check_visible(text)


def check_pickle(content):
    names = {code.name for code, _, _ in pickletools.genops(content)}
    strange = names & {"GLOBAL", "STACK_GLOBAL", "REDUCE", "INST", "OBJ"}
    assert not strange, strange


CHECKS = {".py": check_python, ".cpp": check_cpp, ".h": check_cpp, ".html": check_html, ".svg": check_svg,
          ".dot": check_dot, ".json": check_json, ".csv": check_csv, ".sg": check_graph, ".lp": check_text,
          ".mps": check_text, ".args": check_text, ".yaml": check_text, ".txt": check_terminal}  # fmt: skip
BINARY = (".pt", ".et")


def check_file(path):
    with open(path, "rb") as file:
        content = file.read()
    ending = os.path.splitext(path)[1]
    try:
        if ending == ".pickle":
            check_pickle(content)
        elif path.endswith("CMakeLists.txt"):
            check_text(content.decode())
        elif os.path.basename(path) == "schedule.csv":
            check_visible(content.decode())
        elif ending not in BINARY:
            CHECKS[ending](content.decode())
    except (AssertionError, SyntaxError, ValueError, xml.etree.ElementTree.ParseError) as error:
        raise AssertionError(f"{os.path.basename(path)}: {error}") from error


@contextlib.contextmanager
def captured_output():
    """Redirects the file descriptors 1 and 2, to which C++ prints. Yields a list that gets both texts."""
    texts = []
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        before = [os.dup(1), os.dup(2)]
        os.dup2(out.fileno(), 1)
        os.dup2(err.fileno(), 2)
        try:
            yield texts
        finally:
            for number, descriptor in enumerate(before, 1):
                os.dup2(descriptor, number)
                os.close(descriptor)
            for file in (out, err):
                file.seek(0)
                texts.append(file.read().decode())


def run_tool(check, *words):
    with captured_output() as texts:
        code = _C.run_tool(list(words))
    what = "shadowgraph " + " ".join(words)
    try:
        assert code in (0, 1, 4), f"exit code {code}: {texts[1]}"
        check_terminal(texts[1])
        if code != 1:
            check(texts[0])
    except (AssertionError, SyntaxError, ValueError) as error:
        raise AssertionError(f"{what}: {error}") from error
    return code


def check_message(error):
    check_terminal(str(error))


@contextlib.contextmanager
def typed_errors():
    """Writers may refuse names, with a typed error and a message that a terminal can show."""
    try:
        yield
    except _C.Error as error:
        check_message(error)


def write_by_tool(folder, step, forward):
    """Runs all commands on the saved step."""
    graph, other = f"{folder}/step.sg", f"{folder}/forward.sg"
    step.save(graph)
    forward.save(other)
    run_tool(check_terminal, "profile", graph, "--memory", "h100")
    run_tool(check_json, "profile", graph, "--json")
    run_tool(check_terminal, "profile", graph, "-o", f"{folder}/profile", "--export",
             "svg,dot,nodes-csv,storages-csv,trace,snapshot,model-explorer")  # fmt: skip
    run_tool(check_terminal, "compare", graph, other)
    run_tool(check_terminal, "compare", graph, other, "--nodes")
    run_tool(check_terminal, "compare", graph, other, "-o", f"{folder}/compare.html")
    run_tool(check_terminal, "check", f"{folder}/base.json", other, "--update")
    run_tool(check_terminal, "check", f"{folder}/base.json", graph)
    run_tool(check_markdown, "check", f"{folder}/base.json", graph, "--markdown")
    run_tool(check_json, "check", f"{folder}/base.json", graph, "--json")
    run_tool(check_terminal, "draw", graph, "-o", f"{folder}/page.html")
    run_tool(check_dot, "draw", graph, "--all-phases", "--views", "--unfold")
    run_tool(check_graph, "capture", graph)
    run_tool(check_terminal, "capture", graph, "--json", "-o", f"{folder}/step.json")
    run_tool(check_graph, "opt", graph, "--pass", "cse,dce")
    run_tool(check_terminal, "emit", other, "-o", f"{folder}/python", "--lang", "python")
    run_tool(check_terminal, "emit", other, "-o", f"{folder}/cpp")
    run_tool(check_terminal, "checkpoint", graph)
    shard = ("shard", graph, "--mesh", "dp=2,tp=2")
    run_tool(check_terminal, *shard, "-o", f"{folder}/shard", "--emit-python", f"{folder}/layouts.py", "--dot",
             f"{folder}/shard.dot", "--export", f"{folder}/problem.json")  # fmt: skip
    run_tool(check_json, *shard, "--json")
    run_tool(check_terminal, *shard, "--export", f"{folder}/problem.lp", "--format", "lp")
    pipeline = ("pipeline", graph, "--ranks", "2", "--microbatches", "2")
    run_tool(check_terminal, *pipeline, "-o", f"{folder}/pipeline", "--chakra", f"{folder}/chakra")
    run_tool(check_json, *pipeline, "--json")
    plan = ("plan", graph, "--devices", "2xh100", "--samples-per-step", "16", "--micro-batch", "8")
    run_tool(check_terminal, *plan, "-o", f"{folder}/plan", "--chakra")


def write_by_python(folder, step, forward):
    for graph in (step, forward):
        for text in (str(graph), repr(graph), graph.tabular(), *map(repr, graph.regions), *map(repr, list(graph)[:8])):
            check_terminal(text)
        check_json(graph.json())
        check_terminal(str(graph.difference(step)))
        check_html(graph._repr_html_())
        for node in graph:  # strings with invalid UTF-8 are readable
            assert node.module is not None and node.source is not None and node.args is not None
        assert all(region.name is not None and region.class_name is not None for region in graph.regions)
        assert graph.metadata
    report = sg.profile(step, spec="h100")
    for text in (str(report), repr(report), *(repr(node) for node in report.nodes)):
        check_terminal(text)
    check_html(report._repr_html_())
    for autograd in (False, True):
        forward.emit_python(f"{folder}/emitted{autograd}", autograd=autograd)
        forward.emit_cpp(f"{folder}/emitted{autograd}", autograd=autograd)
    forward.emit_cpp(f"{folder}/kernels", kernels=True)
    step.emit_python(f"{folder}/step_code")
    step.emit_cpp(f"{folder}/step_code")
    sharding = sg.shard(step, "dp=2,tp=2")
    check_python(sharding.to_python())
    for text in (str(sharding), repr(sharding)):
        check_terminal(text)
    with typed_errors():
        check_python(sg.to_fx(forward).code)
    try:
        forward.compile()(torch.zeros(1))
    except _C.ReplayError as error:
        check_message(error)


def run_round(texts, seed, folder):
    """Checks one pair of graphs. Raises AssertionError for the first name that escapes."""
    source = random.Random(seed)
    step, forward = (hostile(text, source) for text in texts)
    inside = os.path.join(folder, "a", "b")
    os.makedirs(inside)
    before = os.getcwd()
    os.chdir(inside)
    try:
        write_by_python(inside, step, forward)
        write_by_tool(inside, step, forward)
    finally:
        os.chdir(before)
    assert os.listdir(folder) == ["a"] and os.listdir(os.path.join(folder, "a")) == ["b"], "a file lies outside"
    for path, _, files in os.walk(inside):
        for file in files:
            check_terminal(file)
            check_file(os.path.join(path, file))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, help="run only this seed")
    arguments = parser.parse_args()
    texts, end, rounds = programs(), time.monotonic() + arguments.seconds, 0
    while time.monotonic() < end:
        seed = arguments.seed if arguments.seed is not None else random.SystemRandom().getrandbits(32)
        print(f"seed {seed}", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            run_round(texts, seed, folder)
        rounds += 1
        if arguments.seed is not None:
            break
    print(f"{rounds} rounds")


if __name__ == "__main__":
    main()
