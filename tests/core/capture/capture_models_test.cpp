// Captures every built-in model, at a small size, on fake CPU tensors, and compares with a real run on the CPU:
//
//   - the operators called, in order, from forward through the optimizer step;
//   - dtype, sizes, strides and offset of every result;
//   - the tensors autograd saves, by storage, in bytes; and the final gradients.
#include <gtest/gtest.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>
#include <torch/nn/module.h>
#include <torch/optim/adamw.h>

#include <unordered_map>

#include "core/fake/dispatch/operator_info.h"
#include "core/fake/mode/modes.h"
#include "models/program.h"
#include "models/registry.h"
#include "shadowgraph/capture/capture.h"
#include "shadowgraph/capture/fake.h"
#include "shadowgraph/graph/text.h"
#include "shadowgraph/graph/verify.h"
#include "shadowgraph/profile/profile.h"

namespace shadowgraph {
namespace {

std::string describe(const at::Tensor& tensor) {
  if (!tensor.defined()) return "undefined";
  return c10::str(tensor.scalar_type(), tensor.sizes(), tensor.strides(), "+", tensor.storage_offset());
}

std::string describe(const Graph& graph, ValueId id) {
  const auto list = [](std::span<const int64_t> ints) { return c10::IntArrayRef(ints.data(), ints.size()); };
  const Value& value = graph.value(id);
  if (value.kind != ValueKind::kTensor) return "scalar";
  return c10::str(value.dtype, list(graph.sizes(id)), list(graph.strides(id)), "+", value.offset);
}

// Records each operator call of a real run as one line of text.
class RealTrace final : public CallObserver, public SavedTensorObserver {
 public:
  std::vector<std::string> calls;
  std::unordered_map<const void*, int64_t> saved_storages;

