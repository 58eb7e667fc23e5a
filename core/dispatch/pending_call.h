// Keeps calls whose results somebody may ask for later (core/fake/known_contents.h), and carries them out then.
// Internal to core/.
#pragma once

#include <ATen/core/stack.h>

#include <memory>
#include <optional>
#include <vector>

#include "core/dispatch/operator_info.h"
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

}  // namespace shadowgraph
