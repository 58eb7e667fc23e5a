#!/usr/bin/env python3
"""What each public function and class of C++ is in Python.

scripts/python_names.py            writes docs/cpp-in-python.md from scripts/python_names.txt
scripts/python_names.py --check    fails where a public name has no row, or a row no name, or the page is old
scripts/python_names.py --test     proves that it fails so
"""

import dataclasses
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
HEADERS = ROOT / "include" / "shadowgraph"
ROWS, PAGE = ROOT / "scripts" / "python_names.txt", ROOT / "docs" / "cpp-in-python.md"

# Headers are formatted: what begins in the first column is declared in a namespace.
FUNCTION = re.compile(r"(?:[\w:<>,*&\[\] ]|\(auto\))*?[\w>*&\]] ?[ *&](\w+)\(")
CLASS = re.compile(r"(class|struct)(?: SHADOWGRAPH_API)? (\w+)(?: final)?(?: :.*)? \{$")
MEMBER = re.compile(r"  (?!//|friend|explicit|~)(?!.*= (?:default|delete)).*[\w>*&] ?[ *&]\w+\(")
BEFORE = re.compile(r"^template <.*?> (?=\w)|^\[\[nodiscard\]\] |^requires .*?> (?=\w)")
OTHERS = ("//", "#", "}", " ", "class ", "struct ", "enum ", "using ", "namespace ", "extern ", "friend ", "static_",
          "template", "requires")  # fmt: skip
PRINTING = ("to_chrome_trace", "to_csv", "to_json", "to_string", "to_text")


def public_names(text):
    """The functions that a header declares in a namespace, and its classes that have functions."""
    names, inside = set(), None
    text = re.sub(r"\nnamespace internal \{\n.*?\n\}  // namespace internal\n", "\n", text, flags=re.DOTALL)
    for line in text.split("\n"):
        declared = BEFORE.sub("", line)
        if found := CLASS.match(line):
            inside = found
        elif line.startswith("};"):
            inside = None
        elif inside and (MEMBER.match(line) or constructs(inside, line)):
            names.add(inside[2])
        elif declared and not declared.startswith(OTHERS) and not re.search(r"\boperator\W", declared):
            found = FUNCTION.match(declared)
            names.update(found.groups() if found else ())
    return names


def constructs(inside, line):
    return inside[1] == "class" and re.match(rf"  (?:explicit )?{inside[2]}\(", line) and "= delete" not in line


@dataclasses.dataclass
class Row:
    header: str
    names: list[str]
    in_python: list[str]  # "sg.fake", "Graph.find"
    words: str
    has_python: bool


def rows_of(text):
    rows, header = [], None
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip() or line.startswith("#"):
            continue
        if found := re.fullmatch(r"\[(.+)\]", line):
            header = found[1]
            continue
        found = re.fullmatch(r"((?:\w+ )+)([=:-]) (.+)", line)
        if not found or header is None:
            raise SystemExit(f"{ROWS.name}:{number}: a row is `names = Python`, `names : words` or `names - reason`")
        names, kind, words = found[1].split(), found[2], found[3]
        in_python = words.split(", ") if kind == "=" else re.findall(r"`((?:sg\.)?\w[\w.]*)`", words)
        shown = ", ".join(f"`{name}`" for name in in_python) if kind == "=" else words
        rows.append(Row(header, names, in_python, shown, kind != "-"))
    return rows


def page_of(rows):
    """The page: what Python has, without functions that print or write JSON."""
    lines = ["# C++ in Python", "<!-- scripts/python_names.py writes this page from scripts/python_names.txt. -->", "",
             "What public classes and functions of C++ are [from Python](python.md). `sg` is the package. `Graph`,",
             "`Node`, `Value`, `Storage`, `Region`, `Report` and `Sharding` are its classes. Functions that print or",
             "write JSON are left out: Python's objects print, and have `dict()` or `json()`.",
             "`scripts/python_names.txt` names the rest, which Python has not, and why.",
             "", "| header | C++ | Python |", "|---|---|---|"]  # fmt: skip
    before = None
    for row in rows:
        names = [name for name in row.names if name not in PRINTING]
        if not row.has_python or not names:
            continue
        header = "" if row.header == before else f"`shadowgraph/{row.header}`"
        before = row.header
        lines.append(f"| {header} | {', '.join(f'`{name}`' for name in names)} | {row.words} |")
    return "\n".join(lines) + "\n"


def findings(declared, rows, page):
    """What is wrong, a line each. declared: {header: names}."""
    told: dict[str, list[str]] = {}
    for row in rows:
        told.setdefault(row.header, []).extend(row.names)
    for header, names in declared.items():
        for name in sorted(names - set(told.get(header, ()))):
            yield f"shadowgraph/{header}: {name} has no row in scripts/python_names.txt"
    for header, names in told.items():
        for name in names:
            if name not in declared.get(header, ()):
                yield f"scripts/python_names.txt: shadowgraph/{header} declares no function or class {name}"
            if names.count(name) > 1:
                yield f"scripts/python_names.txt: shadowgraph/{header}: {name} has two rows"
    if page != page_of(rows):
        yield "docs/cpp-in-python.md is not current; scripts/python_names.py writes it"


def declared_names():
    found = {str(path.relative_to(HEADERS)): public_names(path.read_text()) for path in sorted(HEADERS.rglob("*.h"))}
    return {header: names for header, names in found.items() if names}


def test():
    header = """
namespace internal {
void hidden(int x);
}  // namespace internal
template <class T>
std::vector<T> first(const T& x,
                     int y);
inline int second() { return 1; }
at::Tensor& third(at::Tensor& x);
bool operator==(const A& a, const B& b);
struct Data {
  int x = 0;
};
class Kept {
 public:
  explicit Kept(int x);
};
struct WithOne : Data {
  static WithOne of(int x);
};
class Ahead;
"""
    assert public_names(header) == {"first", "second", "third", "Kept", "WithOne"}, public_names(header)
    rows = rows_of('[a.h]\nfirst second = sg.fake, Graph.find\nthird - by `Graph.text`\nKept : `sg.fake`, "f32"\n')
    assert [row.in_python for row in rows] == [["sg.fake", "Graph.find"], ["Graph.text"], ["sg.fake"]]
    declared = {"a.h": {"first", "second", "third", "Kept"}}
    assert not list(findings(declared, rows, page_of(rows)))
    fewer, more = declared["a.h"] - {"second"}, declared["a.h"] | {"fourth"}
    for wrong in ({"a.h": fewer}, {"a.h": more}, declared | {"b.h": {"x"}}):
        assert len(list(findings(wrong, rows, page_of(rows)))) == 1, wrong
    assert len(list(findings(declared, rows, ""))) == 1


def main():
    if sys.argv[1:] == ["--test"]:
        return test()
    rows = rows_of(ROWS.read_text())
    if not sys.argv[1:]:
        PAGE.write_text(page_of(rows))
    found = list(findings(declared_names(), rows, PAGE.read_text()))
    print(*found, sep="\n", end="\n" if found else "")
    return len(found) > 0


if __name__ == "__main__":
    sys.exit(main())
