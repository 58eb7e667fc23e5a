#!/usr/bin/env python3
"""Checks references in the documentation, without network access.

    scripts/check_docs.py            prints findings as file:line; fails if there are any
    scripts/check_docs.py --test     checks that each kind of mistake is found

- Links in Markdown files refer to existing files of the repository and headings in them.
- The navigation of mkdocs.yml contains exactly the pages in docs/.
- Lists, tables and code blocks are separated from text by an empty line, as the site generator requires.
- Paths in backticks in docs/, README.md, CONTRIBUTING.md and tests/documents.md exist if their first folder does.
  `<name>` and capital words match any name, and `shadowgraph/NAME.h` is a public header. build/ and out/ are not
  checked.
- `docs/...` in sources, scripts and tests exists, with its #heading.
- `shadowgraph VERB` in examples is a verb of the command line tool.
- Code blocks name their language. Output is `text`, without a title, in a section `##` whose commands
  tests/package/test_docs.py runs; there are no indented blocks, which would not be compared.
- Tests named in tests/documents.md exist: `Suite.Name` of GoogleTest, `test_name` of tests/package/.
"""

import fnmatch
import pathlib
import re
import subprocess
import sys

import cases

ROOT = pathlib.Path(__file__).resolve().parent.parent
VERBS = {"profile", "fit", "checkpoint", "shard", "plan", "pipeline", "compare", "check", "draw", "capture", "opt",
         "emit", "list", "operator", "calibrate", "completion", "VERB"}
LINK = re.compile(r"(?<!\\)!?\[(?:[^\[\]]|\[[^\[\]]*\])*\]\(([^()\s]+)\)")
IMAGE = re.compile(r'<img [^>]*src="([^"]+)"')
SPAN = re.compile(r"`([^`\n]+)`")
PATH = re.compile(r"^[\w.<>*-]+(?:/[\w.<>*{},-]+)+/?$")
# Excludes docs/source of PyTorch.
IN_SOURCE = re.compile(r"(?<![\w/.-])docs/(?:(?!source/)[\w/-]*\w\.(?:md|json|svg|png)(?:#[\w-]+)?|\w+/(?![\w.*]))")
# A shell or Makefile line, an indented example, or inline code; other occurrences are prose.
COMMAND = re.compile(r"^\s*(?:\$ |@)?(?:build/bin/)?shadowgraph ([\w-]+)|`(?:build/bin/)?shadowgraph ([\w-]+)")
TEST_NAME = re.compile(r"[A-Z]\w+\.[A-Z]\w+|test_\w+")
TEST = re.compile(r"^TEST(?:_[FP])?\((\w+),\s+(\w+)\)", re.MULTILINE)
PYTHON_TEST = re.compile(r"^def (test_\w+)\(", re.MULTILINE)
LISTS_TESTS = "tests/documents.md"
LANGUAGES = {"sh", "python", "cpp", "cmake", "json", "text", "ebnf", "formula", "sharding"}
GENERATED = ("build", "out")
# Files with references that do not exist: a bundle, and the test cases of this script.
WITH_EXAMPLES = ("viz/page/dist/", "scripts/check_docs.py")


def slug(heading):
    """Returns the anchor of a heading in Python-Markdown, and in GitHub unless it has punctuation between spaces."""
    heading = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    heading = re.sub(r"[^\w\s-]", "", heading.replace("`", "")).strip().lower()
    return re.sub(r"[-\s]+", "-", heading)


def without_code(lines):
    """Yields (number, line), with empty lines inside fences."""
    fence = None
    for number, line in enumerate(lines, 1):
        mark = re.match(r"\s*(```+|~~~+)", line)
        if mark and (fence is None or line.strip().startswith(fence)):
            fence = mark[1] if fence is None else None
            yield number, ""
        else:
            yield number, "" if fence else line


def anchors(path, known={}):  # noqa: B006  cache
    if path not in known:
        found = {}
        known[path] = set()
        for _, line in without_code(path.read_text().splitlines()):
            if match := re.match(r"#+\s+(.*?)\s*#*$", line):
                name = slug(match[1])
                count = found[name] = found.get(name, -1) + 1
                known[path].add(name if not count else f"{name}_{count}")
    return known[path]


def tracked(root):
    run = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=root, capture_output=True, text=True)
    names = run.stdout.split("\n") if run.returncode == 0 else [str(p.relative_to(root)) for p in root.rglob("*")]
    return sorted(name for name in names if name and (root / name).is_file() and not name.startswith(".venv"))


