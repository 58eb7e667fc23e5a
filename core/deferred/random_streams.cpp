#include "core/deferred/random_streams.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <atomic>
#include <mutex>

#include "core/deferred/mt19937_jump.h"
#include "core/fake/known_contents.h"
#include "shadowgraph/error.h"

namespace shadowgraph {
namespace {

using Kind = Consumption::Kind;

Consumption words(uint64_t count) { return {Kind::kWords, count}; }

uint64_t elements(const Graph& graph, ValueId value) { return static_cast<uint64_t>(graph.numel(value)); }

// Returns the words per uniform number; 0 for unsupported dtypes.
uint64_t words_of_uniform(at::ScalarType dtype) {
  if (dtype == at::kDouble) return 2;
  return dtype == at::kFloat || dtype == at::kHalf || dtype == at::kBFloat16 ? 1 : 0;
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
  // Half types are drawn in blocks of sixteen; the others are first filled completely.
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
  // Floating-point types round the bounds first, so nothing is assumed near the limit.
  if (range > kWide - kWide / 64 && range < kWide + kWide / 64 &&
      !at::isIntegralType(graph.value(value).dtype, /*includeBool=*/true)) {
    return {};
  }
  return words((range >= kWide ? 2 : 1) * elements(graph, value));
}

using Sampler = void (*)(at::Tensor&, const at::Generator&);

// A linear function of the number of elements.
struct Line {
  bool straight = false;  // the measurement was linear
  uint64_t each = 0, constant = 0;
};

Line measure(Sampler sample, at::ScalarType dtype) {
  const RealCalls real;
  const auto drawn_for = [&](int64_t n) -> uint64_t {
    const at::Generator generator = at::detail::createCPUGenerator(1);
    at::Tensor tensor = at::empty({n}, at::TensorOptions().dtype(dtype).device(at::kCPU));
    sample(tensor, generator);
    const at::mt19937_data_pod after = RandomState::of(generator).engine;
    at::mt19937_data_pod engine = at::mt19937(1).data();
    for (uint64_t count = 0; count <= 8192; ++count) {
      if (engine.next_ == after.next_ && engine.left_ == after.left_ && engine.state_ == after.state_) return count;
      advance(engine, 1);
    }
    return ~uint64_t{0};
  };
  const uint64_t a = drawn_for(10), b = drawn_for(20), c = drawn_for(1000);
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
  const auto* row = std::ranges::find(kRows, name, &Row::name);
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
  // The second half of the last pair is cached in the generator, so it must be computed.
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

namespace {

// Vigna's splitmix64: a well-mixed function of 64-bit integers.
uint64_t mixed(uint64_t x) {
  x += 0x9E3779B97F4A7C15U;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9U;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBU;
  return x ^ (x >> 31);
}

uint64_t next_nonce() {
  static std::atomic<uint64_t> last{0};
  return mixed(c10::detail::getNonDeterministicRandom() + ++last);
}

constexpr uint32_t kMagic = 0x5347646EU;
constexpr size_t kUnpinned = 64;     // unpinned states kept per stream, 2.5 KB each
constexpr uint64_t kFar = 1U << 20;  // distance in words from which a state is kept
constexpr uint32_t kManyDraws = 64;  // the same in draws

}  // namespace

RandomStreams::RandomStreams(const Graph& graph, RunDraw run)
    : graph_(graph), run_(std::move(run)), nonce_(next_nonce()) {}

// Fills a ticket with pseudorandom words, so that unrecorded draws from it at least look random.
void RandomStreams::make_noise(Stream& stream) const {
  at::mt19937_data_pod& engine = stream.noise;
  engine = stream.known.begin()->second.state.engine;
  const auto number = static_cast<uint64_t>(streams_.size());
  for (size_t i = 0; i < engine.state_.size(); ++i) {
    engine.state_[i] = static_cast<uint32_t>(mixed(nonce_ + number * 1024 + i));
  }
  engine.state_[0] = kMagic;
  engine.state_[1] = static_cast<uint32_t>(nonce_ >> 32);
  engine.state_[2] = static_cast<uint32_t>(nonce_);
  engine.left_ = 1;
  engine.next_ = 0;
}

at::mt19937_data_pod RandomStreams::ticket(const Stream& stream) {
  at::mt19937_data_pod engine = stream.noise;
  const Point end = stream.end();
  engine.state_[3] = end.draw;
  engine.state_[4] = end.segment;
  engine.seed_ = stream.known.at({end.segment, stream.segments.back()}).state.engine.seed_;  // initial_seed()
  return engine;
}

void RandomStreams::put_ticket(uint32_t number) {
  Stream& stream = streams_[number];
  RandomState{ticket(stream), std::nullopt, std::nullopt}.put_into(stream.generator);
  stream.has_ticket = true;
}

std::optional<RandomState> RandomStreams::state_of_ticket(const RandomState& state) {
  const auto& words = state.engine.state_;
  if (words[0] != kMagic || !is_untouched(state.engine)) return std::nullopt;
  for (uint32_t i = 0; i < streams_.size(); ++i) {
    const auto& noise = streams_[i].noise.state_;
    const Point named{words[4], words[3]};
    const bool ours = words[1] == noise[1] && words[2] == noise[2] && words[10] == noise[10];
    if (ours && named <= streams_[i].end()) return state_at(i, named);
  }
  return std::nullopt;
}

RandomState RandomStreams::current_state(const at::Generator& generator) {
  const RandomState found = RandomState::of(generator);
  return state_of_ticket(found).value_or(found);
}

// Detects changes of the generator's state since the last ticket.
void RandomStreams::observe(uint32_t number) {
  Stream& stream = streams_[number];
  if (!stream.has_ticket) return;
  const RandomState found = RandomState::of(stream.generator);
  if (found.engine.state_ == ticket(stream).state_ && is_untouched(found.engine)) return;
  if (const auto restored = state_of_ticket(found)) {
    begin_segment(streams_[number], *restored);
    return;
  }
  if (is_drawn_from(ticket(stream), found.engine)) {
    put_ticket(number);
    throw DeferredError(
        "random numbers were drawn outside the recording while deferred_init was active, by another thread or directly "
        "from the generator, and differ from those of an eager run. Draw them under an UnfakeGuard, or outside of "
        "deferred_init");
  }
  begin_segment(stream, found);
}

uint32_t RandomStreams::stream_of(const std::optional<at::Generator>& generator) {
  // Generators of simulated devices produce no numbers: their draws use the CPU's, as if the module was created there.
  const bool is_cpu = generator && generator->defined() && generator->device().is_cpu();
  const at::Generator& wanted = is_cpu ? *generator : at::detail::getDefaultCPUGenerator();
  for (uint32_t i = 0; i < streams_.size(); ++i) {
    if (streams_[i].generator.unsafeGetGeneratorImpl() == wanted.unsafeGetGeneratorImpl()) return i;
  }
  Stream stream;
  stream.generator = wanted;
  begin_segment(stream, current_state(wanted));
  make_noise(stream);
  streams_.push_back(std::move(stream));
  return static_cast<uint32_t>(streams_.size()) - 1;
}

void RandomStreams::resume() {
  active_ = true;
  const uint32_t number = stream_of(std::nullopt);
  begin_segment(streams_[number], current_state(streams_[number].generator));
  put_ticket(number);
}

void RandomStreams::pause() {
  active_ = false;
  std::exception_ptr failure;
  for (uint32_t i = 0; i < streams_.size(); ++i) {
    if (!streams_[i].has_ticket) continue;
    try {
      observe(i);
    } catch (const DeferredError&) {
      failure = std::current_exception();
    }
    const Point end = streams_[i].end();
    try {
      state_at(i, end).put_into(streams_[i].generator);
    } catch (const std::exception&) {
      failure = std::current_exception();
      const auto last = std::prev(streams_[i].known.upper_bound(end));
      last->second.state.put_into(streams_[i].generator);
    }
    streams_[i].has_ticket = false;
  }
  if (failure) std::rethrow_exception(failure);
}

void RandomStreams::draw(NodeId node, const std::optional<at::Generator>& generator) {
  const uint32_t number = stream_of(generator);
  const auto position = static_cast<uint32_t>(streams_[number].draws.size());
  if (streams_[number].has_ticket) {
    observe(number);
  } else {
    // First use, or the stream was used outside of the recording: take its current state.
    begin_segment(streams_[number], current_state(streams_[number].generator));
  }
  Stream& stream = streams_[number];
  stream.draws.push_back({node, consumption_of(graph_, node)});
  places_[node] = {number, position};
  if (active_) {
    put_ticket(number);
  } else {
    state_at(number, stream.end()).put_into(stream.generator);
  }
}

void RandomStreams::watch(const at::Generator& generator) {
  if (!active_ || !generator.device().is_cpu()) return;
  const uint32_t number = stream_of(generator);
  if (streams_[number].has_ticket) return;
  begin_segment(streams_[number], current_state(generator));
  put_ticket(number);
}

void RandomStreams::begin_segment(Stream& stream, const RandomState& state) {
  stream.segments.push_back(static_cast<uint32_t>(stream.draws.size()));
  keep(stream, stream.end(), state, /*pinned=*/true);
}

void RandomStreams::keep(Stream& stream, Point point, const RandomState& state, bool pinned) {
  const auto [entry, added] = stream.known.try_emplace(point, Known{state, pinned});
  if (!added) {
    if (pinned) entry->second = {state, true};
    return;
  }
  if (pinned) return;
  if (stream.unpinned.size() < kUnpinned) {
    stream.unpinned.push_back(point);
    return;
  }
  Point& oldest = stream.unpinned[stream.next_unpinned++ % kUnpinned];
  const auto old = stream.known.find(oldest);
  if (old != stream.known.end() && !old->second.pinned) stream.known.erase(old);
  oldest = point;
}

RandomState RandomStreams::state_before(Place place) {
  return state_at(place.stream, streams_[place.stream].before(place.draw));
}

RandomState RandomStreams::state_at(uint32_t number, Point point) {
  // A segment begins with a known state, so the nearest one is of the same segment.
  const auto nearest = [&](const Stream& stream) {
    const auto known = std::prev(stream.known.upper_bound(point));
    std::pair<uint32_t, const RandomState*> best{known->first.draw, &known->second.state};
    if (stream.at_cursor && stream.cursor <= point && stream.cursor > known->first) {
      best = {stream.cursor.draw, &*stream.at_cursor};
    }
    return best;
  };
  const auto [first, start] = nearest(streams_[number]);
  RandomState state = *start;
  uint64_t words = 0, total = 0;
  const auto flush = [&] { skip(state, {Consumption::Kind::kWords, std::exchange(words, 0)}); };
  for (uint32_t i = first; i < point.draw; ++i) {
    const auto [node, consumption] = streams_[number].draws[i];
    if (consumption.kind == Consumption::Kind::kWords) {
      words += consumption.count;
      total += consumption.count;
      continue;
    }
    flush();
    if (consumption.is_known()) {
      skip(state, consumption);
    } else {
      state = run_(node, state);
      keep(streams_[number], {point.segment, i + 1}, state, /*pinned=*/true);
    }
  }
  flush();
  if (total > kFar || point.draw - first > kManyDraws) keep(streams_[number], point, state, /*pinned=*/false);
  return state;
}

void RandomStreams::note_state_after(Place place, const RandomState& state) {
  Stream& stream = streams_[place.stream];
  stream.cursor = {stream.before(place.draw).segment, place.draw + 1};
  stream.at_cursor = state;
}

RandomState independent_state(uint64_t seed, RandomStreams::Place place) {
  const uint64_t key = mixed(mixed(seed) ^ (uint64_t{place.stream} << 32 | place.draw));
  return {at::mt19937(key).data(), std::nullopt, std::nullopt};
}

}  // namespace shadowgraph
