#include "core/deferred/random_draws.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/bernoulli.h>
#include <ATen/ops/cauchy.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/exponential.h>
#include <ATen/ops/geometric.h>
#include <ATen/ops/normal.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "core/deferred/mt19937_jump.h"
#include "core/fake/known_contents.h"

namespace shadowgraph {
namespace {

using Kind = Consumption::Kind;

at::CPUGeneratorImpl& impl_of(const at::Generator& generator) {
  return *static_cast<at::CPUGeneratorImpl*>(generator.unsafeGetGeneratorImpl());
}

Consumption words(uint64_t count) { return {Kind::kWords, count}; }

uint64_t elements(const Graph& graph, ValueId value) { return static_cast<uint64_t>(graph.numel(value)); }

// Returns the words that one uniform number takes; 0 for a dtype that the kernels do not have.
uint64_t words_of_uniform(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
    case at::kHalf:
    case at::kBFloat16:
      return 1;
    case at::kDouble:
      return 2;
    default:
      return 0;
  }
}

Consumption of_uniform(const Graph& graph, ValueId value) {
  const uint64_t each = words_of_uniform(graph.value(value).dtype);
  return each == 0 ? Consumption() : words(each * elements(graph, value));
}

Consumption of_normal(const Graph& graph, ValueId value) {
  const at::ScalarType dtype = graph.value(value).dtype;
  const uint64_t each = words_of_uniform(dtype);
  const uint64_t n = elements(graph, value);
  if (each == 0) return {};
  if (n < 16 || !graph.is_contiguous(value)) return {Kind::kNormals, n};
  const uint64_t tail = n % 16 != 0 ? 16 : 0;
  // Half types are made sixteen at a time; the others are first filled as a whole.
  const bool whole = dtype == at::kFloat || dtype == at::kDouble;
  return words(each * ((whole ? n : n - n % 16) + tail));
}

Consumption of_random(const Graph& graph, ValueId value) {
  const at::ScalarType dtype = graph.value(value).dtype;
  return words((dtype == at::kDouble || dtype == at::kLong ? 2 : 1) * elements(graph, value));
}

Consumption of_range(const Graph& graph, ValueId value, int64_t from, int64_t to) {
  const uint64_t range = static_cast<uint64_t>(to) - static_cast<uint64_t>(from);
  constexpr uint64_t kWide = uint64_t{1} << 28;
  // Floating types round the bounds first, so nothing is decided here near the limit.
  if (range > kWide - kWide / 64 && range < kWide + kWide / 64 &&
      !at::isIntegralType(graph.value(value).dtype, /*includeBool=*/true)) {
    return {};
  }
  return words((range >= kWide ? 2 : 1) * elements(graph, value));
}

// ---- Operators whose kernels may be MKL's

using Sampler = void (*)(at::Tensor&, const at::Generator&);

struct Line {
  bool straight = false;
  uint64_t each = 0;
  uint64_t constant = 0;
};

Line measure(Sampler sample, at::ScalarType dtype) {
  const RealCalls real;
  const auto drawn_for = [&](int64_t n) -> uint64_t {
    const at::Generator generator = at::detail::createCPUGenerator(1);
    at::Tensor tensor = at::empty({n}, at::TensorOptions().dtype(dtype).device(at::kCPU));
    sample(tensor, generator);
    const at::mt19937_data_pod after = impl_of(generator).engine().data();
    at::mt19937_data_pod engine = at::mt19937(1).data();
    for (uint64_t count = 0; count <= 8192; ++count) {
      if (engine.next_ == after.next_ && engine.left_ == after.left_ && engine.state_ == after.state_) return count;
      advance(engine, 1);
    }
    return ~uint64_t{0};
  };
  const uint64_t a = drawn_for(10);
  const uint64_t b = drawn_for(20);
  const uint64_t c = drawn_for(1000);
  if (b < a || c < b) return {};
  const uint64_t each = (b - a) / 10;
  if (b != a + 10 * each || c != a + 990 * each || 10 * each > a) return {};
  return {true, each, a - 10 * each};
}

Consumption of_sampler(const Graph& graph, ValueId value, Sampler sample) {
  static std::mutex mutex;
  static auto* known = new std::map<std::pair<Sampler, at::ScalarType>, Line>;
  const at::ScalarType dtype = graph.value(value).dtype;
  if (!graph.is_contiguous(value) || elements(graph, value) == 0) return {};
  const std::lock_guard lock(mutex);
  const auto [entry, added] = known->try_emplace({sample, dtype});
  if (added) entry->second = measure(sample, dtype);
  const Line& line = entry->second;
  return line.straight ? words(line.each * elements(graph, value) + line.constant) : Consumption();
}

// ---- Rows

enum class Family : uint8_t { kUniform, kNormal, kRandom, kRange, kPermutation, kSampler };

struct Row {
  std::string_view name;
  Family family;
  Sampler sample = nullptr;
};

constexpr Row kRows[] = {
    {"aten::uniform_", Family::kUniform},
    {"aten::rand", Family::kUniform},
    {"aten::rand.generator", Family::kUniform},
    {"aten::rand_like", Family::kUniform},
    {"aten::normal_", Family::kNormal},
    {"aten::randn", Family::kNormal},
    {"aten::randn.generator", Family::kNormal},
    {"aten::randn_like", Family::kNormal},
    {"aten::normal.float_float", Family::kNormal},
    {"aten::random_", Family::kRandom},
    {"aten::random_.to", Family::kRange},
    {"aten::random_.from", Family::kRange},
    {"aten::randint", Family::kRange},
    {"aten::randint.generator", Family::kRange},
    {"aten::randint.low", Family::kRange},
    {"aten::randint.low_generator", Family::kRange},
    {"aten::randint_like", Family::kRange},
    {"aten::randint_like.low_dtype", Family::kRange},
    {"aten::randperm", Family::kPermutation},
    {"aten::randperm.generator", Family::kPermutation},
    {"aten::bernoulli_.float", Family::kSampler, [](at::Tensor& t, const at::Generator& g) { t.bernoulli_(0.5, g); }},
    {"aten::exponential_", Family::kSampler, [](at::Tensor& t, const at::Generator& g) { t.exponential_(1, g); }},
    {"aten::cauchy_", Family::kSampler, [](at::Tensor& t, const at::Generator& g) { t.cauchy_(0, 1, g); }},
    {"aten::geometric_", Family::kSampler, [](at::Tensor& t, const at::Generator& g) { t.geometric_(0.5, g); }},
};

const Row* find_row(std::string_view name) {
  const auto* row = std::find_if(std::begin(kRows), std::end(kRows), [&](const Row& r) { return r.name == name; });
  return row == std::end(kRows) ? nullptr : row;
}

ValueId filled_value(const Graph& graph, NodeId node) {
  const auto results = graph.results(node);
  return results.size() == 1 && results[0].kind == ArgumentKind::kValue ? results[0].ref.value : ValueId();
}

Consumption of_range_arguments(const Graph& graph, NodeId node, ValueId value) {
  const Argument* from = graph.find_argument(node, "from");
  if (from == nullptr) from = graph.find_argument(node, "low");
  const Argument* to = graph.find_argument(node, "to");
  if (to == nullptr) to = graph.find_argument(node, "high");
  if (to == nullptr || to->kind != ArgumentKind::kInt || (from != nullptr && from->kind != ArgumentKind::kInt))
    return {};
  return of_range(graph, value, from != nullptr ? from->i : 0, to->i);
}

}  // namespace

