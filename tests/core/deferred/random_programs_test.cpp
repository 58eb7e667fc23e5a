// Compares the random programs of tests/random, deferred and materialized in sampled orders, with eager.
//
// SHADOWGRAPH_RANDOM_PROGRAMS and SHADOWGRAPH_RANDOM_SEED set the number of programs and the first seed.
#include <cstdlib>
#include <random>

#include "tests/core/deferred/check.h"
#include "tests/random/program.h"

namespace shadowgraph {
namespace {

using namespace testing;

// Runs the program as a constructor. Its inputs are clones of whole storages created outside, so they keep the strides,
// offsets and aliases that the program expects. They refer to those clones through set_ or as views; eager refuses some
// programs on views (detach_). Returns the outputs followed by the inputs.
class Constructor {
 public:
  explicit Constructor(const RandomProgram& program) : program_(program), outside_(program.inputs()) {
    for (const at::Tensor& input : outside_) {
      const auto elements = static_cast<int64_t>(input.storage().nbytes() / input.element_size());
      wholes_.push_back(at::empty({0}, input.options()).set_(input.storage(), 0, {elements}, {1}));
    }
  }
  Tensors operator()() const {
    Tensors inputs;
    Tensors clones;
    for (size_t i = 0; i < outside_.size(); ++i) {
      size_t first = 0;
      while (!wholes_[first].is_alias_of(wholes_[i])) ++first;
      clones.push_back(first < i ? clones[first] : wholes_[i].clone());
      const auto sizes = outside_[i].sizes();
      const auto strides = outside_[i].strides();
      const int64_t offset = outside_[i].storage_offset();
      if (program_.seed() % 4 == 0) {
        inputs.push_back(clones[i].as_strided(sizes, strides, offset));
      } else {
        inputs.push_back(at::empty({0}, clones[i].options()).set_(clones[i], offset, sizes, strides));
      }
    }
    Tensors all = program_.run(inputs);
    all.insert(all.end(), inputs.begin(), inputs.end());
    return all;
  }

 private:
  const RandomProgram& program_;
  Tensors outside_;
  Tensors wholes_;
};

// Returns the message that f throws, or "".
template <class F>
std::string refusal(F&& f) {
  try {
    f();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

// Returns the first difference, or "".
std::string difference_from_eager(const RandomProgram& program) {
  const Constructor make(program);
  const uint64_t seed = program.seed();
  at::manual_seed(seed);
  Tensors eager;
  const std::string refused = refusal([&] { eager = make(); });
  const RandomState left = process_state();
  at::manual_seed(seed);
  Tensors described;
  const std::string also_refused = refusal([&] { described = deferred_init(make); });
  if (refused.empty() != also_refused.empty() || also_refused.find(refused) == std::string::npos) {
    return "refused, in eager: '" + refused + "', described: '" + also_refused + "'";
  }
  if (!refused.empty()) return "";
  if (!(process_state() == left)) return "the generator is left otherwise";
  std::vector<size_t> order(eager.size());
  std::iota(order.begin(), order.end(), 0U);
  std::mt19937 shuffle(static_cast<uint32_t>(seed));
  std::shuffle(order.begin(), order.end(), shuffle);
  for (const size_t i : order) {
    materialize_tensor(described[i]);
    if (!same_bits(described[i], eager[i])) return c10::str("tensor ", i, ":\n", described[i], "\n", eager[i]);
  }
  for (const size_t i : order) {
    for (const size_t j : order) {
      if (described[i].is_same(described[j]) != eager[i].is_same(eager[j])) return c10::str(i, " is ", j, " or not");
      if (described[i].is_alias_of(described[j]) != eager[i].is_alias_of(eager[j])) {
        return c10::str(i, " and ", j, " share a storage, or not");
      }
    }
  }
  return "";
}

TEST(DeferredProperty, AnyProgramInSampledOrders) {
  const char* first = std::getenv("SHADOWGRAPH_RANDOM_SEED");
  const uint64_t begin = first != nullptr ? std::strtoull(first, nullptr, 10) : 0;
  const auto count = static_cast<uint64_t>(shadowgraph::testing::random_program_count(first != nullptr ? 1 : 400));
  int failed = 0;
  for (uint64_t seed = begin; seed < begin + count && failed < 20; ++seed) {
    const RandomProgram program = RandomProgram::make(seed, 8 + static_cast<int>(seed % 25));
    std::string found;
    const std::string thrown = refusal([&] { found = difference_from_eager(program); });
    if (found.empty()) found = thrown;
    if (found.empty()) continue;
    ++failed;
    ADD_FAILURE() << found << "\n" << program.describe();
  }
}

// A view reads no data, but it fits within its storage only after that has grown.
TEST(DeferredProperty, ViewsOfStoragesThatHaveGrown) {
  shadowgraph::testing::expect_as_eager_in_every_order([] {
    at::Tensor base = at::rand({3});
    at::Tensor other = base.detach();
    other.resize_({4, 4}).fill_(2);
    at::Tensor view = base.as_strided({2, 4}, {4, 1}, 0);
    at::Tensor large = at::empty({0});
    at::Tensor same = large.detach();
    at::add_out(same, at::rand({4}), at::rand({4}));
    return Tensors{at::zeros_like(view), at::rand_like(large.as_strided({4}, {1}, 0)), base, same};
  });
}

}  // namespace
}  // namespace shadowgraph
