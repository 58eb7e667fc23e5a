#!/usr/bin/env python3
"""Compares emitted Python with C++ bitwise, and tests the command emit.

    check_codegen.py SHADOWGRAPH FOLDER     FOLDER written by make_fixtures (tests/codegen/fixtures)

Every NAME_case.pt there has the C++ results for the graph from which NAME.py was emitted.
"""

import importlib.util
import pathlib
import subprocess
import sys
import tempfile

import torch


def same_bits(a, b):
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    a, b = (t.detach().resolve_conj().resolve_neg().contiguous().cpu() for t in (a, b))
    if a.numel() == 0:
        return True
    a, b = (torch.empty(t.numel(), dtype=t.dtype).copy_(t.reshape(-1)) for t in (a, b))
    return torch.equal(a.view(torch.uint8), b.view(torch.uint8))


def load_module(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def own_storages(tensors):
    """Copies tensors into resizable storages, which tensors loaded from a file do not have; aliases are kept."""
    storages = {}
    result = {}
    for name, tensor in tensors.items():
        old = tensor.untyped_storage()
        if old._cdata not in storages:
            storages[old._cdata] = torch.empty(old.nbytes(), dtype=torch.uint8).untyped_storage().copy_(old)
        alias = torch.empty(0, dtype=tensor.dtype)
        result[name] = alias.set_(storages[old._cdata], tensor.storage_offset(), tensor.shape, tensor.stride())
    return result


def check_case(path):
    case = torch.load(path, weights_only=False)
    tensors = own_storages({key[3:]: tensor for key, tensor in case.items() if key.startswith("in.")})
    module = load_module(path.with_name(path.name.replace("_case.pt", ".py")))
    torch.manual_seed(7)
    outputs = module.forward(tensors)
    wrong = []
    for key, expected in case.items():
        kind, name = key.split(".", 1)
        if kind == "out" and not same_bits(outputs[name], expected):
            wrong.append(f"{path.name}: {name} is\n{outputs[name]}\nnot\n{expected}")
        if kind == "after" and not same_bits(tensors[name], expected):
            wrong.append(f"{path.name}: {name} is left as\n{tensors[name]}\nnot\n{expected}")
    return wrong


def check_tool(tool):
    """Output files and errors of the tool; a failed run leaves no files."""
    wrong = []
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        graph = folder / "net.sg"

        def run(*arguments):
            return subprocess.run([tool, *map(str, arguments)], capture_output=True, text=True, check=False)

        def expect(code, text, *arguments):
            done = run(*arguments)
            if done.returncode != code or text not in done.stdout + done.stderr:
                wrong.append(f"{arguments}: exit {done.returncode}, {done.stdout}{done.stderr}, wanted {code}: {text}")

        expect(0, "nodes", "capture", "resnet18", "--batch", 1, "--device", "cpu", "-o", graph)
        expect(0, "net.cpp", "emit", graph, "-o", folder / "cpp")
        for name in ("net.cpp", "net.h", "CMakeLists.txt"):
            if not (folder / "cpp" / name).is_file():
                wrong.append(f"{name} was not written")
        expect(0, "half.py", "emit", graph, "--lang", "python", "--name", "half", "--only", "output0", "-o",
               folder / "py")
        expect(1, "named 'nothing.*'", "emit", graph, "--only", "nothing.*", "-o", folder / "none")
        expect(1, "no value %99999", "emit", graph, "--only", "%99999", "-o", folder / "none")
        expect(2, "expected cpu", "emit", graph, "--device", "abacus", "-o", folder / "none")
        expect(2, "--lang", "emit", graph, "--lang", "cobol", "-o", folder / "none")
        (folder / "file").write_text("in the way")
        expect(1, "cannot create the folder", "emit", graph, "-o", folder / "file" / "sub")
        text = graph.read_text()
        broken = folder / "broken.sg"
        broken.write_text(text.replace("aten::relu_", "my::relu_").replace("operator my::", "function my::"))
        expect(1, "my::relu_", "emit", broken, "-o", folder / "none")
        expect(1, "a user-defined function", "emit", broken, "--lang", "python", "-o", folder / "none")
        expect(2, "NAME=CALLEE", "emit", broken, "--function", "my::relu_", "-o", folder / "none")
        expect(0, "broken.cpp", "emit", broken, "--function", "my::relu_=mine::relu@mine/relu.h", "-o",
               folder / "named")
        named = (folder / "named" / "broken.cpp").read_text()
        if "#include <mine/relu.h>" not in named or "mine::relu(" not in named:
            wrong.append("--function is not in the code")
        if (folder / "none").exists():
            wrong.append("a refused graph left files")
    return wrong


def main():
    torch.set_num_threads(1)
    tool, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    sys.path.insert(0, str(folder))  # my_functions.py
    cases = sorted(folder.glob("*_case.pt"))
    wrong = check_tool(tool)
    for path in cases:
        try:
            wrong += check_case(path)
        except Exception as error:  # a broken file must not hide errors in others
            wrong.append(f"{path.name}: {type(error).__name__}: {error}")
    print("\n".join(wrong) or f"{len(cases)} graphs give in Python what they give in C++")
    sys.exit(bool(wrong) or len(cases) < 50)


if __name__ == "__main__":
    main()
