// A back end whose kernels run in another process: examples/new_backend's device, with that process as its processor.
//
//     host::register_device();
//     far::Processor processor(FAR_PROCESSOR);            // starts it; libtorch now allocates shared memory
//     auto cache = std::make_shared<KernelCache>(options, far::backend(processor));
//     compile_operators(names, c10::DispatchKey::PrivateUse1, {.cache = cache});
//
// Tensors are in memory mapped at the same addresses in both processes. The other process loads libraries and runs
// kernels on request, and does not use libtorch (far_processor.cpp).
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "shadowgraph/kernels/program.h"

namespace far {

class Processor {
 public:
  explicit Processor(const std::string& program);
  ~Processor();
  Processor(const Processor&) = delete;
  Processor& operator=(const Processor&) = delete;

  // Sends words, the first of which is the request, and returns the reply. Throws UnsupportedError.
  int64_t ask(std::span<const int64_t> words) const;
  bool shares(const void* address) const;
  pid_t pid() const { return pid_; }
  int64_t launches() const;

 private:
  pid_t pid_ = -1;
  int socket_ = -1;
  mutable std::mutex mutex_;
};

std::shared_ptr<const shadowgraph::KernelBackend> backend(const Processor& processor);

}  // namespace far
