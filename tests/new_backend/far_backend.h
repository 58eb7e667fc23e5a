// A back end whose kernels run in another process: examples/new_backend's device, with that process as its processor.
//
//     host::register_device();
//     far::Processor processor(FAR_PROCESSOR);            // starts it, and shares with it what libtorch allocates from now
//     auto cache = std::make_shared<KernelCache>(options, far::backend(processor));
//     compile_operators(names, c10::DispatchKey::PrivateUse1, {.cache = cache});
//
// Tensors lie in memory that both processes have at the same addresses. The other one loads libraries and runs kernels,
// and is told of each by a message. It needs nothing of libtorch (far_processor.cpp).
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

  // Sends words, the first of which says what for, and gives the one that comes back. Throws UnsupportedError.
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
