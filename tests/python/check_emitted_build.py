#!/usr/bin/env python3
"""Builds emitted C++ with its own CMakeLists.txt against the libtorch of the virtual environment, and runs it.

    check_emitted_build.py CMAKE CXX FOLDER     FOLDER written by make_fixtures (tests/codegen/fixtures)

FOLDER/project is the emitted folder of the program `literals`; FOLDER/literals_case.pt has its inputs before and after
the run, and its outputs. FOLDER/kernels_project is a step of gpt2 with kernels in it (the case
gpt2_step). Its embeddings are gathers of kernels, which refuse an index out of range.
"""

import pathlib
import subprocess
import sys
import tempfile

import torch

TOP = """
cmake_minimum_required(VERSION 3.18)
project(caller LANGUAGES CXX)
add_subdirectory({project} emitted)
add_executable(caller main.cpp)
target_link_libraries(caller {name})
"""

MAIN = """
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <torch/csrc/jit/serialization/pickle.h>

#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>

#include "NAME.h"

int main(int argc, char** argv) {
  std::ifstream in(argv[1], std::ios::binary);
  const std::vector<char> bytes((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  std::map<std::string, at::Tensor> tensors = CONSTANTS;
  std::map<std::string, at::Tensor> expected, left;
  for (const auto& entry : torch::jit::pickle_load(bytes).toGenericDict()) {
    const std::string key = entry.key().toStringRef();
    if (key.starts_with("in.")) tensors[key.substr(3)] = entry.value().toTensor();
    if (key.starts_with("out.")) expected[key.substr(4)] = entry.value().toTensor();
    if (key.starts_with("after.")) left[key.substr(6)] = entry.value().toTensor();
  }
  if (argc > 3) {  // indices that are no row of any table
    for (auto& [name, tensor] : tensors) {
      if (tensor.scalar_type() == at::kLong) tensor.fill_(1 << 20);
    }
  }
  at::manual_seed(7);
  at::set_num_threads(1);
  const auto outputs = NAME::run_by_name(tensors);
  int wrong = outputs.size() != expected.size();
  const auto compare = [&](const std::string& name, const at::Tensor& found, const at::Tensor& wanted) {
    const at::Tensor a = found.contiguous();
    const at::Tensor b = wanted.contiguous();
    const bool same = a.dtype() == b.dtype() && a.sizes() == b.sizes() &&
                      (a.numel() == 0 || std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0);
    if (!same) std::printf("%s differs\\n", name.c_str());
    wrong += !same;
  };
  for (const auto& [name, output] : outputs) compare(name, output, expected.at(name));
  for (const auto& [name, tensor] : left) compare(name + " afterwards", tensors.at(name), tensor);
  std::printf("%zu outputs, %d wrong\\n", outputs.size(), wrong);
  return wrong != 0;
}
"""


def check(cmake, compiler, project, name, case, has_indices=False):
    constants = project / f"{name}_constants.pt"
    load = f"{name}::load_constants(argv[2])" if constants.exists() else "{}"
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        (folder / "CMakeLists.txt").write_text(TOP.format(project=project, name=name))
        (folder / "main.cpp").write_text(MAIN.replace("NAME", name).replace("CONSTANTS", load))
        build = folder / "build"
        commands = [
            [cmake, "-S", folder, "-B", build, f"-DCMAKE_PREFIX_PATH={torch.utils.cmake_prefix_path}",
             f"-DCMAKE_CXX_COMPILER={compiler}"],
            [cmake, "--build", build, "--parallel", "2"],
            [build / "caller", case, constants],
        ]
        for command in commands:
            done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
            if done.returncode != 0:
                print(*command, "\n", done.stdout, done.stderr)
                sys.exit(1)
        print(done.stdout)
        if has_indices:
            done = subprocess.run([build / "caller", case, constants, "out of range"], capture_output=True, text=True,
                                  check=False)  # fmt: skip
            if done.returncode == 0 or "index out of range" not in done.stderr:
                print("an index out of range is not refused:", done.returncode, done.stdout, done.stderr)
                sys.exit(1)


def main():
    cmake, compiler, fixtures = sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3]).resolve()
    check(cmake, compiler, fixtures / "project", "literals", fixtures / "literals_case.pt")
    step = fixtures / "gpt2_step_case.pt"
    check(cmake, compiler, fixtures / "kernels_project", "step_with_kernels", step, has_indices=True)


if __name__ == "__main__":
    main()
