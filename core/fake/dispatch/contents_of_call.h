// Keeps calls whose results somebody may ask for later (core/fake/known_contents.h), and carries them out then.
// Internal to core/.
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

// Holds no tensor of the program: nothing lives longer because of it. All operands are known (is_knowable).
class PendingCall final : public PendingContents, public std::enable_shared_from_this<PendingCall> {
 public:
  // `arguments` are fakes; those that are written are as before the call. Returns nullptr if something cannot be kept.
  static std::shared_ptr<PendingCall> of(const OperatorInfo& info, const torch::jit::Stack& arguments);
  // Promises, after the call, contents: those of the operands that it wrote and of its results, on the stack from
  // `results` on, come from here.
  void promise(const torch::jit::Stack& arguments, const torch::jit::Stack& stack, size_t results);

  void resolve(KnownContents& contents) override;

  // Says whether `tensor` shows all of what its storage holds.
  static bool covers_storage(const at::Tensor& tensor);

 private:
  struct Operand {
    uint16_t argument = 0;
    int32_t index = -1;                       // in a list
    at::Tensor like;                          // of no memory: sizes, strides, offset, dtype, bits
    std::shared_ptr<KnownContents> contents;  // nullptr: only the geometry counts, or it is overwritten as a whole
    const void* storage = nullptr;            // to know which operands share one
    size_t bytes = 0;
    bool written = false;
    bool overwritten = false;  // as a whole
  };
  struct Output {
    std::weak_ptr<KnownContents> contents;
    at::Tensor like;
    int32_t operand = -1;  // written, or else
    uint16_t result = 0;
    int32_t index = -1;  // in a list
  };
  class Spending;

  explicit PendingCall(const OperatorInfo& info) : info_(info) {}
  bool keep(const at::Tensor& tensor, uint16_t argument, int32_t index);
  void keep_what_overwritten_operands_share();
  // Returns the operands as real tensors, those that share a storage on one memory; nothing if one cannot be had.
  std::optional<std::vector<at::Tensor>> real_operands(Spending& spending) const;
  void run(Spending& spending);
  bool run_on_one_element();
  torch::jit::Stack with_operands(const std::vector<at::Tensor>& operands) const;
  void give_up() noexcept;

  const OperatorInfo& info_;
  torch::jit::Stack arguments_;  // without tensors
  std::vector<Operand> operands_;
  std::vector<Output> outputs_;
};

// Works out what calls make of indices that data decides and the program counts (core/fake/data_dependent_values.h), and what
// collectives bring of that. Internal to core/.

// Returns the position of the operand that a call counts or marks, if nobody knows its contents and the call looks like
// routing. That is bincount(ids, minlength=E), histc(ids, E, 0, E), zeros(T, E).scatter(1, ids, 1) or scatter_add of one
// dimension.
std::optional<uint16_t> routed_operand(const OperatorInfo& info, const torch::jit::Stack& stack, size_t begin);
// Gives the counts to the result of bincount or histc.
void give_counts(const at::Tensor& result, const std::shared_ptr<const Routing>& routing);
// Returns a fake tensor like `index` that holds dealt indices.
at::Tensor dealt_like(const at::Tensor& index, const Routing& routing, int64_t dim);

// What a collective is given, where that follows from an assumption: it holds on all ranks, each of which does as this
// one does.
class SentContents {
 public:
  // Make it before the call. Nothing is sent where no operand follows from an assumption.
  static std::optional<SentContents> of(const OperatorInfo& info, const torch::jit::Stack& stack, size_t begin);
  // Gives its outputs, after the call, what comes from the others.
  void arrive(const torch::jit::Stack& stack, size_t results) const;

 private:
  const OperatorInfo* info_ = nullptr;
  torch::jit::Stack arguments_;
  std::vector<at::Tensor> sent_;  // real
  Assumptions assumed_;
};

// Says what becomes of known contents (core/fake/known_contents.h) in one boxed call. Internal to core/.

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
