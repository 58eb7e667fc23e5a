#!/usr/bin/env python3
"""Generates the table of C++ functions and methods that call each ATen operator, for codegen/cpp_call.cpp (by CMake).

    make_cpp_operators.py INCLUDE_DIRECTORY_OF_TORCH OUTPUT

Schemas do not contain the C++ form, so it is read from the headers of ATen. A row has the operator, the form, the
header in ATen/ops, and a bit mask. Forms are f: at::name(...), m: tensor.name(...), and o:
at::_ops::name_overload::call(...). Bit n is set if no other overload accepts n arguments, so that the remaining ones,
which have defaults, can be omitted.
"""

import collections
import pathlib
import re
import sys

OPERATOR = re.compile(
    r'static constexpr const char\* name = "([^"]+)";\s*'
    r'static constexpr const char\* overload_name = "([^"]*)";'
)
FUNCTION = re.compile(r"// (aten::[^\n(]+)\([^\n]*\n(?:TORCH_API )?inline [^\n]*? (\w+)\(([^\n]*)\) \{")
METHOD = re.compile(r"// (aten::[^\n(]+)\([^\n]*\ninline [^\n]*? Tensor::(\w+)\(([^\n]*)\) const \{")

# (class, pattern of C++ types). Arguments of different classes do not convert to each other.
CLASSES = [
    ("list", r"List|ArrayRef|array<"),
    ("dtype", r"ScalarType|TensorOptions"),
    ("number", r"Scalar|int64_t|double|bool|SymInt"),
    ("tensor", r"Tensor\b"),
    ("text", r"string_view|Dimname"),
]


class Signature:
    def __init__(self, parameters, method):
        self.types, self.required = [], 0
        depth, part, parts = 0, "", []
        for character in parameters + ",":
            if character == "," and depth == 0:
                parts += [part.strip()] if part.strip() else []
                part = ""
                continue
            depth += {"<": 1, "(": 1, "{": 1, ">": -1, ")": -1, "}": -1}.get(character, 0)
            part += character
        for part in parts:
            declared = part.split("=")[0]
            found = [name for name, pattern in CLASSES if re.search(pattern, declared)]
            self.types.append(found[0] if found else declared.rsplit(" ", 1)[0])
            self.required += "=" not in part
        self.method = method

    def takes(self, other, count):
        """Returns True if a call with the first `count` arguments of `other` could resolve to this overload."""
        return self.required <= count <= len(self.types) and self.types[:count] == other.types[:count]


def defaults_of_methods(include):
    """Returns {(name, parameters without defaults): number of required ones} of the methods in TensorBody.h."""
    text = (include / "ATen/core/TensorBody.h").read_text()
    found = {}
    for name, parameters in re.findall(r"^  \S[^\n(]*? (\w+)\(([^\n]*)\) const;", text, re.M):
        signature = Signature(parameters, True)
        plain = re.sub(r"=(\{\}|::std::nullopt|[^,]+)", "", parameters)
        found[name, plain] = signature.required
    return found


def rows(include):
    operators = {}
    for path in sorted((include / "ATen/ops").glob("*_ops.h")):
        for name, overload in OPERATOR.findall(path.read_text()):
            operators[name + ("." + overload if overload else "")] = path.name.removesuffix("_ops.h")
    forms = {"f": collections.defaultdict(list), "m": collections.defaultdict(list)}
    for path in sorted((include / "ATen/ops").glob("*.h")):
        if path.name.endswith(("_ops.h", "_native.h", "_dispatch.h")):
            continue
        for operator, name, parameters in FUNCTION.findall(path.read_text()):
            forms["f"][name].append((operator, Signature(parameters, False)))
    required = defaults_of_methods(include)
    for operator, name, parameters in METHOD.findall((include / "ATen/core/TensorBody.h").read_text()):
        signature = Signature(parameters, True)
        signature.required = required.get((name, parameters), signature.required)
        forms["m"][name].append((operator, signature))

    by_operator = collections.defaultdict(dict)
    for form, names in forms.items():
        for name, overloads in names.items():
            for operator, signature in overloads:
                by_operator[operator].setdefault((form, name), signature)
    for operator, header in sorted(operators.items()):
        base = operator.removeprefix("aten::").split(".")[0]
        in_place = base.endswith("_") and not base.endswith("__")
        wanted = [("m", base), ("f", base)] if in_place else [("f", base), ("m", base)]
        wanted.append(("f", base + "_out"))
        chosen = next((form for form in wanted if form in by_operator[operator]), None)
        if chosen is None:
            yield operator, "o", header, 0
            continue
        signature = by_operator[operator][chosen]
        others = [other for name, other in forms[chosen[0]][chosen[1]] if name != operator]
        mask = 0
        for count in range(signature.required, len(signature.types) + 1):
            if not any(other.takes(signature, count) for other in others):
                mask |= 1 << count
        yield operator, chosen[0], header, mask | 1 << len(signature.types) if len(signature.types) < 32 else 0


def text(include):
    lines = ["// Generated by scripts/make_cpp_operators.py from the headers of ATen.\n"]
    for operator, form, header, mask in rows(include):
        base = operator.removeprefix("aten::").split(".")[0]
        stem = "" if header in (base, base.removesuffix("_")) and header == header_of(base) else header
        lines.append(f"{{\"{operator}\", '{form}', {mask:#x}, \"{stem}\"}},\n")
    return "".join(lines)


def header_of(base):
    return base[:-1] if base.endswith("_") and not base.endswith("__") else base


def main():
    include, output = map(pathlib.Path, sys.argv[1:])
    output.write_text(text(include))


if __name__ == "__main__":
    main()
