#include "core/calls/program_generators.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>

#include "core/fake/known_contents.h"
#include "core/fake/mode_state.h"
#include "shadowgraph/error.h"
#include "support/text.h"

namespace shadowgraph {
namespace {

constexpr std::string_view kAlways = "always ";
constexpr std::string_view kSeed = "seed ";

std::string metadata_key(std::string_view name) { return "generator " + std::string(name); }

bool same_state(const at::Tensor& a, const at::Tensor& b) {
  const RealCalls real;
  return a.defined() && b.defined() && at::equal(a, b);
}

// The generators of programs in this process, by the number stored in an Argument.
class KnownGenerators {
 public:
  struct Entry {
    c10::weak_intrusive_ptr<c10::GeneratorImpl> generator{c10::intrusive_ptr<c10::GeneratorImpl>()};
    const c10::GeneratorImpl* address = nullptr;
    at::Tensor state;     // undefined if the device does not support it
    bool always = false;  // every run begins with the state
  };

  static KnownGenerators& all() {
    static auto* known = new KnownGenerators;
    return *known;
  }

  // Returns whether any program has used one.
  bool any() {
    const std::lock_guard lock(mutex_);
    return last_ != 0;
  }

  bool reserve(const at::Generator& generator) {
    const std::lock_guard lock(mutex_);
    return reserved_.insert(generator.unsafeGetGeneratorImpl()).second;
  }
  void release(const at::Generator& generator) {
    const std::lock_guard lock(mutex_);
    reserved_.erase(generator.unsafeGetGeneratorImpl());
  }
  void begin_runs_with(int64_t number, const at::Tensor& state) {
    const std::lock_guard lock(mutex_);
    entries_.at(number).state = state;
    entries_.at(number).always = true;
  }

  int64_t number_of(const at::Generator& generator) {
    at::Tensor state;
    try {
      state = state_of(generator);
      // NOLINTNEXTLINE(bugprone-empty-catch): unsupported; reported if a run needs it
    } catch (const std::exception&) {}
    const std::lock_guard lock(mutex_);
    const auto latest = latest_.find(generator.unsafeGetGeneratorImpl());
    if (latest != latest_.end()) {
      const Entry& entry = entries_.at(latest->second);
      const bool reserved = reserved_.contains(generator.unsafeGetGeneratorImpl());
      if (!entry.generator.expired() && !entry.always && (reserved || same_state(entry.state, state))) {
        return latest->second;
      }
    }
    remove_expired();
    const int64_t number = ++last_;
    entries_.emplace(number, Entry{c10::weak_intrusive_ptr<c10::GeneratorImpl>(generator.getIntrusivePtr()),
                                   generator.unsafeGetGeneratorImpl(), std::move(state)});
    latest_[generator.unsafeGetGeneratorImpl()] = number;
    return number;
  }

  std::optional<Entry> find(int64_t number) {
    const std::lock_guard lock(mutex_);
    const auto entry = entries_.find(number);
    return entry != entries_.end() ? std::optional(entry->second) : std::nullopt;
  }

 private:
  // Removes entries of destroyed generators, which unfinished captures leave.
  void remove_expired() {
    constexpr size_t kMost = 4096;
    if (entries_.size() < kMost) return;
    std::erase_if(entries_, [](const auto& entry) { return entry.second.generator.expired(); });
    std::erase_if(latest_, [&](const auto& entry) { return !entries_.contains(entry.second); });
  }

  std::mutex mutex_;
  int64_t last_ = 0;
  std::map<int64_t, Entry> entries_;
  std::unordered_map<const c10::GeneratorImpl*, int64_t> latest_;
  std::unordered_set<const c10::GeneratorImpl*> reserved_;  // their states are tickets
};

bool is_default(const at::Generator& generator) {
  try {
    return at::globalContext().defaultGenerator(generator.device()).unsafeGetGeneratorImpl() ==
           generator.unsafeGetGeneratorImpl();
  } catch (const std::exception&) {
    return true;  // simulated devices have no others
  }
}

// Returns "seed 3" if the generator was just seeded with that, otherwise all bytes of its state.
std::string state_text(const at::Tensor& state, c10::Device device) {
  if (device.is_cpu()) {
    at::Generator fresh = at::detail::createCPUGenerator();
    fresh.set_state(state);
    const uint64_t seed = fresh.current_seed();
    if (same_state(state_of(at::detail::createCPUGenerator(seed)), state)) {
      return std::string(kSeed) + std::to_string(seed);
    }
  }
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  const auto* bytes = state.const_data_ptr<uint8_t>();
  for (int64_t i = 0; i < state.numel(); ++i) {
    text += kDigits[bytes[i] >> 4];
    text += kDigits[bytes[i] & 15];
  }
  return text;
}

// Returns nullopt for text not written by state_text.
std::optional<uint64_t> seed_in(std::string_view text) {
  if (!text.starts_with(kSeed)) return std::nullopt;
  text.remove_prefix(kSeed.size());
  return parse_number<uint64_t>(text);
}

std::optional<at::Tensor> bytes_in(std::string_view text) {
  if (text.empty() || text.size() % 2 != 0) return std::nullopt;
  const RealCalls real;
  const at::Tensor state = at::empty({static_cast<int64_t>(text.size() / 2)}, at::TensorOptions().dtype(at::kByte));
  auto* bytes = state.mutable_data_ptr<uint8_t>();
  for (size_t i = 0; i < text.size(); i += 2) {
    const auto [end, error] = std::from_chars(text.data() + i, text.data() + i + 2, bytes[i / 2], 16);
    if (error != std::errc() || end != text.data() + i + 2) return std::nullopt;
  }
  return state;
}

[[noreturn]] void refuse_state(const ProgramGenerator& own, const std::string& why) {
  throw Error("cannot create the program's generator '" + own.name + "' on " + own.device.str() + ": " + why +
              "; pass one with InterpreterOptions::generators (Python: graph.compile(generators={\"" + own.name +
              "\": torch.Generator()}))");
}

// Returns the position of the generator among a node's arguments.
std::optional<uint16_t> generator_position(const Graph& graph, NodeId node) {
  const auto arguments = graph.arguments(node);
  for (uint16_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].kind == ArgumentKind::kGenerator) return i;
  }
  return std::nullopt;
}

}  // namespace

