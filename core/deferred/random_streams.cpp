#include "core/deferred/random_streams.h"

#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>
#include <atomic>

#include "core/deferred/mt19937_jump.h"
#include "shadowgraph/error.h"

namespace shadowgraph {
namespace {

// Vigna's splitmix64 makes well-mixed 64-bit numbers from consecutive ones.
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
constexpr size_t kUnpinned = 64;           // known states kept per stream, 2.5 KB each
constexpr uint64_t kFar = 1U << 20;        // words after which a state is worth keeping
constexpr uint32_t kManyDraws = 64;        // likewise, draws
constexpr uint64_t kForeignBlocks = 4096;  // how far a ticket is searched for among states drawn from it

}  // namespace

RandomStreams::RandomStreams(const Graph& graph, RunDraw run)
    : graph_(graph), run_(std::move(run)), nonce_(next_nonce()) {}

// ---- Tickets

// Fills a ticket with noise: whoever draws from it past the record at least gets numbers that look random.
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
  engine.state_[3] = static_cast<uint32_t>(stream.draws.size());
  return engine;
}

void RandomStreams::put_ticket(uint32_t number) {
  Stream& stream = streams_[number];
  RandomState{ticket(stream), std::nullopt, std::nullopt}.put_into(stream.generator);
  stream.has_ticket = true;
}

// Finds what the program has done to the generator since the last ticket.
void RandomStreams::observe(uint32_t number) {
  Stream& stream = streams_[number];
  if (!stream.has_ticket) return;
  const RandomState found = RandomState::of(stream.generator);
  const auto position = static_cast<uint32_t>(stream.draws.size());
  const auto& noise = stream.noise.state_;
  const auto& words = found.engine.state_;
  const bool ours = words[0] == kMagic && words[1] == noise[1] && words[2] == noise[2] && words[10] == noise[10] &&
                    found.engine.left_ == 1 && found.engine.next_ == 0;
  if (ours && words[3] == position) return;
  if (ours && words[3] < position) {
    const RandomState restored = state_at(number, words[3]);
    keep(streams_[number], position, restored, /*pinned=*/true);
    return;
  }
  at::mt19937_data_pod drawn_from = ticket(stream);
  for (uint64_t block = 0; block < kForeignBlocks; ++block) {
    advance(drawn_from, drawn_from.left_ == 1 && drawn_from.next_ == 0 ? 1 : 624);
    if (drawn_from.state_ != words) continue;
    put_ticket(number);
    throw GeneratorMovedError(
        "numbers were drawn from a random generator past the record while a program was being described: by another "
        "thread, or directly from the generator. What they were is not what running the program would give. Draw them "
        "under an UnfakeGuard, or outside deferred_init");
  }
  keep(stream, position, found, /*pinned=*/true);
  stream.at_cursor.reset();
}

uint32_t RandomStreams::stream_of(const std::optional<at::Generator>& generator) {
  // Generators of pretended devices have no numbers of their own: draws follow the CPU's, as if built there.
  const bool is_cpu = generator && generator->defined() && generator->device().is_cpu();
  const at::Generator& wanted = is_cpu ? *generator : at::detail::getDefaultCPUGenerator();
  for (uint32_t i = 0; i < streams_.size(); ++i) {
    if (streams_[i].generator.unsafeGetGeneratorImpl() == wanted.unsafeGetGeneratorImpl()) return i;
  }
  Stream stream;
  stream.generator = wanted;
  keep(stream, 0, RandomState::of(wanted), /*pinned=*/true);
  make_noise(stream);
  streams_.push_back(std::move(stream));
  return static_cast<uint32_t>(streams_.size()) - 1;
}

void RandomStreams::resume() {
  active_ = true;
  const uint32_t number = stream_of(std::nullopt);
  Stream& stream = streams_[number];
  keep(stream, static_cast<uint32_t>(stream.draws.size()), RandomState::of(stream.generator), /*pinned=*/true);
  put_ticket(number);
}

void RandomStreams::pause() {
  active_ = false;
  std::exception_ptr failure;
  for (uint32_t i = 0; i < streams_.size(); ++i) {
    if (!streams_[i].has_ticket) continue;
    try {
      observe(i);
    } catch (const GeneratorMovedError&) {
      failure = std::current_exception();
    }
    const auto end = static_cast<uint32_t>(streams_[i].draws.size());
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
    // The stream was not met before, or was met outside the described program: it is where it is.
    keep(streams_[number], position, RandomState::of(streams_[number].generator), /*pinned=*/true);
    streams_[number].at_cursor.reset();
  }
  Stream& stream = streams_[number];
  stream.draws.push_back({node, consumption_of(graph_, node)});
  places_[node] = {number, position};
  if (active_) {
    put_ticket(number);
  } else {
    state_at(number, position + 1).put_into(streams_[number].generator);
  }
}

// ---- States

void RandomStreams::keep(Stream& stream, uint32_t draw, const RandomState& state, bool pinned) {
  const auto [entry, added] = stream.known.try_emplace(draw, Known{state, pinned});
  if (!added) {
    if (pinned) entry->second = {state, true};
    return;
  }
  if (pinned) return;
  if (stream.unpinned.size() < kUnpinned) {
    stream.unpinned.push_back(draw);
    return;
  }
  uint32_t& oldest = stream.unpinned[stream.next_unpinned++ % kUnpinned];
  const auto old = stream.known.find(oldest);
  if (old != stream.known.end() && !old->second.pinned) stream.known.erase(old);
  oldest = draw;
}

RandomState RandomStreams::state_before(Place place) { return state_at(place.stream, place.draw); }

RandomState RandomStreams::state_at(uint32_t number, uint32_t draw) {
  const auto nearest = [&](const Stream& stream) {
    const auto known = std::prev(stream.known.upper_bound(draw));
    std::pair<uint32_t, const RandomState*> best{known->first, &known->second.state};
    if (stream.at_cursor && stream.cursor <= draw && stream.cursor > best.first) {
      best = {stream.cursor, &*stream.at_cursor};
    }
    return best;
  };
  const auto [first, start] = nearest(streams_[number]);
  RandomState state = *start;
  uint64_t words = 0;
  uint64_t total = 0;
  const auto flush = [&] { skip(state, {Consumption::Kind::kWords, std::exchange(words, 0)}); };
  for (uint32_t i = first; i < draw; ++i) {
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
      keep(streams_[number], i + 1, state, /*pinned=*/true);
    }
  }
  flush();
  if (total > kFar || draw - first > kManyDraws) keep(streams_[number], draw, state, /*pinned=*/false);
  return state;
}

void RandomStreams::note_state_after(Place place, const RandomState& state) {
  Stream& stream = streams_[place.stream];
  // A base there says otherwise: the program seeded after this draw.
  if (stream.known.contains(place.draw + 1)) return;
  stream.cursor = place.draw + 1;
  stream.at_cursor = state;
}

RandomState independent_state(uint64_t seed, RandomStreams::Place place) {
  const uint64_t key = mixed(mixed(seed) ^ (uint64_t{place.stream} << 32 | place.draw));
  return {at::mt19937(key).data(), std::nullopt, std::nullopt};
}

}  // namespace shadowgraph
