// Memory of an inference engine compared with hand-computed sums; weight formats compared with tensors of real
// libraries.
#include "shadowgraph/plan/serving.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "models/program.h"
#include "models/registry.h"
#include "shadowgraph/capture/capture.h"
#include "shadowgraph/error.h"
#include "shadowgraph/profile/profile.h"

namespace shadowgraph {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(WeightFormat, IsAsLargeAsTheTensorsOfItsLibrary) {
  const int64_t out = 14336, in = 4096, groups = in / 128;
  // GPTQ: qweight int32, scales float16, qzeros int32, g_idx int32.
  EXPECT_EQ(WeightFormat::parse("gptq").bytes(out, in),
            4 * (in / 8) * out + 2 * groups * out + 4 * groups * (out / 8) + 4 * in);
  EXPECT_EQ(WeightFormat::parse("gptq:bits=8,group=32").bytes(out, in),
            4 * (in / 4) * out + 2 * (in / 32) * out + 4 * (in / 32) * (out / 4) + 4 * in);
  EXPECT_EQ(WeightFormat::parse("awq").bytes(out, in), WeightFormat::parse("gptq").bytes(out, in) - 4 * in);
  // bitsandbytes: float32 absmax per 64 elements; with double quantization, uint8 absmax and float32 per 256 of these.
  EXPECT_EQ(WeightFormat::parse("nf4").bytes(out, in), out * in / 2 + 4 * (out * in / 64));
  EXPECT_EQ(WeightFormat::parse("nf4-double").bytes(out, in), out * in / 2 + out * in / 64 + 4 * (out * in / 64 / 256));
  EXPECT_EQ(WeightFormat::parse("llm-int8").bytes(out, in), out * in + 4 * out);
  EXPECT_EQ(WeightFormat::parse("fp8").bytes(out, in), out * in + 4);
  EXPECT_EQ(WeightFormat::parse("fp8-block").bytes(out, in), out * in + 4 * (out / 128) * (in / 128));
  EXPECT_EQ(WeightFormat::parse("int8").bytes(out, in), out * in + 2 * out);
  EXPECT_EQ(WeightFormat::parse("int4").bytes(out, in), out * in / 2 + 4 * out * groups);
  // Rows that are not a multiple of the group size have a shorter last group.
  EXPECT_EQ(WeightFormat::parse("w4a16").bytes(3, 200), 300 + 2 * 3 * 2);
}

TEST(WeightFormat, RefusesWhatItDoesNotKnow) {
  EXPECT_THAT([] { WeightFormat::parse("int3"); }, ThrowsMessage<Error>(HasSubstr("int8, int4, fp8")));
  EXPECT_THAT([] { WeightFormat::parse("fp8:group=32"); }, ThrowsMessage<Error>(HasSubstr("'group=32'")));
  EXPECT_THAT([] { WeightFormat::parse("gptq:bits=16"); }, ThrowsMessage<Error>(HasSubstr("at most 8 bits")));
  EXPECT_THAT([] { WeightFormat::parse("gptq:bits=four"); }, ThrowsMessage<Error>(HasSubstr("whole number")));
}

// gpt2 has 12 layers with 12 heads of 64: a token takes 3,072 bytes per layer in bfloat16.
Graph gpt2(int64_t batch, int64_t tokens) {
  const FakeTensorMode mode({.device = c10::Device(at::kCUDA, 0)});
  const auto model = models::build("gpt2", {.batch = batch, .seq = tokens, .dtype = at::kBFloat16});
  const at::NoGradGuard no_grad;
  return capture_forward(models::program_of(model)).graph;
}
const std::vector<CacheLayer> kGpt2Cache(12, CacheLayer{.token_bytes = 2 * 768 * 2});

class ServingOfGpt2 : public ::testing::Test {
 protected:
  Serving serve_with(const std::function<void(ServingOptions&)>& change,
                     const std::vector<CacheLayer>& cache = kGpt2Cache) {
    ServingOptions options{.spec = &spec_, .context = 1024};
    change(options);
    return serve(gpt2, cache, options);
  }
  DeviceSpec spec_ = DeviceSpec::named("l4");
};

TEST_F(ServingOfGpt2, DividesWhatIsLeftIntoPages) {
  const Serving serving = serve_with([](ServingOptions&) {});
  EXPECT_EQ(serving.memory, spec_.memory);
  EXPECT_EQ(serving.weights, ParameterCount::of(gpt2(1, 16)).parameter_bytes + serving.weights - serving.weights_made);
  EXPECT_EQ(serving.token_bytes, 12 * 3072);
  EXPECT_EQ(serving.request_bytes, 1024 * 12 * 3072);
  const int64_t left = serving.engine - serving.weights - serving.activations - serving.context_bytes;
  EXPECT_EQ(serving.pages, left / (16 * 12 * 3072));
  EXPECT_EQ(serving.requests, serving.pages / 64);
  EXPECT_EQ(serving.longest, serving.pages * 16);
  EXPECT_EQ(serving.rows.back().requests, serving.requests);
  // Activations are those of the program with 8 sequences.
  const Profile pass = profile(gpt2(8, 1024));
  EXPECT_EQ(serving.activations, pass.peak_with_scratch.bytes - serving.weights_made);
}

TEST_F(ServingOfGpt2, RoundsRequestsToPagesAndEndsWindows) {
  auto cache = kGpt2Cache;
  for (size_t i = 0; i < 6; ++i) cache[i].window = 100;
  const Serving serving = serve_with([](ServingOptions& options) { options.context = 1001; }, cache);
  EXPECT_EQ(serving.request_bytes, 3072 * (6 * 1008 + 6 * 112));
  EXPECT_EQ(serving.token_bytes, 6 * 3072);
}

TEST(CacheLayer, CountsEntriesOfStridesAndTheTokensThatWait) {
  const CacheLayer entries{.token_bytes = 10, .state_bytes = 7, .stride = 128};
  EXPECT_EQ(entries.bytes(1000), 7 + 10 * 7);
  EXPECT_EQ(entries.bytes(1000, 16), 7 + 10 * 7);  // 1,008 tokens in pages
  EXPECT_EQ(entries.bytes(1020, 16), 7 + 10 * 8);  // 1,024
  const CacheLayer pending{.token_bytes = 10, .stride = 128, .pending = true};
  EXPECT_EQ(pending.bytes(1000, 16), 10 * 104);  // not in pages
  EXPECT_EQ(pending.bytes(1024), 0);
  EXPECT_EQ((CacheLayer{.token_bytes = 10, .window = 100}).bytes(1000, 16), 10 * 112);
}

TEST_F(ServingOfGpt2, ReadsQuantizedWeightsAsTheyAreStored) {
  const Serving made = serve_with([](ServingOptions&) {});
  const Serving stored = serve_with([](ServingOptions& options) { options.weights = WeightFormat::parse("int8"); });
  // Four matrices per layer; the head is tied to the embedding, which is not quantized.
  const int64_t matrices = 12 * (768 * 2304 + 768 * 768 + 2 * 768 * 3072);
  EXPECT_EQ(stored.quantized, matrices);
  // Conv1D stores weights as (in, out): one scale per row of that.
  EXPECT_EQ(made.weights - stored.weights, matrices - 12 * 2 * (768 + 768 + 768 + 3072));
  EXPECT_LT(stored.rows.front().next_token, made.rows.front().next_token);
  EXPECT_GT(stored.requests, made.requests);
  const Serving kept = serve_with([](ServingOptions& options) {
    options.weights = WeightFormat::parse("int8");
    options.kept = {"h.0."};
  });
  EXPECT_EQ(kept.quantized, matrices / 12 * 11);
}

TEST_F(ServingOfGpt2, WaitsLongerForMoreRequestsAndAnswersMore) {
  const Serving serving = serve_with([](ServingOptions&) {});
  ASSERT_GE(serving.rows.size(), 3);
  for (size_t i = 1; i < serving.rows.size(); ++i) {
    EXPECT_GT(serving.rows[i].next_token, serving.rows[i - 1].next_token);
    EXPECT_GT(serving.rows[i].tokens_per_second, serving.rows[i - 1].tokens_per_second);
  }
  const Serving short_prompt = serve_with([](ServingOptions& options) { options.prompt = 128; });
  EXPECT_LT(short_prompt.first_token, serving.first_token);
  EXPECT_EQ(short_prompt.requests, serving.requests);
}

TEST_F(ServingOfGpt2, SaysTheLongestThatFits) {
  const Serving serving = serve_with([](ServingOptions& options) {
    options.context = 1 << 30;
    options.max_batched_tokens = 1024;
  });
  EXPECT_FALSE(serving.fits());
  EXPECT_EQ(serving.longest, serving.pages * 16);
  EXPECT_THAT(to_text(serving), HasSubstr("does not fit: no request of 1,073,741,824 tokens"));
  EXPECT_THAT(to_text(serving), HasSubstr("the longest request that fits"));
  const Serving tiny = serve_with([](ServingOptions& options) { options.memory = 600 << 20; });
  EXPECT_EQ(tiny.longest, 0);
  EXPECT_THAT(to_text(tiny), HasSubstr("not even one token"));
}

TEST_F(ServingOfGpt2, RefusesOptionsThatContradict) {
  const auto refusal = [&](const std::function<void(ServingOptions&)>& change, const char* said) {
    EXPECT_THAT([&] { serve_with(change); }, ThrowsMessage<Error>(HasSubstr(said)));
  };
  refusal([](ServingOptions& options) { options.spec = nullptr; }, "spec");
  refusal([](ServingOptions& options) { options.context = 0; }, "context");
  refusal([](ServingOptions& options) { options.prompt = 2000; }, "longer than the request");
  refusal([](ServingOptions& options) { options.memory_share = 1.5; }, "memory_share must be");
  refusal([](ServingOptions& options) { options.page = 0; }, "page and max_batched_tokens");
  EXPECT_THAT([&] { serve_with([](ServingOptions&) {}, {CacheLayer{.token_bytes = 1, .stride = 0}}); },
              ThrowsMessage<Error>(HasSubstr("stride")));
  refusal(
      [](ServingOptions& options) {
        options.weights = WeightFormat::parse("int8");
        options.kept = {""};
      },
      "no weight can be quantized");
  EXPECT_THAT([&] { serve_with([](ServingOptions&) {}, {}); }, ThrowsMessage<Error>(HasSubstr("has no KV cache")));
}

}  // namespace
}  // namespace shadowgraph
