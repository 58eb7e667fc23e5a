"""Finds comments and documents that take a second reading; scripts/lint.py --prose prints what it finds.

The rules:

- a sentence has at most 25 words, and none begins with "Of";
- no comment cites the file that it stands in;
- files and folders of this project that are cited exist.

They hold for comments in C++ and Python, docstrings and Markdown. A line of a comment is an example, not prose, where
it is indented by four spaces or more, or where spaces align columns. Inline code and a link count as one word each. A
sentence ends at a full stop, question mark or exclamation mark. An empty line, an item of a list, a heading or an
example ends it, too.
"""

import ast
import dataclasses
import io
import pathlib
import re
import subprocess
import tokenize

import cases

MOST_WORDS = 25
SUFFIXES = (".h", ".cpp", ".cu", ".py", ".pyi", ".md")

# Where a `//` begins a comment: what may hold one otherwise comes first.
CPP_TOKEN = re.compile(r'R"([^(\s]*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|'
                       r'(?<![0-9A-Fa-f])\'(?:\\.|[^\'\\\n])*\'|/\*.*?\*/|//[^\n]*', re.S)
CODE = re.compile(r"(`+)(.+?)\1")
LINK = re.compile(r"!?\[([^\]]*)\]\(\s*<?([^)\s>]*)>?[^)]*\)|<(?:https?:|mailto:)[^>]*>|https?://[^\s)>\"]+")
ITEM = re.compile(r"(\s*)(?:[-*+]|\d{1,2}[.)]) +")
# A full stop inside e.g. or before a small letter in "a ... b" ends no sentence.
END = re.compile(r"(?<![. ])[.?!][\"')\]*_]*(?=\s|$)|\.\.\.(?=\s+[A-Z]|$)")
ABBREVIATION = re.compile(r"(?:^|[\s(\"])(?:e\.g|i\.e|cf|vs|etc|resp|approx|no|[A-Z])$")
PATH = re.compile(r"(?<![\w/.:<>{}$~@*-])(?:\./)?"
                  r"((?:[\w.*-]+/)+(?:[\w*-]+(?:\.\w+)+)?|[\w-]+\.(?:h|cpp|py|md))(?![\w/{<*$-])")


@dataclasses.dataclass
class Line:
    number: int
    text: str  # without what marks a comment


def cpp_comments(text):
    """Lists of lines, one for each comment: `//` lines that follow one another in the same column."""
    blocks = []
    last = None  # line and column of the last comment
    for match in CPP_TOKEN.finditer(text):
        if not match[0].startswith("//"):
            continue
        number = text.count("\n", 0, match.start()) + 1
        start = text.rfind("\n", 0, match.start()) + 1
        column = match.start() - start
        alone = not text[start:match.start()].strip()
        line = Line(number, match[0].lstrip("/"))
        if alone and last == (number - 1, column):
            blocks[-1].append(line)
        else:
            blocks.append([line])
        last = (number, column)
    # A space before the first word is the style, not an indent.
    return [[Line(line.number, line.text.removeprefix(" ")) for line in block] for block in blocks]


def python_comments(text):
    """Docstrings, and comments like those of C++."""
    blocks = []
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        if ast.get_docstring(node) is not None:
            value = node.body[0].value
            docstring = value.value.replace("\n" + " " * value.col_offset, "\n").splitlines()
            blocks.append([Line(value.lineno + index, line) for index, line in enumerate(docstring)])
    last = None
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type != tokenize.COMMENT or token.string.startswith(("#!", "# type:", "# noqa")):
            continue
        number, column = token.start
        line = Line(number, token.string.lstrip("#").removeprefix(" "))
        if last == (number - 1, column) and not token.line[:column].strip():
            blocks[-1].append(line)
        else:
            blocks.append([line])
        last = (number, column)
    return blocks


def markdown_text(text):
    """One block: without front matter, fenced code, tables and HTML."""
    block = []
    fence = None
    html = False
    for number, line in enumerate(text.splitlines(), 1):
        mark = re.match(r"\s*(```+|~~~+)", line)
        if fence:
            fence = None if mark and mark[1].startswith(fence) else fence
            line = ""
        elif mark:
            fence, line = mark[1], ""
        elif number == 1 and line == "---":
            fence, line = "---", ""
        html = bool(line.strip()) and (html or bool(re.match(r"\s*<[a-z!/]", line) and not LINK.match(line.strip())))
        if html or re.match(r"\s*(\||#|:{0,1}-{3,}|!!!|\?\?\?|=== )", line):
            line = ""
        block.append(Line(number, re.sub(r"^\s*> ?", "", line)))
    return [block]


