// Prefill and decode with a KV cache: results of a full forward, bytes by formula, and lifetimes.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "models/program.h"
#include "models/registry.h"
#include "shadowgraph/capture/fake.h"
#include "shadowgraph/graph/verify.h"
#include "shadowgraph/profile/profile.h"

namespace shadowgraph::models {
namespace {

class GenerationOf : public ::testing::TestWithParam<std::string> {};

TEST_P(GenerationOf, WithACacheTheLogitsAreThoseOfTheWholeSequence) {
  const at::NoGradGuard no_grad;
  at::manual_seed(7);
  const BuiltModel model = build(GetParam(), {.batch = 2, .seq = 9, .training = false, .tiny = true});
  const at::Tensor ids = model.inputs[0];
  const at::Tensor whole = model.forward({ids})[0];  // [2, 9, vocab]
  const auto options = whole.options();
  for (const int64_t capacity : {0, 9, 12}) {
    SCOPED_TRACE("capacity " + std::to_string(capacity));
    KeyValueCache cache =
        capacity == 0 ? KeyValueCache(*model.cache) : KeyValueCache(*model.cache, 2, 0, capacity, options);
    // A prompt of 5 tokens, then one token at a time, then two at once.
    EXPECT_TRUE(at::allclose(model.next(ids.slice(1, 0, 5), cache).select(1, 0), whole.select(1, 4), 1e-4, 1e-5));
    for (int64_t at = 5; at < 7; ++at) {
      EXPECT_TRUE(
          at::allclose(model.next(ids.slice(1, at, at + 1), cache).select(1, 0), whole.select(1, at), 1e-4, 1e-5))
          << "token " << at;
    }
    EXPECT_TRUE(at::allclose(model.next(ids.slice(1, 7, 9), cache).select(1, 0), whole.select(1, 8), 1e-4, 1e-5));
    EXPECT_EQ(cache.length(), 9);
    if (capacity == 9) {
      EXPECT_THROW(model.next(ids.slice(1, 0, 1), cache), std::invalid_argument);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Zoo, GenerationOf, ::testing::Values("gpt2", "llama3_8b"),
                         [](const auto& info) { return info.param; });

// 2 (keys, values) x layers x kv_heads x head_size x bytes per element.
TEST(Generation, BytesOfATokenAreThoseOfTheFormula) {
  const struct {
    const char* model;
    c10::ScalarType dtype;
    int64_t bytes;
  } cases[] = {{"gpt2", c10::ScalarType::Float, int64_t{2} * 12 * 12 * 64 * 4},
               {"gpt2_xl", c10::ScalarType::BFloat16, int64_t{2} * 48 * 25 * 64 * 2},
               {"llama3_8b", c10::ScalarType::BFloat16, int64_t{2} * 32 * 8 * 128 * 2},
               {"llama3_70b", c10::ScalarType::BFloat16, int64_t{2} * 80 * 8 * 128 * 2}};
  for (const auto& each : cases) {
    for (const bool fixed : {false, true}) {
      SCOPED_TRACE(std::string(each.model) + (fixed ? ", static" : ", grown"));
      const FakeTensorMode mode({.device = c10::Device(at::kCUDA, 0)});
      const BuiltModel model = build(each.model, {.batch = 3, .seq = 1, .dtype = each.dtype, .training = false});
      const CaptureResult step = capture_generation(model, {.context = 1000, .static_cache = fixed});
      verify(step.graph);
      const auto costs = profile(step.graph);
      ASSERT_TRUE(costs.cache);
      EXPECT_EQ(costs.cache->bytes_per_token, each.bytes);
      EXPECT_EQ(costs.cache->context, 1001);
      EXPECT_EQ(costs.cache->bytes, 3 * 1001 * each.bytes);
    }
  }
}

TEST(Generation, AGrownLayerReplacesTheOldOne) {
  const FakeTensorMode mode({.device = c10::Device(at::kCUDA, 0)});
  const BuiltModel model =
      build("llama3_8b", {.batch = 1, .seq = 1, .dtype = c10::ScalarType::BFloat16, .training = false});
  const auto peak = [&](int64_t context, bool fixed) {
    const CaptureResult step = capture_generation(model, {.context = context, .static_cache = fixed});
    return profile(step.graph).peak.bytes;
  };
  // One more token adds 131,072 bytes of cache. While a layer runs, its keys and values are repeated for four times as
  // many heads: 2 x 32 x 128 x 2 bytes, as in Hugging Face's repeat_kv. The old keys and values are freed.
  const int64_t growth = peak(20001, false) - peak(20000, false);
  EXPECT_EQ(growth, 131072 + 2 * 32 * 128 * 2);
  // A static cache has a mask: a bool, and its bfloat16 form that is added to the scores.
  EXPECT_EQ(peak(20001, true) - peak(20000, true), growth + 1 + 2);
}

TEST(Generation, PrefillComputesLogitsOfTheLastTokenAlone) {
  const FakeTensorMode mode({.device = c10::Device(at::kCUDA, 0)});
  const BuiltModel model = build("gpt2", {.batch = 2, .seq = 100, .training = false});
  const CaptureResult step = capture_generation(model, {.prefill = true});
  const auto costs = profile(step.graph);
  EXPECT_EQ(costs.outputs->at(0).shape, (std::vector<int64_t>{2, 1, 50257}));
  EXPECT_EQ(costs.outputs->size(), 1u + 2 * 12);
  EXPECT_EQ(costs.cache->context, 100);
  EXPECT_EQ(costs.cache->bytes, 2 * 100 * 73728);
}

TEST(Generation, WhatCannotBeIsRefused) {
  const FakeTensorMode mode({.device = c10::Device(at::kCUDA, 0)});
  const BuiltModel resnet = build("resnet18", {.tiny = true});
  EXPECT_THROW(capture_generation(resnet, {.context = 5}), std::invalid_argument);
  const BuiltModel gpt2 = build("gpt2", {.seq = 1, .training = false, .tiny = true});  // 32 positions
  EXPECT_THROW(capture_generation(gpt2, {.context = 0}), std::invalid_argument);
  EXPECT_NO_THROW(capture_generation(gpt2, {.context = 31}));
  EXPECT_THROW(capture_generation(gpt2, {.context = 32}), std::invalid_argument);
}

}  // namespace
}  // namespace shadowgraph::models
