#include "core/capture/default_generator.h"

#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <exception>
#include <map>
#include <new>

#include "core/calls/functions.h"
#include "core/capture/random_state.h"
#include "core/fake/known_contents.h"
#include "ir/edit/bulk_edits.h"
#include "ir/records.h"

namespace shadowgraph {
namespace {

constexpr uint32_t kMagic = 0x53476361U;

std::atomic<bool> in_use{false};

at::Tensor state_of(const at::Generator& generator) {
  const RealCalls real;
  const std::lock_guard lock(impl_of(generator).mutex_);
  return generator.get_state();
}

void set_state(const at::Generator& generator, const at::Tensor& state) {
  const RealCalls real;
  const std::lock_guard lock(impl_of(generator).mutex_);
  impl_of(generator).set_state(*state.unsafeGetTensorImpl());
}

// Returns the seed if the generator was just seeded.
std::optional<uint64_t> fresh_seed(const at::Generator& generator) {
  const RandomState found = RandomState::of(generator);
  const RandomState seeded{at::mt19937(found.engine.seed_).data(), std::nullopt, std::nullopt};
  return found == seeded ? std::optional(found.engine.seed_) : std::nullopt;
}

}  // namespace

DefaultGenerator::DefaultGenerator()
    : generator_(at::detail::getDefaultCPUGenerator()), session_([] {
        static std::atomic<uint32_t> last{0};
        return ++last;
      }()) {
  active_ = !in_use.exchange(true);
  if (!active_) return;
  change({.state = state_of(generator_)});
}

// Random words, so that draws that are not recorded at least look random.
at::mt19937_data_pod DefaultGenerator::ticket() const {
  const auto number = static_cast<uint32_t>(tickets_.size() - 1);
  at::mt19937_data_pod data = at::mt19937(uint64_t{session_} * 0x9E3779B9U + number).data();
  data.seed_ = impl_of(generator_).current_seed();  // for initial_seed()
  data.state_[1] = kMagic;
  data.state_[2] = session_;
  data.state_[3] = number;
  return data;
}

void DefaultGenerator::put_ticket() {
  tickets_.push_back({static_cast<uint32_t>(changes_.size()) - 1, static_cast<uint32_t>(draws_.size())});
  RandomState{ticket(), std::nullopt, std::nullopt}.put_into(generator_);
}

std::optional<DefaultGenerator::Point> DefaultGenerator::point_of(const at::mt19937_data_pod& engine) const {
  const auto& words = engine.state_;
  const bool ours = words[1] == kMagic && words[2] == session_ && words[3] < tickets_.size() && is_untouched(engine);
  return ours ? std::optional(tickets_[words[3]]) : std::nullopt;
}

void DefaultGenerator::change(const Change& change) {
  changes_.push_back(change);
  changes_.back().draw = static_cast<uint32_t>(draws_.size());
  real_state_ = change.state;
  put_ticket();
}

void DefaultGenerator::observe() {
  const at::mt19937_data_pod found = RandomState::of(generator_).engine;
  if (const auto point = point_of(found)) {
    if (*point != tickets_.back()) change({.restored = point, .state = changes_[point->change].state});
    return;
  }
  if (const auto seed = fresh_seed(generator_)) return change({.seed = seed, .state = state_of(generator_)});
  if (is_drawn_from(ticket(), found)) return put_ticket();
  change({.state = state_of(generator_)});
}

void DefaultGenerator::draw(NodeId node) {
  if (out_of_memory_) throw std::bad_alloc();
  if (!active_ || suspended_) return;
  observe();
  draws_.push_back(node);
  put_ticket();
}

void DefaultGenerator::suspend() {
  if (!active_ || suspended_) return;
  observe();
  set_state(generator_, real_state_);
  suspended_ = true;
}

void DefaultGenerator::resume() noexcept {
  if (!active_ || !suspended_) return;
  try {
    const at::Tensor before = std::exchange(real_state_, state_of(generator_));
    const RealCalls real;
    const auto seed = real_state_.equal(before) ? std::nullopt : fresh_seed(generator_);
    seed ? change({.seed = seed, .state = real_state_}) : put_ticket();
    suspended_ = false;
  } catch (const std::exception&) {  // called by destructors: the next draw throws
    out_of_memory_ = true;
  }
}

DefaultGenerator::~DefaultGenerator() {
  try {
    end();
  } catch (const std::exception&) {  // the generator is restored
  }
}

void DefaultGenerator::end() {
  if (!active_) return;
  active_ = false;
  in_use = false;
  if (suspended_) return;
  std::exception_ptr failure;
  try {
    observe();
  } catch (const std::exception&) {
    failure = std::current_exception();
  }
  set_state(generator_, real_state_);
  if (failure) std::rethrow_exception(failure);
}

void DefaultGenerator::record_in(Graph& graph) const {
  if (changes_.size() < 2 || draws_.empty()) return;
  std::map<Point, ValueId> saved;
  for (const Change& change : changes_) {
    if (change.restored) saved.emplace(*change.restored, ValueId());
  }
  const c10::Device cpu(c10::DeviceType::CPU);
  const std::array<int64_t, 1> sizes{random_state_bytes(cpu)};
  const std::array<int64_t, 1> strides{1};
  NodeId body;  // the first node of the program
  NodeId end;   // the first node behind it
  for (const NodeId node : graph.nodes()) {
    if (!body.valid() && !graph.is_placeholder(node)) body = node;
    if (!end.valid() && is_end(graph.node(node).target)) end = node;
  }
  const auto insert = [&](uint32_t draw, const Target& target, std::span<const Argument> arguments) {
    const bool at_end = draw == draws_.size();
    const NodeId like = at_end ? draws_.back() : draws_[draw];
    const NodeId node = graph.insert_before(at_end ? end : like, graph.intern_target(target), arguments);
    mutable_node(graph, node).phase = graph.node(like).phase;
    mutable_node(graph, node).region = at_end ? Graph::kRootRegion : graph.node(like).region;
    return node;
  };
  const auto add_state = [&](NodeId node, StorageKind kind) {
    const StorageId storage = graph.add_storage({.bytes = sizes[0], .kind = kind, .born = node});
    return graph.add_tensor_result(
        node, {.dtype = c10::ScalarType::Byte, .sizes = sizes, .strides = strides, .storage = storage});
  };
  // Saves the states of points that follow change number `change` and come before draw number `end_draw`.
  const auto save = [&](uint32_t change, uint32_t end_draw) {
    for (auto point = saved.lower_bound({change, 0}); point != saved.end() && point->first.change == change; ++point) {
      if (point->first.draw > end_draw) break;
      const std::array<Argument, 1> arguments{Argument::of_device(cpu)};
      point->second = add_state(insert(point->first.draw, get_random_state(), arguments), StorageKind::kTemporary);
    }
  };
  for (uint32_t i = 0; i < changes_.size(); ++i) {
    const Change& change = changes_[i];
    if (i > 0) {
      Argument state;
      if (change.restored) {
        state = Argument::of_value(saved.at(*change.restored));
      } else if (!change.seed) {
        const std::array<Argument, 1> arguments{Argument::of_constant(graph.add_constant(change.state))};
        const NodeId constant = graph.insert_before(body, target_of(Builtin::kConstant), arguments);
        state = Argument::of_value(add_state(constant, StorageKind::kConstant));
      }
      if (change.seed) {
        const std::array arguments{Argument::of_int(static_cast<int64_t>(*change.seed)), Argument::of_device(cpu)};
        insert(change.draw, seed_generator(), arguments);
      } else {
        const std::array arguments{state, Argument::of_device(cpu)};
        insert(change.draw, set_random_state(), arguments);
      }
    }
    save(i, i + 1 < changes_.size() ? changes_[i + 1].draw : static_cast<uint32_t>(draws_.size()));
  }
  // A saved state is freed after its last use.
  std::map<StorageId, NodeId> last_use;
  for (const auto& [point, value] : saved) {
    graph.for_each_use(value, [&](NodeId user) {
      NodeId& last = last_use[graph.value(value).storage];
      if (!last.valid() || graph.is_before(last, user)) last = user;
    });
  }
  free_storages_after(graph, last_use);
}

}  // namespace shadowgraph