def no_target(root, page, target):
    """Returns the problem of a link, or None."""
    if re.match(r"[a-z]+:", target):
        return None
    file, _, anchor = target.partition("#")
    path = (page.parent / file) if file else page
    if not path.exists():
        return f"{file} does not exist"
    if root.resolve() not in path.resolve().parents:
        return f"{file} is outside the repository"
    if page.parent == root / "docs" and path.resolve().parent.is_relative_to(root.resolve()) and \
            not path.resolve().is_relative_to((root / "docs").resolve()):
        return f"{file} is not in docs/, so the site does not have it"
    if anchor and path.suffix == ".md" and anchor not in anchors(path):
        return f"{file or page.name} has no heading #{anchor}"
    return None


def no_path(root, files, folders, span):
    """Returns True if inline code is a path that does not exist."""
    span = span.split(" ")[0].rstrip("/").split("#")[0]
    if not PATH.match(span) or "://" in span or "{" in span:
        return False
    if span.startswith("shadowgraph/") and span.endswith(".h"):
        span = "include/" + span
    first = span.split("/")[0]
    if first in GENERATED or not (root / first).is_dir():
        return False
    pattern = re.sub(r"<\w+>|\b[A-Z][A-Z_]{3,}\b(?!\.md)", "*", span)
    if (root / span).exists():
        return False
    return "*" not in pattern or not (fnmatch.filter(files, pattern) or fnmatch.filter(folders, pattern))


def glued(lines):
    """Yields the numbers of lines where a list, table or code block is not separated from text by an empty line."""
    fence, before = False, ""
    for number, line in enumerate(lines, 1):
        mark = line.startswith("```")
        text = before.strip() and not before.startswith(("#", "<"))
        inside = before.startswith(("|", "    ")) or re.match(r"\s*([-*]|\d+\.)\s|\s+\S", before)
        begins = mark or (not inside and re.match(r"\||([-*]|\d+\.)\s", line))
        if not fence and ((text and begins) or (before.startswith("```") and line.strip())):
            yield number
        fence ^= mark
        before = line


def unchecked_output(lines):
    """Yields lines that start a block of unknown language, or of output that no command of the section prints."""
    fence, runs, before = False, False, ""
    for number, line in enumerate(lines, 1):
        if re.match(r"## ", line) and not fence:
            runs = False
        if mark := re.match(r"\s*```(\w*)( title=)?", line):
            fence = not fence
            if fence and mark[1] not in LANGUAGES:
                yield number, f"the code has the language '{mark[1]}', not one of {', '.join(sorted(LANGUAGES))}"
            elif fence and mark[1] == "text" and not mark[2] and not runs:
                yield number, "the output follows no command in its section"
            runs |= fence and mark[1] in ("sh", "python")
        elif not fence and line.startswith("    ") and not before.strip():
            yield number, "an indented block: put code and output into ``` with a language"
        before = line


def tests_in(root, files):
    names = set()
    for name in files:
        if name.startswith("tests/") and name.endswith(".cpp"):
            names |= {f"{suite}.{test}" for suite, test in TEST.findall((root / name).read_text())}
        elif name.startswith("tests/package/") and name.endswith(".py"):
            names |= set(PYTHON_TEST.findall((root / name).read_text()))
    return names


def findings(root):
    files = tracked(root)
    folders = sorted({str(parent) for name in files for parent in pathlib.PurePath(name).parents})
    pages = [name for name in files if name.startswith("docs/") and name.endswith(".md")]
    for name in files:
        path = root / name
        try:
            lines = path.read_text().splitlines()
        except UnicodeDecodeError:
            continue
        prose = dict(without_code(lines)) if name.endswith(".md") else {}
        for number, line in enumerate(lines, 1):
            if name not in pages and not name.startswith(WITH_EXAMPLES):
                for match in IN_SOURCE.finditer(line):
                    file, _, anchor = match[0].partition("#")
                    if not (root / file).exists() or (anchor and anchor not in anchors(root / file)):
                        yield f"{name}:{number}: {match[0]} does not exist"
            if name in (*pages, "README.md", "CONTRIBUTING.md", "Makefile"):
                for match in COMMAND.finditer(line):
                    if match[1] and prose.get(number) and not line.startswith("    "):
                        continue
                    if (verb := match[1] or match[2]) not in VERBS:
                        yield f"{name}:{number}: unknown verb in 'shadowgraph {verb}'"
        if not name.endswith(".md"):
            continue
        if name in pages:
            for number in glued(lines):
                yield f"{name}:{number}: add an empty line before this line"
        if name in (*pages, "README.md"):
            for number, problem in unchecked_output(lines):
                yield f"{name}:{number}: {problem}"
        tests = tests_in(root, files) if name == LISTS_TESTS else ()
        for number, line in without_code(lines):
            for span in SPAN.findall(line) if name == LISTS_TESTS else ():
                if TEST_NAME.fullmatch(span) and span not in tests:
                    yield f"{name}:{number}: test {span} does not exist"
            for target in [*LINK.findall(SPAN.sub(lambda m: " " * len(m[0]), line)), *IMAGE.findall(line)]:
                if problem := no_target(root, path, target):
                    yield f"{name}:{number}: {problem}"
            if name in (*pages, "README.md", "CONTRIBUTING.md", LISTS_TESTS):
                for span in SPAN.findall(line):
                    if no_path(root, files, folders, span):
                        yield f"{name}:{number}: {span} does not exist"
    if (root / "mkdocs.yml").exists():
        named = set(re.findall(r"[\w-]+\.md", (root / "mkdocs.yml").read_text().partition("\nnav:")[2]))
        for name in sorted(named ^ {page.removeprefix("docs/") for page in pages}):
            yield f"mkdocs.yml: {name} is {'not a page in docs/' if name in named else 'missing in the navigation'}"