Argument argument_of(const at::Generator& generator) {
  Argument argument = Argument::of_device(generator.device(), ArgumentKind::kGenerator);
  // Deferred recording keeps the states of all generators itself (core/deferred/random_streams.h).
  const bool described = thread_state.mode != nullptr && thread_state.mode->reads_data;
  if (!described && !is_default(generator)) argument.i = KnownGenerators::all().number_of(generator);
  return argument;
}

bool reserve_generator(const at::Generator& generator) { return KnownGenerators::all().reserve(generator); }
void release_generator(const at::Generator& generator) { KnownGenerators::all().release(generator); }
void begin_runs_with(const Argument& generator, const at::Tensor& state) {
  KnownGenerators::all().begin_runs_with(generator.i, state);
}

void name_generators(Graph& graph) {
  if (!KnownGenerators::all().any()) return;
  std::map<int64_t, std::string> names;  // by number
  std::map<const c10::GeneratorImpl*, int64_t> first;
  for (const NodeId node : graph.nodes()) {
    const auto position = generator_position(graph, node);
    if (!position || graph.arguments(node)[*position].i == 0) continue;
    const Argument& argument = graph.arguments(node)[*position];
    auto [name, is_new] = names.try_emplace(argument.i, "g" + std::to_string(names.size()));
    graph.set_note(node, kGeneratorNote, name->second);
    if (!is_new) continue;
    const auto known = KnownGenerators::all().find(argument.i);
    std::string text = argument.device().str();
    if (known) {
      const bool seeded_inside = !first.try_emplace(known->address, argument.i).second;
      if (known->always || seeded_inside || known->generator.expired()) text.insert(0, kAlways);
      if (known->state.defined()) text += " " + state_text(known->state, argument.device());
    }
    graph.metadata.set(metadata_key(name->second), text);
  }
}

std::optional<ProgramGenerator> program_generator_of(const Graph& graph, NodeId node) {
  const std::string_view name = graph.note(node, kGeneratorNote);
  const auto position = name.empty() ? std::nullopt : generator_position(graph, node);
  if (!position) return std::nullopt;
  const Argument& argument = graph.arguments(node)[*position];
  ProgramGenerator own{.name = std::string(name), .device = argument.device(), .position = *position};
  if (const auto known = KnownGenerators::all().find(argument.i); argument.i != 0 && known) {
    if (auto alive = known->generator.lock()) own.original = at::Generator(std::move(alive));
  }
  const auto line = graph.metadata.other.find(metadata_key(name));
  if (line == graph.metadata.other.end()) return own;
  std::string_view text = line->second;
  own.always = text.starts_with(kAlways);
  if (own.always) text.remove_prefix(kAlways.size());
  const std::string device = own.device.str() + " ";
  if (text.starts_with(device)) own.state = std::string(text.substr(device.size()));
  return own;
}

std::map<std::string, at::Generator> copy_generators(const Graph& graph) {
  std::map<std::string, at::Generator> copies;
  for (const NodeId node : graph.nodes()) {
    const auto own = program_generator_of(graph, node);
    if (own && own->original.defined() && !copies.contains(own->name)) copies[own->name] = own->original.clone();
  }
  return copies;
}

void put_state(at::Generator& generator, const ProgramGenerator& own) {
  if (!own.state) refuse_state(own, "its state is not in the graph's metadata");
  at::Tensor state;
  if (const auto seed = seed_in(*own.state); seed && own.device.is_cpu()) {
    state = state_of(at::detail::createCPUGenerator(*seed));
  } else if (const auto bytes = bytes_in(*own.state)) {
    state = *bytes;
  } else {
    refuse_state(own, "its state in the graph's metadata is neither \"seed N\" nor hexadecimal bytes");
  }
  exchange_state(generator, state);
}

at::Generator create_generator(const ProgramGenerator& own) {
  if (!own.device.is_cpu()) refuse_state(own, "only CPU generators are supported");
  at::Generator generator = at::detail::createCPUGenerator();
  put_state(generator, own);
  return generator;
}

}  // namespace shadowgraph
