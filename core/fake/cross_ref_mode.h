// Runs a real program and, beside every operator call, the same call on fakes of its operands; tells the first that
// differs.
//
//     CrossRefMode check;                       // on this thread, until it is destroyed
//     net->forward(x).sum().backward();         // real, with real results
//     // CrossRefError: aten::gelu, result 0: strides: [1, 4] real, [8, 1] fake
//
// Compared below autograd, after every call: how many results, sizes, dtype, strides, offset, device, which results and
// operands share memory or are the same, the geometry that written operands were left with, and that both raise or
// neither. Operators that fakes refuse (DataDependentError, NoRuleError) are counted, not compared. The idea is PyTorch's
// CrossRefFakeMode.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "ir/error.h"

namespace shadowgraph {

struct CrossRefDifference {
  std::string op;     // "aten::gelu"
  std::string where;  // "result 0", "argument self", "the call"
  std::string what;   // "strides", "dtype", "raised", ...
  std::string real;
  std::string fake;
  std::string to_string() const;  // "aten::gelu, result 0: strides: [1, 4] real, [8, 1] fake"
};

class CrossRefError : public Error {
 public:
  explicit CrossRefError(CrossRefDifference difference);
  const CrossRefDifference& difference() const { return difference_; }

 private:
  CrossRefDifference difference_;
};

struct CrossRefOptions {
  bool throw_at_first = true;  // from the call that differs, once the real one is done; otherwise collected
};

class CrossRefMode {
 public:
  // Throws Error inside a FakeTensorMode: the program must be real.
  explicit CrossRefMode(CrossRefOptions options = {});
  ~CrossRefMode();
  CrossRefMode(const CrossRefMode&) = delete;
  CrossRefMode& operator=(const CrossRefMode&) = delete;

  int64_t compared() const;                               // calls
  const std::map<std::string, int64_t>& refused() const;  // operator -> calls that fakes refused
  const std::vector<CrossRefDifference>& differences() const;

 private:
  class Observer;
  std::unique_ptr<Observer> observer_;
  std::unique_ptr<class ObserveMode> mode_;
};

}  // namespace shadowgraph