def paragraphs(block):
    """Prose of a block, each a list of lines; examples, tables and empty lines lie between them."""
    current = []
    indent = 0  # of the text of the current list item
    for line in block:
        text = re.sub(r"^-{4,}|-{4,}$", "", line.text.rstrip())
        heading = text != line.text.rstrip()
        item = ITEM.match(text)
        spaces = len(text) - len(text.lstrip())
        if text and not item and spaces == 0 and not current:
            indent = 0
        plain = CODE.sub("x", text.strip())
        prose = bool(text) and (item or spaces < 4 or spaces == indent) and not re.search(r"(?<![.?!:]) {2,}\S", plain)
        if not prose or item or heading:
            if current:
                yield current
            current = []
        if item:
            indent = item.end()
            text = text[item.end():]
        if prose:
            current.append(Line(line.number, text.strip()))
        if heading and current:
            yield current
            current = []
    if current:
        yield current


def sentences(paragraph):
    """Pairs of a sentence and the number of its first line; code and links are one word each."""
    text = " ".join(line.text for line in paragraph)
    starts = []
    place = 0
    for line in paragraph:
        starts.append((place, line.number))
        place += len(line.text) + 1
    # What is put in has the length of what it stands for, so that places stay; \0 is no word.
    text = CODE.sub(lambda match: "x".ljust(len(match[0]), "\0"), text)
    text = LINK.sub(lambda match: (match[1] or "link").ljust(len(match[0]), "\0"), text)
    begin = 0
    for match in [*END.finditer(text), None]:
        if match and ABBREVIATION.search(text[begin:match.start()]):
            continue
        end = match.end() if match else len(text)
        sentence = text[begin:end]
        if sentence.strip():
            first = begin + len(sentence) - len(sentence.lstrip())
            number = max(line for start, line in starts if start <= first)
            yield sentence.replace("\0", "").strip(" *_\"'("), number
        begin = end


def words(sentence):
    return [word for word in sentence.split() if re.search(r"[^\W_]", word)]


class Tree:
    """The files of the project, to look cited ones up."""

    def __init__(self, root):
        self.root = root
        self.top = {path.name for path in root.iterdir() if path.is_dir() and not path.name.startswith((".", "build"))}

    def cites_itself(self, name, cited):
        return str(name) == cited or (str(name).endswith("/" + cited) and name.name != "README.md")

    def is_missing(self, name, cited):
        """Whether `cited` names a place of this tree that is not there; a README may count from its own folder."""
        first, _, rest = cited.partition("/")
        # Placeholders as in tests/PURPOSE/NAME.sg; files of archives and outputs, often JSON, are none of this tree.
        if re.search(r"(^|/)(?!README)[A-Z_]+[./]", cited) or (cited.endswith(".json") and first != "docs"):
            return False
        if first == "shadowgraph" and rest:
            places = [f"include/{cited}", f"python/{cited}"]
        elif first in self.top and rest:
            places = [cited]
        else:
            return False
        if name.suffix == ".md":
            places.append(f"{name.parent}/{cited}")
        return not any(next(self.root.glob(place.rstrip("/")), None) for place in places)


def findings(tree, name):
    """Pairs of a line and what is wrong there, of one file."""
    text = (tree.root / name).read_text()
    markdown = name.suffix == ".md"
    if markdown:
        blocks = markdown_text(text)
    else:
        blocks = python_comments(text) if name.suffix in (".py", ".pyi") else cpp_comments(text)
    for block in blocks:
        for paragraph in paragraphs(block):
            for sentence, number in sentences(paragraph):
                count = len(words(sentence))
                if count > MOST_WORDS:
                    yield number, f"a sentence of {count} words: {' '.join(sentence.split()[:8])} ..."
                if sentence.startswith("Of "):
                    yield number, f'begins with "Of": {" ".join(sentence.split()[:8])} ...'
            for line in paragraph:
                for cited in PATH.findall(LINK.sub(" ", line.text)):
                    if tree.cites_itself(name, cited):
                        yield line.number, f"cites its own file: {cited}"
                    elif tree.is_missing(name, cited):
                        yield line.number, f"cites what is not there: {cited}"
                for match in LINK.finditer(CODE.sub(" ", line.text)) if markdown else ():
                    target = (match[2] or "").split("#")[0]
                    if target and ":" not in target and not (tree.root / name.parent / target).exists():
                        yield line.number, f"links to what is not there: {target}"


def files(root, wanted, suffixes=SUFFIXES):
    """Tracked and new files of these kinds below `wanted` (all, if it is empty)."""
    command = ["git", "ls-files", "-co", "--exclude-standard", "--", *wanted]
    listed = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout.splitlines()
    return [pathlib.PurePosixPath(name) for name in sorted(listed)
            if name.endswith(suffixes) and (root / name).is_file()]


def check(root, wanted):
    """Prints what is wrong with the files below `wanted` and returns whether anything is."""
    tree = Tree(root)
    names = files(root, wanted)
    found = [f"{name}:{number}: {what}" for name in names for number, what in sorted(findings(tree, name))]
    print("\n".join([*found, f"prose: {len(names)} files, {len(found)} findings"]))
    return bool(found)


