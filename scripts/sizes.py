"""Finds C++ files and functions that are too long; scripts/lint.py --sizes prints what it finds.

The limits stand here and nowhere else. A file that is too long is cut at a seam, a concept with a name of its own.
Where it repeats itself, it is made shorter. A function is counted from the first line of its signature to its closing
brace, with lambdas and local classes. A table (`= {` or `return {`) is data and a raw string is text: neither counts.
A lambda in a table is a function of its own. What a program writes is not checked (GENERATED).
"""

import re

import cases
import prose

MOST_LINES_OF_FILE = 450
MOST_LINES_OF_FUNCTION = 80
SUFFIXES = (".h", ".cpp", ".cu", ".inc")
GENERATED = {"codegen/cpp_operators.inc"}  # scripts/make_cpp_operators.py

RAW_STRING = re.compile(r'R"([^(\s]*)\(.*?\)\1"', re.S)
# What may hold a brace that opens nothing; preprocessor lines among it.
NO_CODE = re.compile(RAW_STRING.pattern + r'|"(?:\\.|[^"\\\n])*"|(?<![0-9A-Fa-f])\'(?:\\.|[^\'\\\n])*\'|/\*.*?\*/|'
                     r'//[^\n]*|^[ \t]*#(?:\\\n|[^\n])*', re.S | re.M)
# What stands before the brace of a body: a parameter list or a lambda's capture, and what may follow them. clang-format
# puts a space before this brace, and none before that of a member's initialiser.
BODY = re.compile(r"[)\]]\s*(?:(?:const|noexcept|override|final|mutable|&&?|try)\s*)*"
                  r"(?:(?:->|requires|:)[^;]*)?(?<=\s)$")  # fmt: skip
SCOPE = re.compile(r"(?:^|[\s>])(?:namespace|extern|class|struct|union)\b")
TABLE = re.compile(r"(?:=|\breturn)\s*$")


def functions(text):
    """The first line of each function and the number of its lines; functions that lie in another count for that one."""
    code = NO_CODE.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)
    raw = [(match.start(), match.end()) for match in RAW_STRING.finditer(text)]
    within_text = {line for start, end in raw
                   for line in range(text.count("\n", 0, start) + 1, text.count("\n", 0, end))}  # fmt: skip
    line, last = 0, 0  # of the place, counted from 0
    opened = []  # for each open brace: its kind, the line of the declaration, its own line, lines of tables within
    begin = 0  # of what is being declared
    for match in re.finditer(r"[{};]", code):
        place = match.start()
        line += code.count("\n", last, place)
        last = place
        # In an initialiser's braces everything still belongs to the declaration around.
        keeps = any(kind == "data" for kind, *_ in opened)
        if match[0] == "{":
            head = code[begin:place]
            around = opened[-1][0] if opened else "scope"
            declares = around in ("scope", "table")
            if declares and BODY.search(head):
                kind = "body"
            elif around == "table" or TABLE.search(head):
                kind = "table"
            elif declares:
                kind = "scope" if SCOPE.search(head) else "data"
            else:
                kind = "block"
            opened.append((kind, line - head.lstrip().count("\n"), line, []))
            keeps = keeps or kind == "data"
        elif match[0] == "}" and opened:
            kind, declared, first, tables = opened.pop()
            keeps = keeps or kind == "data"
            if kind == "body":
                texts = sum(number in within_text for number in range(declared, line))
                yield declared + 1, line - declared + 1 - sum(tables) - texts
            elif kind == "table" and opened and opened[-1][0] != "table":
                for kind, _, _, lines in reversed(opened):
                    if kind == "body":
                        lines.append(max(0, line - first - 1))
                        break
        if not keeps:
            begin = place + 1


def findings(text):
    """Pairs of a line and what is wrong there, of one file."""
    lines = text.count("\n")
    if lines > MOST_LINES_OF_FILE:
        yield 1, f"a file of {lines} lines; {MOST_LINES_OF_FILE} are the most"
    for line, length in functions(text):
        if length > MOST_LINES_OF_FUNCTION:
            yield line, f"a function of {length} lines; {MOST_LINES_OF_FUNCTION} are the most"