# Mistakes that must be found: {title: (file, line)}. The tree has one header, and a page with heading "First steps".
BAD = {
    "a link to a missing file": ("docs/index.md", "[x](nowhere.md)"),
    "a link to a missing heading": ("docs/index.md", "[x](#second-steps)"),
    "a link out of the site": ("docs/index.md", "[x](../core/a.h)"),
    "a missing picture": ("README.md", '<img src="docs/pictures/x.svg">'),
    "a path in prose": ("docs/index.md", "see `core/b.h`"),
    "a public header in prose": ("README.md", "see `shadowgraph/b.h`"),
    "a page named in a source": ("core/a.h", "// docs/nowhere.md says more"),
    "a heading named in a source": ("core/a.h", "// docs/index.md#second-steps"),
    "an unknown verb": ("docs/index.md", "\n```sh\nshadowgraph report x\n```"),
    "a page outside the navigation": ("docs/other.md", "# Other"),
    "a list after text": ("docs/index.md", "text\n- one"),
    "a table after code": ("docs/index.md", "\n```sh\ncode\n```\n| a |"),
    "code without a language": ("docs/index.md", "\n```\ncode\n```"),
    "output without a command": ("README.md", "## A\n```sh\nls\n```\n## B\n```text\na\n```"),
    "indented code": ("docs/index.md", "\n    code"),
    "a missing test": ("tests/documents.md", "`Suite.Other`"),
    "a missing Python test": ("tests/documents.md", "`test_other`"),
}
GOOD = {
    "a link to a heading": ("docs/index.md", "[x](index.md#first-steps) and [y](#first-steps)"),
    "a link from the front page": ("README.md", "[x](docs/index.md#first-steps)"),
    "a path in prose": ("docs/index.md", "see `core/a.h`, `core/<name>.h`, `build/x/y.cpp`, `NAME/x.cpp`, `a/b`"),
    "a link in code": ("docs/index.md", "`[x](nowhere.md)`"),
    "a page named in a source": ("core/a.h", "// docs/index.md says more, docs/index.md#first-steps, docs/pictures.md"),
    "a list, a table, code": ("docs/index.md", "text\n\n- one\n  more\n\n| a |\n|---|\n\n```sh\n| code\n```\n\ntx"),
    "output": ("README.md", "## A\n```sh\nls\n```\n\n```text\na\n```"),
    "a verb": ("docs/index.md", "\n```sh\nshadowgraph profile x\n```"),
    "tests": ("tests/documents.md", "`Suite.Name`, `test_name`"),
}


def small_tree(_, name, line):
    tree = {"docs/index.md": "# Index\n## First steps\n", "docs/pictures.md": "", "README.md": "",
            "core/a.h": "", "include/shadowgraph/a.h": "", "tests/documents.md": "",
            "tests/a.cpp": "TEST(Suite, Name) {}\n", "tests/package/a.py": "def test_name():\n",
            "mkdocs.yml": "\nnav:\n  - index.md\n  - pictures.md\n"}
    return {**tree, name: tree.get(name, "") + line + "\n"}


def self_test():
    return cases.prove("check_docs", BAD, GOOD, small_tree, lambda root, _: findings(root))


def main():
    if sys.argv[1:] == ["--test"]:
        sys.exit(self_test())
    found = list(findings(ROOT))
    print("\n".join(found) or "check_docs: all references exist")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
