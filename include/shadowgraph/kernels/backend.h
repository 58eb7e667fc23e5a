// What makes programs runnable. There is one back end here, the system's C++ compiler; docs/kernels.md says what another
// must provide.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "shadowgraph/kernels/program.h"

namespace SHADOWGRAPH_API shadowgraph {

class KernelBackend {
 public:
  virtual ~KernelBackend() = default;
  // All that decides what comes out for a program and where it may run: generator, compiler and its version, flags,
  // processor features, ABI. Part of every key. Empty: this back end cannot be used here, see `problem`.
  virtual const std::string& identity() const = 0;
  // Why it cannot be used; "" if it can.
  virtual const std::string& problem() const = 0;
  virtual std::string source(const KernelProgram& program) const = 0;
  // Compiles the file `source` to the file `library`; returns "" or what went wrong, within its time limit. Called from
  // several threads.
  virtual std::string compile(const std::string& source, const std::string& library) const = 0;
  // Loads a library for the rest of the process. Throws KernelError.
  virtual KernelFunction load(const std::string& library) const = 0;
};

struct CompilerBackendOptions {
  std::string compiler;            // "": $CXX, or else c++, g++, clang++, whichever there is
  std::vector<std::string> flags;  // "": empty for the usual; they replace optimisation and processor flags
  std::chrono::milliseconds timeout{20000};
};
// Throws nothing: a compiler that is not there makes a back end with a problem.
std::shared_ptr<const KernelBackend> compiler_backend(const CompilerBackendOptions& options = {});

}  // namespace shadowgraph