def check(root, wanted):
    """Prints what is wrong with the files below `wanted` (all, if it is empty) and returns whether anything is."""
    names = [name for name in prose.files(root, wanted, SUFFIXES) if str(name) not in GENERATED]
    found = [f"{name}:{line}: {what}" for name in names for line, what in findings((root / name).read_text())]
    print("\n".join([*found, f"sizes: {len(names)} files, {len(found)} findings"]))
    return bool(found)


def lines_of(number):
    return "  f();\n" * number


LONG = lines_of(MOST_LINES_OF_FUNCTION - 1)  # one too many, with the lines around it
RAW = 'f(R"(\n' + "}\n" * MOST_LINES_OF_FUNCTION + ')");\n'
# Each must be refused once: the text of a C++ file.
BAD = {
    "a file": "\n" * (MOST_LINES_OF_FILE + 1),
    "a function": f"int f(int a) {{\n{LONG}}}\n",
    "one in a namespace": f"namespace a {{\nnamespace {{\nint f() {{\n{LONG}}}\n}}\n}}\n",
    "a member": f"class A : B<int(int)> {{\n public:\n  int f() const override {{\n{LONG}}}\n}};\n",
    "a constructor": f"A::A(int a)\n    : a_{{a}}, b_(a) {{\n{LONG}}}\n",
    "a trailing return type": f"auto f() -> std::vector<int> {{\n{LONG}}}\n",
    "a template": f"template <class T>\nvoid f() {{\n{lines_of(MOST_LINES_OF_FUNCTION - 2)}}}\n",
    "a result of class type": f"struct A f(int a) {{\n{LONG}}}\n",
    "a test": f'TEST(A, B) {{\n  f("}}", \'}}\');  // }}\n{LONG}}}\n',
    "a lambda of a constant": f"const int kA = [] {{\n{LONG}}}();\n",
    "a lambda in a table": f"const Row kRows[] = {{\n    {{1, [] {{\n{LONG}     }}}},\n}};\n",
    "a lambda in a function's table":
        f"void f() {{\n  const Row rows[] = {{\n    {{1, [] {{\n{LONG}     }}}},\n  }};\n}}\n",
    "code beside a table": f"void f() {{\n  const int rows[] = {{\n    1,\n  }};\n{LONG}}}\n",
    "lambdas within": f"void f() {{\n  g([&] {{\n{LONG}  }});\n}}\n",
    "after another": f"int a[] = {{1, 2}};\nint f() {{ return 1; }}\nint g() {{\n{LONG}}}\n",
}
GOOD = {
    "a full file": "\n" * MOST_LINES_OF_FILE,
    "a full function": f"int f() {{\n{lines_of(MOST_LINES_OF_FUNCTION - 2)}}}\n",
    "many functions": f"int f() {{\n{lines_of(60)}}}\n" * 5,
    "a large class": f"class A {{\n{lines_of(200)}}};\n",
    "a namespace": f"namespace a {{\n{lines_of(200)}}}\n",
    "a table": "constexpr Row kRows[] = {\n" + "    {f(1), 2},\n" * 200 + "};\n",
    "a table of calls": "const std::vector<Row> kRows{\n" + "    row([](int a) { return a; }),\n" * 200 + "};\n",
    "a function's table": "Rows f() {\n  return {\n" + "      {1, 2},\n" * 200 + "  };\n}\n",
    "text": f"void f() {{\n{RAW}}}\n",
}


def self_test():
    return cases.prove("sizes", {title: ("ir/a.cpp", text) for title, text in BAD.items()},
                       {title: ("ir/a.cpp", text) for title, text in GOOD.items()},
                       lambda _, name, text: {name: text}, lambda root, name: findings((root / name).read_text()),
                       lambda number: number == 1)
