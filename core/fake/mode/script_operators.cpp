// TorchScript's own operators that read tensors through their data pointers, which fake tensors do not have.
#include <torch/csrc/jit/runtime/operator.h>

#include "core/fake/fake_tensor_impl.h"
#include "core/fake/mode/modes.h"
#include "shadowgraph/capture/fake.h"
#include "shadowgraph/error.h"

namespace shadowgraph {
namespace {

using torch::jit::Stack;

// save(item, file name)
void refuse_saving(Stack& stack) {
  stack[stack.size() - 2].visit([](const c10::IValue& value) {
    if (value.isTensor() && is_fake(value.toTensor())) {
      throw UnsupportedError("torch.save() of a tensor without data (" + to_string(value.toTensor()) +
                             "); remove it from the TorchScript program, or save real tensors outside of the mode");
    }
    return false;
  });
}

void describe(c10::IValue& value) {
  if (value.isTensor() && is_fake(value.toTensor()) && !known_contents(value.toTensor())) {
    value = "<" + to_string(value.toTensor()) + ">";
  }
}

// str(value)
void describe_one(Stack& stack) { describe(stack.back()); }

// print(...), whose number of values is on top of the stack
void describe_all(Stack& stack) {
  const auto count = static_cast<size_t>(stack.back().toInt());
  for (size_t i = 0; i < count; ++i) describe(stack[stack.size() - 2 - i]);
}

// Replaces the operation of each overload in place: nodes of compiled graphs point to the overload.
void run_before(const char* name, void (*prepare)(Stack&)) {
  for (const auto& overload : torch::jit::getAllOperatorsFor(c10::Symbol::fromQualString(name))) {
    const auto run = [prepare, run = overload->getOperation()](Stack& stack) mutable {
      prepare(stack);
      run(stack);
    };
    *overload = torch::jit::Operator(toString(overload->schema()), run, overload->aliasAnalysisKind());
  }
}

}  // namespace

void install_script_operators() {
  run_before("aten::save", &refuse_saving);
  run_before("aten::str", &describe_one);
  run_before("prim::Print", &describe_all);
}

}  // namespace shadowgraph
