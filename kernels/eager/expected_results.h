// What an operator's results look like, before it runs. Internal to kernels/eager.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

namespace shadowgraph {

struct ExpectedResult {
  bool tensor = false;  // otherwise a number or the like, of which nothing is known; or an undefined tensor
  int argument = -1;    // the position of the argument that it is; -1: a tensor of its own
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  std::vector<int64_t> sizes, strides;
};

using ExpectedResults = std::shared_ptr<const std::vector<ExpectedResult>>;

// Keeps them by the geometry and the numbers of calls. Thread-safe.
class KnownResults {
 public:
  // By our rule or libtorch's Meta kernel. nullptr if neither knows without data, and for arguments that cannot be shown
  // to them. Throws c10::Error for a call that the operator refuses.
  ExpectedResults of(const c10::OperatorHandle& op, std::span<const c10::IValue> arguments);

 private:
  std::mutex mutex_;
  std::unordered_map<std::string, ExpectedResults> known_;
};

}  // namespace shadowgraph