// ---- States

RandomState RandomState::of(const at::Generator& generator) {
  at::CPUGeneratorImpl& impl = impl_of(generator);
  const std::lock_guard lock(impl.mutex_);
  return {impl.engine().data(), impl.next_float_normal_sample(), impl.next_double_normal_sample()};
}

void RandomState::put_into(const at::Generator& generator) const {
  at::CPUGeneratorImpl& impl = impl_of(generator);
  const std::lock_guard lock(impl.mutex_);
  at::mt19937 moved = impl.engine();  // a new one would seed itself, which takes longer than a draw's record
  moved.set_data(engine);
  impl.set_engine(moved);
  impl.set_next_float_normal_sample(next_float);
  impl.set_next_double_normal_sample(next_double);
}

bool operator==(const RandomState& a, const RandomState& b) {
  return a.engine.seed_ == b.engine.seed_ && a.engine.left_ == b.engine.left_ && a.engine.next_ == b.engine.next_ &&
         a.engine.state_ == b.engine.state_ && a.next_float == b.next_float && a.next_double == b.next_double;
}

// ---- Consumption

Consumption consumption_of(const Graph& graph, NodeId node) {
  if (!graph.facts(node).draws) return {};
  const Row* row = find_row(graph.target(node).name());
  const ValueId value = filled_value(graph, node);
  if (row == nullptr || !value.valid()) return {};
  switch (row->family) {
    case Family::kUniform:
      return of_uniform(graph, value);
    case Family::kNormal:
      return of_normal(graph, value);
    case Family::kRandom:
      return of_random(graph, value);
    case Family::kRange:
      return of_range_arguments(graph, node, value);
    case Family::kPermutation: {
      const uint64_t n = elements(graph, value);
      return n > uint64_t{1} << 31 ? Consumption() : words(n == 0 ? 0 : n - 1);
    }
    case Family::kSampler:
      return of_sampler(graph, value, row->sample);
  }
  return {};
}

void skip(RandomState& state, const Consumption& consumption) {
  TORCH_INTERNAL_ASSERT(consumption.is_known());
  if (consumption.kind == Kind::kWords) {
    advance(state.engine, consumption.count);
    return;
  }
  uint64_t samples = consumption.count;
  if (samples != 0 && state.next_double) {
    state.next_double.reset();
    --samples;
  }
  if (samples == 0) return;
  const uint64_t pairs = (samples + 1) / 2;
  advance(state.engine, 4 * (pairs - 1));
  if (samples % 2 == 0) {
    advance(state.engine, 4);
    return;
  }
  // The second half of the last pair stays in the generator, so it must be made.
  const RealCalls real;
  const at::Generator generator = at::detail::createCPUGenerator();
  state.put_into(generator);
  at::empty({1}, at::TensorOptions().dtype(at::kDouble).device(at::kCPU)).normal_(0, 1, generator);
  state = RandomState::of(generator);
}

RandomFill random_fill_of(const Graph& graph, NodeId node) {
  const Row* row = find_row(graph.target(node).name());
  const ValueId value = filled_value(graph, node);
  if (row == nullptr || !value.valid() || !graph.is_contiguous(value)) return {};
  const uint64_t n = elements(graph, value);
  const Consumption whole = consumption_of(graph, node);
  if (!whole.is_known() || n == 0) return {};
  if (row->family == Family::kNormal) {
    if (whole.kind != Kind::kWords) return {};
    return {FillKind::kBlocks16, words_of_uniform(graph.value(value).dtype)};
  }
  if (row->family == Family::kPermutation || whole.count % n != 0) return {};
  return {FillKind::kSerial, whole.count / n};
}

}  // namespace shadowgraph