  void begin_call(const OperatorInfo&, std::span<const CallArgument>) override {}
  void end_call(const OperatorInfo& info, std::span<const CallArgument> results) override {
    std::string line = info.name + " ->";
    for (const CallArgument& argument : results) {
      const c10::IValue result = argument.value();
      if (result.isTensor()) {
        line += " " + describe(result.toTensor());
      } else if (result.isTensorList()) {
        for (const c10::IValue& element : result.toListRef()) line += " " + describe(element.toTensor());
      }
    }
    calls.push_back(std::move(line));
  }
  void abandon_call(const OperatorInfo&) noexcept override {}
  void enter_composite(const OperatorInfo&, std::span<const CallArgument>) override {}
  void leave_composite() noexcept override {}
  std::unique_ptr<torch::autograd::SavedVariableHooks> hooks_for_saved_tensor() override {
    struct Hook final : torch::autograd::SavedVariableHooks {
      explicit Hook(RealTrace& t) : trace(t) {}
      void call_pack_hook(const at::Tensor& tensor) override {
        data = tensor.tensor_data();
        trace.saved_storages[tensor.storage().unsafeGetStorageImpl()] = static_cast<int64_t>(tensor.storage().nbytes());
        // Keeps the storage alive so that no later storage reuses its address.
        trace.keep.push_back(data.storage());
      }
      at::Tensor call_unpack_hook() override { return data; }
      RealTrace& trace;
      at::Tensor data;
    };
    return std::make_unique<Hook>(*this);
  }
  std::vector<c10::Storage> keep;
};

std::vector<std::string> calls_of(const Graph& graph) {
  std::vector<std::string> calls;
  for (const NodeId node : graph.nodes()) {
    if (graph.target(node).kind() != TargetKind::kOperator) continue;
    std::string line = graph.target(node).name() + " ->";
    for (const Argument& result : graph.results(node)) {
      if (result.kind == ArgumentKind::kNone) line += " undefined";
      graph.for_each_value({&result, 1}, [&](ValueId value) { line += " " + describe(graph, value); });
    }
    calls.push_back(std::move(line));
  }
  return calls;
}

CaptureResult capture_tiny(const std::string& name, c10::Device device) {
  const FakeTensorMode mode({.device = device});
  const auto model = models::build(name, {.tiny = true});
  torch::optim::AdamW optimizer(model.module->parameters(), torch::optim::AdamWOptions(1e-3));
  return capture_training_step(models::program_of(model, &optimizer));
}

class BuiltInModel : public ::testing::TestWithParam<std::string> {};

TEST_P(BuiltInModel, CapturesWhatARealRunDoes) {
  const Graph graph = capture_tiny(GetParam(), at::kCPU).graph;

  const auto model = models::build(GetParam(), {.tiny = true});
  torch::optim::AdamW optimizer(model.module->parameters(), torch::optim::AdamWOptions(1e-3));
  RealTrace real;
  {
    const ObserveMode observe(real, &real);
    optimizer.zero_grad();
    auto outputs = model.forward(model.inputs);
    at::Tensor loss = model.loss(outputs, model.inputs);
    outputs.clear();
    loss.backward();
    optimizer.step();
  }

  const auto captured = calls_of(graph);
  for (size_t i = 0; i < std::min(captured.size(), real.calls.size()); ++i) {
    ASSERT_EQ(captured[i], real.calls[i]) << "call " << i << " of " << real.calls.size();
  }
  EXPECT_EQ(captured.size(), real.calls.size());

  int64_t real_saved = 0;
  for (const auto& [storage, bytes] : real.saved_storages) real_saved += bytes;
  EXPECT_EQ(profile(graph).saved.all, real_saved);

  std::unordered_map<std::string, std::string> gradients;
  for (const auto& entry : model.module->named_parameters()) {
    gradients[entry.key()] = describe(entry.value().grad());
  }
  size_t compared = 0;
  for (const NodeId node : graph.nodes()) {
    if (graph.node(node).target != target_of(Builtin::kGradient)) continue;
    const NodeId parameter = graph.value(graph.arguments(node)[0].ref.value).producer;
    const std::string& name = graph.text(graph.arguments(parameter)[0].string);
    EXPECT_EQ(describe(graph, graph.arguments(node)[1].ref.value), gradients.at(name)) << name;
    ++compared;
  }
  EXPECT_GT(compared, 0);
}

TEST_P(BuiltInModel, IsDeterministicValidAndLossless) {
  for (const c10::Device device : {c10::Device(at::kCPU), c10::Device(at::kCUDA, 0)}) {
    const Graph graph = capture_tiny(GetParam(), device).graph;
    const std::string text = to_text(graph);
    EXPECT_EQ(text, to_text(capture_tiny(GetParam(), device).graph)) << "two captures differ";
    EXPECT_NO_THROW(verify(graph));
    const Graph parsed = parse(text);
    const auto difference = first_difference(graph, parsed);
    EXPECT_FALSE(difference.has_value()) << *difference;
    EXPECT_EQ(to_text(parsed), text);
  }
}

TEST_P(BuiltInModel, HasTheDocumentedParameterCountAtFullSize) {
  const FakeTensorMode mode({.device = at::kCUDA});
  const auto model = models::build(GetParam());
  std::unordered_set<const c10::TensorImpl*> seen;
  int64_t elements = 0;
  for (const at::Tensor& parameter : model.module->parameters()) {
    if (seen.insert(parameter.unsafeGetTensorImpl()).second) elements += parameter.numel();
  }
  const auto& infos = models::available();
  const auto info = std::find_if(infos.begin(), infos.end(), [](const auto& i) { return i.name == GetParam(); });
  EXPECT_EQ(elements, info->parameters);
}

std::vector<std::string> model_names() {
  std::vector<std::string> names;
  for (const auto& info : models::available()) names.push_back(info.name);
  return names;
}

INSTANTIATE_TEST_SUITE_P(Zoo, BuiltInModel, ::testing::ValuesIn(model_names()),
                         [](const auto& name) { return name.param; });

// Parameter counts match the papers, torchvision and Hugging Face, not only the registry.
TEST(BuiltInModels, ParameterCounts) {
  const std::map<std::string, int64_t> expected{
      {"resnet18", 11'689'512},   {"resnet50", 25'557'032}, {"vit_b_16", 86'567'656},
      {"bert_base", 109'482'240}, {"gpt2", 124'439'808},    {"llama3_8b", 8'030'261'248},
  };
  for (const auto& info : models::available()) {
    const auto entry = expected.find(info.name);
    if (entry != expected.end()) {
      EXPECT_EQ(info.parameters, entry->second) << info.name;
    }
  }
}

}  // namespace
}  // namespace shadowgraph