LONG = "the word " * 12 + "more"  # 25 words
# Each must be refused once: the text of a file of that name, in a tree that has one header and one document.
BAD = {
    "26 words": ("ir/a.h", f"// One {LONG}.\n"),
    "26 words over two lines": ("ir/a.h", "// One " + LONG.replace(" the word more", "\n// the word more") + ".\n"),
    "26 words after a short sentence": ("ir/a.h", f"// Short. One {LONG} of it.\n"),
    "26 words behind code": ("ir/a.h", f"int a;  // one {LONG} of it\n"),
    "26 words behind a string": ("ir/a.h", f'auto a = "// no";  // one {LONG} of it\n'),
    "26 words in a list": ("ir/a.h", f"// - short\n// - one {LONG} of it\n//   and more\n"),
    "26 words with an abbreviation": ("ir/a.h", "// One, e.g. " + LONG + ".\n"),
    "26 words in a docstring": ("scripts/a.py", f'def a():\n    """One {LONG} of it."""\n'),
    "26 words in a Python comment": ("scripts/a.py", f"# One {LONG} of it.\n"),
    "26 words in Markdown": ("docs/b.md", f"# Title\n\nOne {LONG} of it.\n"),
    "26 words in a Markdown list": ("docs/b.md", f"- one {LONG}\n  of it\n"),
    "Of": ("ir/a.h", "// Of the first result.\n"),
    "Of, second": ("ir/a.h", "// Strides. Of the first result.\n"),
    "its own name": ("ir/a.h", "// a.h has all of it.\n"),
    "its own path": ("ir/a.h", "// See ir/a.h.\n"),
    "a header that is not there": ("ir/a.h", "// See core/fake/b.h.\n"),
    "a public header that is not there": ("ir/a.h", "// See `shadowgraph/b.h`.\n"),
    "a folder that is not there": ("ir/a.h", "// See core/real/ for it.\n"),
    "a document that is not there": ("ir/a.h", "// (docs/b.md)\n"),
    "a link to nowhere": ("docs/b.md", "See [it](c.md#there).\n"),
}
GOOD = {
    "25 words": ("ir/a.h", f"// {LONG}.\n"),
    "two sentences": ("ir/a.h", f"// {LONG}. {LONG}.\n"),
    "a paragraph each": ("ir/a.h", f"// {LONG}\n//\n// {LONG}\n"),
    "a list": ("ir/a.h", f"// - {LONG}\n// - {LONG}\n"),
    "a heading": ("ir/a.h", f"// ---- {LONG}\n// {LONG}\n// ------\n// {LONG}\n"),
    "an example": ("ir/a.h", f"// Like\n//\n//     {LONG} {LONG}\n"),
    "a table": ("ir/a.h", f"// mm      one {LONG}\n// matmul  one {LONG}\n"),
    "columns of members": ("ir/a.h", f"int a;    // {LONG}\nint abc;  // {LONG}\n"),
    "a string": ("ir/a.h", f'auto a = "// {LONG} {LONG}";\nauto b = R"(\n// {LONG} {LONG}\n)";\n'),
    "inline code": ("ir/a.h", f"// {LONG.removesuffix(' more')} `{LONG}`.\n"),
    "signs": ("ir/a.h", f"// {LONG.removesuffix(' more')} + - = < > -> a.\n"),
    "a small of": ("ir/a.h", "int a;  // of the first result\n"),
    "Often": ("ir/a.h", "// Often the first result.\n"),
    "a header of this tree": ("ir/a.h", "// See core/fake/a.h, core/fake/*.h, core/fake/ and docs/a.md.\n"),
    "a header of another": ("ir/a.h", "// See ATen/core/Tensor.h and c10/core/a.h.\n"),
    "another file of its name": ("core/a.h", "// See core/fake/a.h.\n"),
    "its own name in an example": ("scripts/a.py", '"""Does it.\n\n    scripts/a.py --test\n"""\n'),
    "a URL": ("ir/a.h", "// https://github.com/pytorch/pytorch/blob/main/core/b.h\n"),
    "code in Markdown": ("docs/b.md", f"```\n{LONG} {LONG}\n```\n\n| {LONG} | {LONG} |\n"),
    "a link": ("docs/b.md", "See [it](a.md#there) and [this](https://example.com/c.md).\n"),
}


def small_tree(_, name, text):
    return {"core/fake/a.h": "", "docs/a.md": "", "include/shadowgraph/a.h": "", name: text}


def self_test():
    return cases.prove("prose", BAD, GOOD, small_tree,
                       lambda root, name: findings(Tree(root), pathlib.PurePosixPath(name)), lambda number: number == 1)
