// Keeps calls whose results may be read later (core/fake/known_contents.h), and executes them on demand.
#pragma once

#include <ATen/core/stack.h>
#include <c10/core/Device.h>

#include <memory>
#include <optional>
#include <vector>

#include "core/fake/data_dependent_values.h"
#include "core/fake/dispatch/operator_info.h"
#include "core/fake/known_contents.h"

namespace shadowgraph {

// Holds no tensor of the program, so it does not extend lifetimes. All operands are known (is_knowable).
class PendingCall final : public PendingContents, public std::enable_shared_from_this<PendingCall> {
 public:
  // `arguments` are fake tensors; written ones are in their state before the call. Returns nullptr if the call cannot
  // be kept.
  static std::shared_ptr<PendingCall> of(const OperatorInfo& info, const torch::jit::Stack& arguments);
  // Called after the call: makes the contents of written operands, and of the results from `results` on in the stack,
  // resolve through this.
  void promise(const torch::jit::Stack& arguments, const torch::jit::Stack& stack, size_t results);

  void resolve(KnownContents& contents) override;

  // Returns whether `tensor` covers its whole storage.
  static bool covers_storage(const at::Tensor& tensor);

 private:
  struct Operand {
    uint16_t argument = 0;
    int32_t index = -1;                       // in a list
    at::Tensor like;                          // metadata without memory: sizes, strides, offset, dtype, bits
    std::shared_ptr<KnownContents> contents;  // nullptr if unneeded: only metadata is read, or it is overwritten
    const void* storage = nullptr;            // identifies operands that share one
    size_t bytes = 0;
    bool written = false;
    bool overwritten = false;  // completely
  };
  struct Output {
    std::weak_ptr<KnownContents> contents;
    at::Tensor like;
    int32_t operand = -1;  // a written operand; -1: a result
    uint16_t result = 0;
    int32_t index = -1;  // in a list
  };
  class BudgetTracker;

  explicit PendingCall(const OperatorInfo& info) : info_(info) {}
  bool keep(const at::Tensor& tensor, uint16_t argument, int32_t index);
  void keep_shared_overwritten_operands();
  // Returns the operands as real tensors, which share storages like the originals; nullopt if one is unavailable.
  std::optional<std::vector<at::Tensor>> real_operands(BudgetTracker& spending) const;
  void run(BudgetTracker& spending);
  bool run_on_one_element();
  torch::jit::Stack with_operands(const std::vector<at::Tensor>& operands) const;
  void give_up() noexcept;

  const OperatorInfo& info_;
  torch::jit::Stack arguments_;  // without tensors
  std::vector<Operand> operands_;
  std::vector<Output> outputs_;
};

// ---- Routing: indices that are data-dependent, counted by the program (core/fake/data_dependent_values.h)

// Returns the position of the operand that a call counts or marks, if its contents are unknown and the call looks like
// expert routing: bincount(ids, minlength=E), histc(ids, E, 0, E), zeros(T, E).scatter(1, ids, 1) or a 1-D scatter_add.
std::optional<uint16_t> routed_operand(const OperatorInfo& info, const torch::jit::Stack& stack, size_t begin);
// Sets the counts as the contents of the result of bincount or histc.
void set_counts(const at::Tensor& result, const std::shared_ptr<const Routing>& routing);
// Returns a fake tensor like `index` whose contents are the assumed indices.
at::Tensor assumed_indices_like(const at::Tensor& index, const Routing& routing, int64_t dim);

// Contents sent by a collective that derive from an assumption. The assumption holds on all ranks, so each is taken to
// send the same.
class SentContents {
 public:
  // Call before the collective. Returns nullopt if no operand derives from an assumption.
  static std::optional<SentContents> of(const OperatorInfo& info, const torch::jit::Stack& stack, size_t begin);
  // Call after the collective: sets the contents received from the other ranks.
  void arrive(const torch::jit::Stack& stack, size_t results) const;

 private:
  const OperatorInfo* info_ = nullptr;
  torch::jit::Stack arguments_;
  std::vector<at::Tensor> sent_;  // real
  Assumptions assumed_;
};

// Propagates known contents (core/fake/known_contents.h) through one boxed call.

class ContentsOfCall {
 public:
  // Construct before the call, with fake operands. Forgets contents that the call makes unknown. Throws
  // DataDependentError if the results follow from known contents but exceed the budget.
  ContentsOfCall(const OperatorInfo& info, const torch::jit::Stack& stack, size_t begin);
  // Returns whether the results depend on data and all operands are known, so that the call must and can run for real.
  bool must_run_for_real() const;
  // Runs the call for real instead of the fake one: replaces the operands on the stack by fake results on `device`.
  // Throws what the operator throws.
  void run_instead(torch::jit::Stack& stack, size_t begin, c10::Device device);
  // Call afterwards: sets the contents of the results, from `results` on in the stack, if they are known.
  void run_after(const torch::jit::Stack& stack, size_t results);

 private:
  torch::jit::Stack real_arguments();
  torch::jit::Stack run_for_real();
  void compute_operands(const torch::jit::Stack& stack, size_t begin);
  void forget_written() noexcept;
  void assume_indices(const torch::jit::Stack& stack, size_t results);
  void follow_assumption(const torch::jit::Stack& stack, size_t results);
  void compute_results(const torch::jit::Stack& stack, size_t results);
  void mark_results(const torch::jit::Stack& stack, size_t results);

  // Returns the value of all elements of the result, if it does not depend on the operands.
  std::optional<c10::Scalar> decided(const torch::jit::Stack& stack, size_t begin) const;

  const OperatorInfo& info_;
  bool known_ = false;     // all operands are available
  bool knowable_ = false;  // ... or can be computed on demand
  std::optional<c10::Scalar> uniform_;
  torch::jit::Stack arguments_;  // of a known or knowable call
  int64_t most_elements_ = kMaxKnownElements;
  Assumptions assumed_;             // that the results derive from
  std::optional<uint16_t> routed_;  // the operand with assumed indices
  bool user_values_first_ = false;  // user-provided values take precedence over the assumption
  std::optional<SentContents> sent_;
};

}  // namespace shadowgraph
