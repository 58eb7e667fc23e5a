// What makes programs runnable. There is one back end here, the system's C++ compiler, for the host's memory. Another one
// may compile for a device of its own: it says which, and how its kernels are started.
//
//     auto cache = std::make_shared<KernelCache>(KernelCacheOptions(), std::make_shared<MyBackend>());
//     const CompiledOperators compiled = compile_operators(names, c10::DispatchKey::PrivateUse1, {.cache = cache});
//
// tests/new_backend/far_backend.h is one whose kernels run in another process.
#pragma once

#include <c10/core/DeviceType.h>

#include <chrono>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "shadowgraph/kernels/program.h"

namespace SHADOWGRAPH_API shadowgraph {

// One run of a kernel: what a KernelFunction is given, with lengths.
struct KernelLaunch {
  std::span<void* const> data;  // the first element of each operand, as the device's tensors give it
  std::span<const int64_t> sizes, strides, scalars;
  int64_t range = 0;     // rows or elements: all from 0 to here run
  int64_t row_work = 1;  // elements in one of them
};

class KernelBackend {
 public:
  virtual ~KernelBackend() = default;
  // Where its kernels find their operands. kCPU: in the host's memory, whatever device tensors there say. Else a tensor
  // anywhere else is no operand.
  virtual c10::DeviceType device() const { return c10::kCPU; }
  // Runs a kernel that load() gave, and returns when its results are there for all who come after it on the device.
  // Returns false if an index was out of range. Called from several threads. Throws KernelError where the device fails.
  // Here: calls it, on this process's threads.
  virtual bool launch(KernelFunction kernel, const KernelLaunch& launch) const;
  // All that decides what comes out for a program and where it may run: generator, compiler and its version, flags,
  // processor features, ABI. Part of every key. Empty: this back end cannot be used here, see `problem`.
  virtual const std::string& identity() const = 0;
  // Why it cannot be used; "" if it can.
  virtual const std::string& problem() const = 0;
  virtual std::string source(const KernelProgram& program) const = 0;
  // Compiles the file `source` to the file `library`; returns "" or what went wrong, within its time limit. Called from
  // several threads.
  virtual std::string compile(const std::string& source, const std::string& library) const = 0;
  // Loads a library for the rest of the process. Throws KernelError. A back end with a launch() of its own may give any
  // address but nullptr: nobody else calls it.
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
