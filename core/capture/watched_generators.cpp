#include "core/capture/watched_generators.h"

#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <exception>
#include <new>

#include "core/calls/program_generators.h"
#include "core/capture/random_state.h"
#include "core/fake/known_contents.h"
#include "ir/edit/bulk_edits.h"
#include "ir/records.h"

namespace shadowgraph {
namespace {

constexpr uint32_t kMagic = 0x53476361U;
const c10::Device kCpu(c10::DeviceType::CPU);

bool same(const at::Tensor& a, const at::Tensor& b) {
  const RealCalls real;
  return a.equal(b);
}

bool is_cpu(const at::Generator& generator) { return generator.device().is_cpu(); }

// Tickets of the CPU are random words, so that draws that are not recorded at least look random.
at::mt19937_data_pod cpu_ticket(const at::Generator& generator, uint32_t session, uint32_t number) {
  at::mt19937_data_pod data = at::mt19937(uint64_t{session} * 0x9E3779B9U + number).data();
  data.seed_ = impl_of(generator).current_seed();  // for initial_seed()
  data.state_[1] = kMagic;
  data.state_[2] = session;
  data.state_[3] = number;
  return data;
}

// Those of a simulated device are offsets, beyond the ones of real programs.
uint64_t offset_ticket(uint32_t session, uint32_t number) {
  return uint64_t{1} << 63 | uint64_t{session & 0x7FFFFFFF} << 32 | number;
}

// Returns the number of the session's ticket that the generator holds.
std::optional<uint32_t> ticket_in(const at::Generator& generator, uint32_t session) {
  if (!is_cpu(generator)) {
    const uint64_t offset = generator.get_offset();
    const auto number = static_cast<uint32_t>(offset);
    return offset == offset_ticket(session, number) ? std::optional(number) : std::nullopt;
  }
  const at::mt19937_data_pod engine = RandomState::of(generator).engine;
  const auto& words = engine.state_;
  const bool ours = words[1] == kMagic && words[2] == session && is_untouched(engine);
  return ours ? std::optional(words[3]) : std::nullopt;
}

// Returns the seed if the generator was just seeded.
std::optional<uint64_t> fresh_seed(const at::Generator& generator) {
  if (!is_cpu(generator)) return generator.get_offset() == 0 ? std::optional(generator.current_seed()) : std::nullopt;
  const RandomState found = RandomState::of(generator);
  const RandomState seeded{at::mt19937(found.engine.seed_).data(), std::nullopt, std::nullopt};
  return found == seeded ? std::optional(found.engine.seed_) : std::nullopt;
}

}  // namespace

WatchedGenerators::WatchedGenerators()
    : session_([] {
        static std::atomic<uint32_t> last{0};
        return ++last;
      }()) {
  watch(at::detail::getDefaultCPUGenerator(), Argument::of_device(kCpu, ArgumentKind::kGenerator));
}

WatchedGenerators::~WatchedGenerators() {
  try {
    end();
  } catch (const std::exception&) {  // the generators are restored
  }
}

WatchedGenerators::Watched* WatchedGenerators::find(const Argument& argument) {
  const auto found = std::ranges::find_if(watched_, [&](const Watched& watched) {
    return watched.argument.i == argument.i && watched.argument.device_type == argument.device_type &&
           (watched.argument.device().is_cpu() || watched.argument.device_index == argument.device_index);
  });
  return found == watched_.end() ? nullptr : &*found;
}

void WatchedGenerators::watch(const at::Generator& generator, const Argument& argument) {
  if (ended_ || suspended_ || find(argument) != nullptr) return;
  if (!is_cpu(generator) && !generator.device().is_cuda()) return;
  if (!reserve_generator(generator)) return;
  Watched& watched = watched_.emplace_back(Watched{.generator = generator, .argument = argument});
  const auto point = point_of(watched);  // of a copy of a watched generator
  const at::Tensor state = point ? watched_[point->generator].changes[point->change].state : state_of(generator);
  change(watched, {.state = state});
  if (!point) return;
  begin_runs_with(argument, state);
  change(watched, {.restored = point, .state = state});
}

WatchedGenerators::Point WatchedGenerators::now(const Watched& watched) const {
  return {static_cast<uint32_t>(&watched - watched_.data()), static_cast<uint32_t>(watched.changes.size()) - 1,
          static_cast<uint32_t>(watched.draws.size())};
}

void WatchedGenerators::put_ticket(Watched& watched) {
  watched.ticket = static_cast<uint32_t>(tickets_.size());
  tickets_.push_back(now(watched));
  if (is_cpu(watched.generator)) {
    const at::mt19937_data_pod ticket = cpu_ticket(watched.generator, session_, watched.ticket);
    RandomState{ticket, std::nullopt, std::nullopt}.put_into(watched.generator);
  } else {
    watched.generator.set_offset(offset_ticket(session_, watched.ticket));
  }
}

std::optional<WatchedGenerators::Point> WatchedGenerators::point_of(const Watched& watched) const {
  const auto number = ticket_in(watched.generator, session_);
  return number && *number < tickets_.size() ? std::optional(tickets_[*number]) : std::nullopt;
}

void WatchedGenerators::change(Watched& watched, Change change) {
  change.draw = static_cast<uint32_t>(watched.draws.size());
  watched.real_state = change.state;
  watched.changes.push_back(std::move(change));
  put_ticket(watched);
}

void WatchedGenerators::observe(Watched& watched) {
  if (const auto point = point_of(watched)) {
    const at::Tensor state = watched_[point->generator].changes[point->change].state;
    if (*point != now(watched)) change(watched, {.restored = point, .state = state});
    return;
  }
  const at::Tensor found = state_of(watched.generator);
  if (const auto seed = fresh_seed(watched.generator)) return change(watched, {.seed = seed, .state = found});
  if (is_cpu(watched.generator) && is_drawn_from(cpu_ticket(watched.generator, session_, watched.ticket),
                                                 RandomState::of(watched.generator).engine)) {
    return put_ticket(watched);
  }
  change(watched, {.state = found});
}

void WatchedGenerators::draw(NodeId node, const Argument& argument) {
  if (out_of_memory_) throw std::bad_alloc();
  Watched* const watched = find(argument);
  if (watched == nullptr || ended_ || suspended_) return;
  observe(*watched);
  watched->draws.push_back(node);
  put_ticket(*watched);
}

void WatchedGenerators::suspend() {
  if (ended_ || suspended_) return;
  for (Watched& watched : watched_) observe(watched);
  for (const Watched& watched : watched_) exchange_state(watched.generator, watched.real_state);
  suspended_ = true;
}

void WatchedGenerators::resume() noexcept {
  if (ended_ || !suspended_) return;
  try {
    for (Watched& watched : watched_) {
      const at::Tensor before = std::exchange(watched.real_state, state_of(watched.generator));
      const auto seed = same(watched.real_state, before) ? std::nullopt : fresh_seed(watched.generator);
      seed ? change(watched, {.seed = seed, .state = watched.real_state}) : put_ticket(watched);
    }
    suspended_ = false;
  } catch (const std::exception&) {  // called by destructors: the next draw throws
    out_of_memory_ = true;
  }
}

void WatchedGenerators::end() {
  if (std::exchange(ended_, true)) return;
  std::exception_ptr failure;
  for (Watched& watched : watched_) {
    try {
      if (!suspended_) observe(watched);
    } catch (const std::exception&) {
      failure = std::current_exception();
    }
  }
  for (Watched& watched : watched_) {
    if (!suspended_) exchange_state(watched.generator, watched.real_state);
    release_generator(watched.generator);
    watched.generator = {};  // one that the program created may be destroyed now
  }
  if (failure) std::rethrow_exception(failure);
}

WatchedGenerators::Change WatchedGenerators::resolved(Change change) const {
  while (change.restored) {
    const Point point = *change.restored;
    const Change& origin = watched_[point.generator].changes[point.change];
    if (point.change == 0 || point.draw != origin.draw) break;
    change.restored = origin.restored;
    change.seed = origin.seed;
    change.state = origin.state;
  }
  return change;
}

void WatchedGenerators::record_in(Graph& graph) const {
  // The changes that matter: later draws depend on them.
  std::vector<std::vector<Change>> changes(watched_.size());
  std::map<Point, ValueId> saved;
  for (uint32_t g = 0; g < watched_.size(); ++g) {
    const Watched& watched = watched_[g];
    if (watched.draws.empty()) continue;
    for (const Change& change : watched.changes) changes[g].push_back(resolved(change));
    for (const Change& change : changes[g]) {
      if (change.restored) saved.emplace(*change.restored, ValueId());
    }
  }
  NodeId body;  // the first node of the program
  NodeId end;   // the first node behind it
  for (const NodeId node : graph.nodes()) {
    if (!body.valid() && !graph.is_placeholder(node)) body = node;
    if (!end.valid() && is_end(graph.node(node).target)) end = node;
  }
  const auto insert = [&](NodeId position, NodeId like, const Target& target, std::span<const Argument> arguments) {
    const NodeId node = graph.insert_before(position, graph.intern_target(target), arguments);
    mutable_node(graph, node).phase = graph.node(like).phase;
    mutable_node(graph, node).region = position == end ? Graph::kRootRegion : graph.node(like).region;
    return node;
  };
  const auto add_state = [&](NodeId node, StorageKind kind, c10::Device device) {
    const std::array<int64_t, 1> sizes{random_state_bytes(device)};
    const std::array<int64_t, 1> strides{1};
    const StorageId storage = graph.add_storage({.bytes = sizes[0], .kind = kind, .born = node});
    return graph.add_tensor_result(
        node, {.dtype = c10::ScalarType::Byte, .sizes = sizes, .strides = strides, .storage = storage});
  };
  const auto source = [](const Watched& watched) {  // the last argument of the functions
    return watched.argument.i != 0 ? watched.argument : Argument::of_device(watched.argument.device());
  };
  const auto save = [&](const Point& point, ValueId& value, NodeId position, NodeId like) {
    if (value.valid()) return;
    const Watched& watched = watched_[point.generator];
    const std::array<Argument, 1> arguments{source(watched)};
    const NodeId node = insert(position, like, get_random_state(watched.argument.i != 0), arguments);
    value = add_state(node, StorageKind::kTemporary, watched.argument.device());
  };
  // A state for another generator is saved right behind the draw before it, because that one may draw next.
  for (uint32_t g = 0; g < watched_.size(); ++g) {
    for (const Change& change : changes[g]) {
      if (!change.restored || change.restored->generator == g) continue;
      const Point& point = *change.restored;
      const NodeId before = point.draw == 0 ? NodeId() : watched_[point.generator].draws[point.draw - 1];
      save(point, saved.at(point), before.valid() ? graph.node(before).next : body, before.valid() ? before : body);
    }
  }
  for (uint32_t g = 0; g < watched_.size(); ++g) {
    const Watched& watched = watched_[g];
    const auto& draws = watched.draws;
    const auto position = [&](uint32_t draw) { return draw == draws.size() ? end : draws[draw]; };
    const auto like = [&](uint32_t draw) { return draw == draws.size() ? draws.back() : draws[draw]; };
    const bool own = watched.argument.i != 0;
    for (uint32_t i = 0; i < changes[g].size(); ++i) {
      const Change& change = changes[g][i];
      const auto first_saved = saved.lower_bound({g, 0, 0});
      const bool needs_beginning =
          first_saved != saved.end() && first_saved->first.generator == g && first_saved->first.change == 0;
      if (i == 1 && own && change.draw == 0 && !change.restored && !needs_beginning) {
        begin_runs_with(watched.argument, change.state);
      } else if (i > 0 && change.seed) {
        const std::array arguments{Argument::of_int(static_cast<int64_t>(*change.seed)), source(watched)};
        insert(position(change.draw), like(change.draw), seed_generator(own), arguments);
      } else if (i > 0) {
        Argument state;
        if (change.restored) {
          state = Argument::of_value(saved.at(*change.restored));
        } else {
          const std::array<Argument, 1> arguments{Argument::of_constant(graph.add_constant(change.state))};
          const NodeId constant = graph.insert_before(body, target_of(Builtin::kConstant), arguments);
          state = Argument::of_value(add_state(constant, StorageKind::kConstant, watched.argument.device()));
        }
        const std::array arguments{state, source(watched)};
        insert(position(change.draw), like(change.draw), set_random_state(own), arguments);
      }
      const auto end_draw = i + 1 < changes[g].size() ? changes[g][i + 1].draw : static_cast<uint32_t>(draws.size());
      for (auto point = saved.lower_bound({g, i, 0}); point != saved.end(); ++point) {
        if (point->first.generator != g || point->first.change != i || point->first.draw > end_draw) break;
        save(point->first, point->second, position(point->first.draw), like(point->first.draw));
      }
    }
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
