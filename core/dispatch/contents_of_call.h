// Says what becomes of known contents (core/fake/known_contents.h) in one boxed call. Internal to core/.
#pragma once

#include <ATen/core/stack.h>
#include <c10/core/Device.h>

#include <optional>

#include "core/dispatch/contents_of_routing.h"
#include "core/dispatch/operator_info.h"
#include "core/fake/known_contents.h"

namespace shadowgraph {

class ContentsOfCall {
 public:
  // Construct it before the call; the operands are fakes. It forgets what the call makes unknown. Throws
  // DataDependentError if the results follow from what is known, but only at more than the budget allows.
  ContentsOfCall(const OperatorInfo& info, const torch::jit::Stack& stack, size_t begin);
  // Says whether the results can only be had by running the call for real, and it can be run. All operands are then
  // known, and the results depend on data.
  bool decides_results() const;
  // Runs the call for real in place of the fake one: the operands on the stack become fake results on `device`. Throws
  // what the operator throws.
  void run_instead(torch::jit::Stack& stack, size_t begin, c10::Device device);
  // Gives, after the call, the results on the stack, from `results` on, their contents, if they are known.
  void run_after(const torch::jit::Stack& stack, size_t results);

 private:
  torch::jit::Stack real_arguments();
  torch::jit::Stack run_for_real();
  void compute_operands(const torch::jit::Stack& stack, size_t begin);
  void forget_written() noexcept;
  void deal_indices(const torch::jit::Stack& stack, size_t results);
  void follow_assumption(const torch::jit::Stack& stack, size_t results);
  void compute_results(const torch::jit::Stack& stack, size_t results);
  void mark_results(const torch::jit::Stack& stack, size_t results);

  // Returns the number that all of the call's results are, whatever the operands hold, if there is one.
  std::optional<c10::Scalar> decided(const torch::jit::Stack& stack, size_t begin) const;

  const OperatorInfo& info_;
  bool known_ = false;     // all operands at hand
  bool knowable_ = false;  // ... or computed if somebody asks
  std::optional<c10::Scalar> uniform_;
  torch::jit::Stack arguments_;  // of a known or knowable call
  int64_t most_elements_ = kMostKnownElements;
  Assumptions assumed_;             // that the results follow from
  std::optional<uint16_t> routed_;  // the operand that is assumed
  bool user_is_first_ = false;      // the call asks the user for what follows from an assumption
  std::optional<SentContents> sent_;
};

}  // namespace shadowgraph
