// Compares deferred built-in models with eagerly built ones, one storage at a time to limit memory.
#include <torch/torch.h>

#include "models/registry.h"
#include "shadowgraph/deferred/deferred.h"
#include "tests/core/deferred/check.h"

namespace shadowgraph {
namespace {

using namespace testing;

// Checksum of the bits, in order.
uint64_t checksum(const at::Tensor& tensor) {
  const at::Tensor bytes = tensor.detach().contiguous().view({-1}).view(at::kByte);
  const auto* data = bytes.const_data_ptr<uint8_t>();
  uint64_t sum = 14695981039346656037U;
  int64_t i = 0;
  for (; i + 8 <= bytes.numel(); i += 8) {
    uint64_t word = 0;
    std::memcpy(&word, data + i, 8);
    sum = (sum ^ word) * 1099511628211U;
  }
  for (; i < bytes.numel(); ++i) sum = (sum ^ data[i]) * 1099511628211U;
  return sum;
}

std::vector<std::pair<std::string, at::Tensor>> tensors_of(const torch::nn::Module& module) {
  std::vector<std::pair<std::string, at::Tensor>> all;
  for (const auto& item : module.named_parameters()) all.emplace_back(item.key(), item.value());
  for (const auto& item : module.named_buffers()) all.emplace_back(item.key(), item.value());
  return all;
}

void expect_as_built(const std::string& name, const models::ModelOptions& options, bool backwards) {
  std::map<std::string, uint64_t> eager;
  at::manual_seed(5);
  {
    const auto model = models::build(name, options);
    for (const auto& [key, tensor] : tensors_of(*model.module)) eager[key] = checksum(tensor);
  }
  const RandomState left = process_state();
  at::manual_seed(5);
  const auto model = deferred_init([&] { return models::build(name, options); });
  EXPECT_TRUE(process_state() == left);
  auto all = tensors_of(*model.module);
  EXPECT_EQ(all.size(), eager.size());
  if (backwards) std::reverse(all.begin(), all.end());
  for (const auto& [key, tensor] : all) {
    materialize_tensor(tensor);
    EXPECT_EQ(checksum(tensor), eager.at(key)) << key;
    dematerialize(tensor);
  }
}

class DeferredModel : public ::testing::TestWithParam<std::string> {};
TEST_P(DeferredModel, TinyOnesAreAsBuilt) {
  expect_as_built(GetParam(), {.tiny = true}, false);
  expect_as_built(GetParam(), {.tiny = true}, true);
  expect_as_built(GetParam(), {.dtype = at::kBFloat16, .tiny = true}, true);
}
std::vector<std::string> model_names() {
  std::vector<std::string> names;
  for (const auto& info : models::available()) names.push_back(info.name);
  return names;
}
INSTANTIATE_TEST_SUITE_P(Zoo, DeferredModel, ::testing::ValuesIn(model_names()),
                         [](const auto& name) { return name.param; });

TEST(DeferredModels, ResNet50IsAsBuilt) { expect_as_built("resnet50", {}, true); }
TEST(DeferredModels, BertIsAsBuilt) { expect_as_built("bert_base", {}, false); }
TEST(DeferredModels, Gpt2IsAsBuilt) { expect_as_built("gpt2", {}, true); }

TEST(DeferredModels, TheLastLayerOfLlama70BWithoutTheRest) {
  at::manual_seed(5);
  const auto model = deferred_init([] { return models::build("llama3_70b", {.dtype = at::kBFloat16}); });
  at::Tensor last;
  for (const auto& [key, tensor] : tensors_of(*model.module)) {
    if (key.find("layers.79.self_attn.k_proj") != std::string::npos) last = tensor;
  }
  ASSERT_TRUE(last.defined());
  materialize_tensor(last);  // 8 million elements, starting 69 billion draws into the program
  EXPECT_GT(last.to(at::kFloat).std().item<float>(), 0);
  const auto again = deferred_init([] {
    at::manual_seed(5);
    return models::build("llama3_70b", {.dtype = at::kBFloat16});
  });
  for (const auto& [key, tensor] : tensors_of(*again.module)) {
    if (key.find("layers.79.self_attn.k_proj") == std::string::npos) continue;
    EXPECT_TRUE(at::equal(materialize_shard(tensor, 0, 100, 3), last.detach().narrow(0, 100, 3)));
  }
}

}  // namespace
}  // namespace shadowgraph
