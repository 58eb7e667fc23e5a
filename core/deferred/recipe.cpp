#include "core/deferred/recipe.h"

#include <ATen/ops/empty.h>
#include <boost/pending/disjoint_sets.hpp>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <queue>
#include <utility>

#include "core/fake/known_contents.h"
#include "shadowgraph/graph/libtorch.h"

namespace shadowgraph {
namespace {

// Estimated memory of a snapshot, including the tensor object and its map entry.
int64_t cost_of(const at::Tensor& bytes) { return static_cast<int64_t>(bytes.nbytes()) + 512; }

// The operator by which linalg functions report errors. It runs together with the node whose result it checks.
constexpr std::string_view kCheck = "aten::_linalg_check_errors";

bool same_tensor(const Graph& graph, ValueId a, ValueId b) {
  const Value& x = graph.value(a);
  const Value& y = graph.value(b);
  return x.storage == y.storage && x.dtype == y.dtype && x.offset == y.offset &&
         std::ranges::equal(graph.sizes(a), graph.sizes(b)) && std::ranges::equal(graph.strides(a), graph.strides(b));
}

}  // namespace

Snapshots::Snapshot Snapshots::latest(StorageId storage, uint32_t before) const {
  const auto history = histories_.find(storage);
  if (history == histories_.end()) return {};
  const auto& entries = history->second.entries;
  const auto later = entries.upper_bound(before);
  if (later == entries.begin()) return {};
  const auto found = std::prev(later);
  return {found->first, found->second.bytes};
}

uint32_t Snapshots::spacing(StorageId storage) const {
  const auto history = histories_.find(storage);
  return history == histories_.end() ? kSpacing : history->second.spacing;
}

void Snapshots::drop(History& history, std::map<uint32_t, Entry>::iterator entry) {
  const int64_t cost = cost_of(entry->second.bytes);
  history.bytes -= cost;
  bytes_ -= cost;
  if (entry->first == history.passing) history.passing = 0;
  history.entries.erase(entry);
}

void Snapshots::thin(History& history) {
  history.spacing *= 2;
  bool goes = history.entries.size() == 1;
  for (auto entry = history.entries.begin(); entry != history.entries.end(); goes = !goes) {
    const auto next = std::next(entry);
    if (goes) drop(history, entry);
    entry = next;
  }
}

void Snapshots::keep(StorageId storage, uint32_t position, const c10::Storage& contents, bool stays) {
  const auto size = static_cast<int64_t>(contents.nbytes());
  if (size == 0 || size > kMaxBytes / 4 || !contents.device().is_cpu()) return;
  History& history = histories_[storage];
  if (!stays && history.passing != 0) drop(history, history.entries.find(history.passing));
  const auto [entry, added] = history.entries.try_emplace(position);
  if (!added) {
    entry->second.stays |= stays;
    if (stays && history.passing == position) history.passing = 0;
    return;
  }
  if (!stays) history.passing = position;
  const RealCalls real;
  entry->second = {at::empty({size}, at::TensorOptions().dtype(at::kByte).device(at::kCPU)), stays};
  std::memcpy(entry->second.bytes.mutable_data_ptr(), contents.data(), static_cast<size_t>(size));
  history.bytes += cost_of(entry->second.bytes);
  bytes_ += cost_of(entry->second.bytes);
  while (bytes_ > kMaxBytes) {
    thin(std::ranges::max_element(histories_, {}, [](const auto& one) { return one.second.bytes; })->second);
  }
}

bool is_whole(const Graph& graph, ValueId value) {
  const Value& v = graph.value(value);
  // A tensor of the storage's size can only start at its beginning.
  return v.storage.valid() && graph.is_contiguous(value) &&
         graph.logical_bytes(value) == graph.storage(v.storage).bytes;
}

ValueId first_value(const Graph& graph, StorageId storage) {
  ValueId first;
  graph.for_each_output(graph.storage(storage).born, [&](ValueId value) {
    if (!first.valid() && graph.value(value).storage == storage) first = value;
  });
  return first;
}

bool Recipe::overwrites(NodeId node, StorageId storage) const {
  const OperatorFacts& facts = graph_.facts(node);
  if (!facts.is_in_place || !is_overwritten(facts, 0)) return false;
  const auto arguments = graph_.arguments(node);
  const auto results = graph_.results(node);
  if (results.size() != 1 || results[0].kind != ArgumentKind::kValue) return false;
  if (arguments[0].kind != ArgumentKind::kValue || !is_whole(graph_, arguments[0].ref.value)) return false;
  if (!same_tensor(graph_, arguments[0].ref.value, results[0].ref.value)) return false;
  bool reads_itself = false;
  graph_.for_each_value(arguments.subspan(1), [&](ValueId v) { reads_itself |= graph_.value(v).storage == storage; });
  return !reads_itself;
}

void Recipe::record_growth(NodeId node) {
  graph_.for_each_output(node, [&](ValueId value) {
    const StorageId storage = graph_.value(value).storage;
    if (!storage.valid()) return;
    if (storage.index >= bytes_.size()) bytes_.resize(std::max<size_t>(storage.index + 1, bytes_.size() * 2), -1);
    const int64_t before = std::exchange(bytes_[storage.index], graph_.storage(storage).bytes);
    if (before >= 0 && before < bytes_[storage.index]) growers_[storage].push_back(node);
  });
}

void Recipe::add(NodeId node) {
  record_growth(node);
  note_origin(node);
  const auto arguments = graph_.arguments(node);
  if (graph_.target(node).name() == kCheck && arguments[0].kind == ArgumentKind::kValue) {
    checks_[graph_.value(arguments[0].ref.value).producer] = node;
  }
  for_each_written(node, [&](ValueId value) {
    const StorageId storage = graph_.value(value).storage;
    if (!storage.valid()) return;
    if (storage.index >= writers_.size()) writers_.resize(std::max<size_t>(storage.index + 1, writers_.size() * 2));
    auto& writers = writers_[storage.index];
    if (writers.empty() || writers.back().node != node) writers.push_back({node, overwrites(node, storage)});
  });
}

void Recipe::note_origin(NodeId node) {
  const OperatorFacts& facts = graph_.facts(node);
  if (facts.conjugates || facts.negates) {
    graph_.for_each_output(node, [&](ValueId value) { lazily_changed_.insert(graph_.value(value).storage); });
  }
  const auto arguments = graph_.arguments(node);
  const auto results = graph_.results(node);
  if (!facts.is_in_place || results.size() != 1 || results[0].kind != ArgumentKind::kValue ||
      arguments[0].kind != ArgumentKind::kValue) {
    return;
  }
  const ValueId before = arguments[0].ref.value, after = results[0].ref.value;
  if (!same_tensor(graph_, before, after)) return;
  if (after.index >= origins_.size()) origins_.resize(std::max<size_t>(after.index + 1, origins_.size() * 2));
  origins_[after.index] = origin_of(before);
}

// Walks backwards through the program by descending node id. Placeholders, which may have any id, are collected
// separately.
class Recipe::Walk {
 public:
  // `without`: storages that must not start from a snapshot.
  Walk(Recipe& recipe, const Snapshots* snapshots, const std::unordered_set<StorageId>& without)
      : recipe_(recipe), graph_(recipe.graph_), snapshots_(snapshots), without_(without) {}

  void want(StorageId storage) {
    need_contents(storage, graph_.node_capacity());
    need_tensor(first_value(graph_, storage));
  }
  void need_run(NodeId node) { reach(node, kContents); }

  // Returns storages whose contents are also needed before their snapshot; valid after steps(). If there are any, the
  // steps are unusable.
  const std::unordered_set<StorageId>& needed_before_snapshot() const { return needed_before_snapshot_; }
  std::unordered_map<StorageId, Snapshots::Snapshot> take_snapshots() { return std::move(begins_); }

  std::vector<Step> steps() {
    while (!pending_.empty()) {
      const NodeId node(pending_.top());
      pending_.pop();
      visit(node, needs_.at(node));
    }
    std::reverse(steps_.begin(), steps_.end());
    if (checked_) std::ranges::sort(steps_, {}, [](const Step& step) { return step.node.index; });
    placeholders_.insert(placeholders_.end(), steps_.begin(), steps_.end());
    return std::move(placeholders_);
  }

 private:
  enum Need : uint8_t { kTensor, kContents };

  void reach(NodeId node, Need need) {
    const auto [entry, added] = needs_.try_emplace(node, need);
    entry->second = std::max(entry->second, need);
    if (!added) return;
    if (graph_.is_placeholder(node)) {
      placeholders_.push_back({node, Role::kRun});
    } else {
      pending_.push(node.index);
    }
  }

  void need_tensor(ValueId value) {
    if (value.valid()) reach(graph_.value(value).producer, kTensor);
  }

  // Requests the contents of `storage` as seen by a node with id `before`.
  void need_contents(StorageId storage, uint32_t before) {
    if (!storage.valid()) return;
    uint32_t& covered = covered_from_.try_emplace(storage, UINT32_MAX).first->second;
    if (before > covered) return;
    if (begins_.contains(storage)) {
      needed_before_snapshot_.insert(storage);
      return;
    }
    covered = 0;
    const Snapshots::Snapshot snapshot = snapshot_of(storage, before);
    if (storage.index < recipe_.writers_.size()) {
      const auto& writers = recipe_.writers_[storage.index];
      auto writer = std::lower_bound(writers.begin(), writers.end(), before,
                                     [](const Writer& w, uint32_t id) { return w.node.index < id; });
      while (writer != writers.begin() && std::prev(writer)->node.index >= snapshot.position) {
        --writer;
        reach(writer->node, kContents);
        if (writer->overwrites) {
          covered = writer->node.index;
          return;
        }
      }
    }
    if (snapshot.bytes.defined()) {
      covered = snapshot.position - 1;
      begins_[storage] = snapshot;
    } else {
      reach(graph_.storage(storage).born, kContents);
    }
  }

  Snapshots::Snapshot snapshot_of(StorageId storage, uint32_t before) const {
    if (snapshots_ == nullptr || without_.contains(storage) || recipe_.lazily_changed_.contains(storage)) return {};
    return snapshots_->latest(storage, before);
  }

  // Returns whether all outputs of `node` are on storages that start from a later snapshot.
  bool is_before_snapshots(NodeId node) const {
    bool all = true, any = false;
    graph_.for_each_output(node, [&](ValueId value) {
      any = true;
      const auto begin = begins_.find(graph_.value(value).storage);
      all = all && begin != begins_.end() && node.index < begin->second.position;
    });
    return any && all;
  }

  // Requests the size of `storage` as needed by a view taken by a node with id `before`.
  void need_size(StorageId storage, uint32_t before) {
    const auto found = recipe_.growers_.find(storage);
    if (found == recipe_.growers_.end()) return;
    const auto& growers = found->second;
    const auto later = std::ranges::lower_bound(growers, before, {}, [](NodeId node) { return node.index; });
    if (later != growers.begin()) reach(*std::prev(later), kTensor);
  }

  void visit(NodeId node, Need need) {
    const auto arguments = graph_.arguments(node);
    const auto results = graph_.results(node);
    const OperatorFacts& facts = graph_.facts(node);
    if (need == kTensor && !begins_.empty() && is_before_snapshots(node)) {
      steps_.push_back({node, Role::kSnapshot});
      return;
    }
    if (need == kTensor && results.size() == 1 && results[0].kind == ArgumentKind::kValue) {
      const ValueId result = results[0].ref.value;
      if (facts.is_in_place && arguments[0].kind == ArgumentKind::kValue &&
          same_tensor(graph_, arguments[0].ref.value, result)) {
        steps_.push_back({node, Role::kIdentity});
        need_tensor(recipe_.origin_of(result));
        return;
      }
      if (graph_.storage(graph_.value(result).storage).born == node && is_whole(graph_, result)) {
        steps_.push_back({node, Role::kAllocate});
        return;
      }
    }
    steps_.push_back({node, Role::kRun});
    if (const auto check = recipe_.checks_.find(node); check != recipe_.checks_.end()) {
      steps_.push_back({check->second, Role::kRun});
      checked_ = true;
    }
    const bool alias = graph_.node(node).target == target_of(Builtin::kAlias);
    const bool geometry = alias || (facts.geometry_only && !facts.unknown);
    const ValueId self =
        !arguments.empty() && arguments[0].kind == ArgumentKind::kValue ? arguments[0].ref.value : ValueId();
    const bool overwrites = self.valid() && recipe_.overwrites(node, graph_.value(self).storage);
    graph_.for_each_value(arguments, [&](ValueId value) {
      need_tensor(value);
      if (geometry || (overwrites && value == self)) {
        need_size(graph_.value(value).storage, node.index);
        return;
      }
      need_contents(graph_.value(value).storage, node.index);
    });
  }

  Recipe& recipe_;
  const Graph& graph_;
  const Snapshots* snapshots_;
  const std::unordered_set<StorageId>& without_;
  std::unordered_map<StorageId, Snapshots::Snapshot> begins_;
  std::unordered_set<StorageId> needed_before_snapshot_;
  std::unordered_map<NodeId, Need> needs_;
  // Contents from this node on, up to the readers seen so far, are covered.
  std::unordered_map<StorageId, uint32_t> covered_from_;
  std::priority_queue<uint32_t> pending_;
  std::vector<Step> steps_, placeholders_;
  bool checked_ = false;
};

Recipe::Group Recipe::reach(std::span<const StorageId> wanted, NodeId node, const Snapshots* snapshots) {
  constexpr int kAttempts = 4;
  std::unordered_set<StorageId> without;
  for (int attempt = 1;; ++attempt) {
    Walk walk(*this, attempt == kAttempts ? nullptr : snapshots, without);
    for (const StorageId storage : wanted) walk.want(storage);
    if (node.valid()) walk.need_run(node);
    std::vector<Step> steps = walk.steps();
    if (walk.needed_before_snapshot().empty()) return {std::move(steps), {}, walk.take_snapshots()};
    without.insert(walk.needed_before_snapshot().begin(), walk.needed_before_snapshot().end());
  }
}

// Partitions the steps into groups. Steps that use the same storage are in the same group. A placeholder that is never
// written does not connect groups: it is part of every group that reads it. An item is a step or a requested storage.
class Recipe::Grouping {
 public:
  Grouping(const Recipe& recipe, const Group& reached, std::span<const StorageId> wanted)
      : recipe_(recipe),
        graph_(recipe.graph_),
        steps_(reached.steps),
        begins_(reached.snapshots),
        wanted_(wanted),
        first_wanted_(static_cast<uint32_t>(steps_.size())),
        sets_(steps_.size() + wanted.size()) {}

  std::vector<Group> run() {
    find_placeholders();
    join_steps();
    for (uint32_t i = 0; i < wanted_.size(); ++i) touch(first_wanted_ + i, wanted_[i]);
    place_steps();
    place_wanted();
    for (size_t i = 0; i < groups_.size(); ++i) {
      groups_[i].steps.insert(groups_[i].steps.begin(), given_[i].begin(), given_[i].end());
    }
    return std::move(groups_);
  }

 private:
  void find_placeholders() {
    for (const Step& step : steps_) {
      if (!graph_.is_placeholder(step.node)) continue;
      graph_.for_each_output(step.node, [&](ValueId v) {
        const StorageId storage = graph_.value(v).storage;
        shared_[storage] = storage.index >= recipe_.writers_.size() || recipe_.writers_[storage.index].empty();
        placeholder_of_[v] = step.node;
      });
    }
  }

  void touch(uint32_t item, StorageId storage) {
    if (!storage.valid()) return;
    const auto known = shared_.find(storage);
    if (known != shared_.end() && known->second) return;
    const auto [entry, added] = set_of_.try_emplace(storage, item);
    if (!added) sets_.union_set(item, entry->second);
  }

  void join_steps() {
    std::unordered_map<NodeId, uint32_t> item_of;
    for (uint32_t i = 0; i < steps_.size(); ++i) {
      if (!graph_.is_placeholder(steps_[i].node)) item_of[steps_[i].node] = i;
      const auto visit = [&](ValueId value) {
        touch(i, graph_.value(value).storage);
        // Views of a shared placeholder belong to the steps that use them.
        const auto producer = item_of.find(graph_.value(value).producer);
        if (producer != item_of.end()) sets_.union_set(i, producer->second);
      };
      graph_.for_each_output(steps_[i].node, visit);
      if (steps_[i].role == Role::kRun) graph_.for_each_input(steps_[i].node, visit);
    }
  }

  // Groups are in order of their first item.
  size_t group_of(uint32_t item) {
    const auto [entry, added] = group_of_.try_emplace(sets_.find_set(item), groups_.size());
    if (added) {
      groups_.emplace_back();
      given_.emplace_back();
    }
    return entry->second;
  }

  void give(size_t group, NodeId placeholder) {
    std::vector<Step>& given = given_[group];
    if (std::ranges::find(given, placeholder, &Step::node) == given.end()) given.push_back({placeholder});
  }

  void place_steps() {
    for (uint32_t i = 0; i < steps_.size(); ++i) {
      const Step& step = steps_[i];
      if (graph_.is_placeholder(step.node)) continue;
      const size_t group = group_of(i);
      if (step.role == Role::kSnapshot) {
        graph_.for_each_output(step.node, [&](ValueId v) {
          const StorageId storage = graph_.value(v).storage;
          groups_[group].snapshots[storage] = begins_.at(storage);
        });
      }
      if (step.role == Role::kRun) {
        graph_.for_each_input(step.node, [&](ValueId v) {
          const auto placeholder = placeholder_of_.find(v);
          if (placeholder != placeholder_of_.end()) give(group, placeholder->second);
        });
      }
      groups_[group].steps.push_back(step);
    }
  }

  void place_wanted() {
    for (uint32_t i = 0; i < wanted_.size(); ++i) {
      const size_t group = group_of(first_wanted_ + i);
      groups_[group].wanted.push_back(wanted_[i]);
      // Includes a placeholder's storage even if no step uses it.
      const NodeId born = graph_.storage(wanted_[i]).born;
      if (graph_.is_placeholder(born)) give(group, born);
    }
  }

  const Recipe& recipe_;
  const Graph& graph_;
  const std::vector<Step>& steps_;
  const std::unordered_map<StorageId, Snapshots::Snapshot>& begins_;
  const std::span<const StorageId> wanted_;
  const uint32_t first_wanted_;  // items before it are steps
  boost::disjoint_sets_with_storage<> sets_;
  std::unordered_map<StorageId, bool> shared_;  // of placeholders; true: never written
  std::unordered_map<ValueId, NodeId> placeholder_of_;
  std::unordered_map<StorageId, uint32_t> set_of_;  // an item that uses it
  std::vector<Group> groups_;
  std::vector<std::vector<Step>> given_;         // by group: the placeholders that it reads
  std::unordered_map<size_t, size_t> group_of_;  // by set
};

std::vector<Recipe::Group> Recipe::groups_for(std::span<const StorageId> wanted, const Snapshots* snapshots) {
  const Group reached = reach(wanted, NodeId(), snapshots);
  return Grouping(*this, reached, wanted).run();
}

Recipe::Group Recipe::group_for_node(NodeId node, const Snapshots* snapshots) { return reach({}, node, snapshots); }

namespace {

const c10::OperatorHandle& empty_strided() {
  static const c10::OperatorHandle op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::empty_strided", "");
  return op;
}

TensorMeta spec_of(const Graph& graph, ValueId id, StorageId storage) {
  const Value& value = graph.value(id);
  return {.dtype = value.dtype,
          .sizes = graph.sizes(id),
          .strides = graph.strides(id),
          .storage = storage,
          .offset = value.offset,
          .device = value.device(),
          .layout = value.layout};
}

}  // namespace

RecipeGraph::RecipeGraph(const Graph& record, const Recipe& recipe, const Recipe::Group& group)
    : record_(record), copier_(record, graph_) {
  copier_.reserve(group.steps.size());
  nodes_.reserve(group.steps.size());
  for (const Recipe::Step& step : group.steps) {
    switch (step.role) {
      case Recipe::Role::kRun:
        copy(step.node);
        break;
      case Recipe::Role::kIdentity: {
        const ValueId result = record.results(step.node)[0].ref.value;
        copier_.bind(result, copier_.value(recipe.origin_of(result)));
        break;
      }
      case Recipe::Role::kAllocate:
        allocate(step.node);
        break;
      case Recipe::Role::kSnapshot:
        take_from_snapshot(step.node, group);
        break;
    }
  }
}

NodeId RecipeGraph::node(NodeId of_record) const {
  const auto allocation = allocations_.find(of_record);
  return allocation != allocations_.end() ? allocation->second : copier_.node(of_record);
}

void RecipeGraph::note(NodeId here, NodeId of_record, bool copied) {
  if (here.index >= made_from_.size()) made_from_.resize(std::max<size_t>(here.index + 1, 2 * made_from_.size()));
  made_from_[here.index] = {of_record, copied};
  nodes_.push_back(here);
}

void RecipeGraph::copy(NodeId node) {
  copier_.bind(record_.node(node).region, Graph::kRootRegion);
  note(copier_.copy(node, NodeId()), node, true);
}

void RecipeGraph::allocate(NodeId node) {
  const ValueId result = record_.results(node)[0].ref.value;
  const Value& value = record_.value(result);
  const NodeId here = graph_.append(intern_operator(graph_, empty_strided()),
                                    {graph_.int_list(record_.sizes(result)), graph_.int_list(record_.strides(result)),
                                     Argument::of_int(static_cast<int64_t>(value.dtype)), Argument::none(),
                                     Argument::of_device(value.device()), Argument::none()});
  Storage storage = record_.storage(value.storage);
  storage.born = here;
  storage.freed_after = NodeId();
  copier_.bind(result, graph_.add_tensor_result(here, spec_of(record_, result, graph_.add_storage(storage))));
  allocations_[node] = here;
  note(here, node, false);
}

void RecipeGraph::take_from_snapshot(NodeId node, const Recipe::Group& group) {
  record_.for_each_output(node, [&](ValueId value) {
    const StorageId storage = record_.value(value).storage;
    auto [bytes, added] = snapshot_here_.try_emplace(storage);
    if (added) {
      const at::Tensor& contents = group.snapshots.at(storage).bytes;
      const NodeId here =
          graph_.append(target_of(Builtin::kConstant), {Argument::of_constant(graph_.add_constant(contents))});
      const StorageId own = graph_.add_storage(
          {.bytes = static_cast<int64_t>(contents.nbytes()), .kind = StorageKind::kConstant, .born = here});
      const int64_t one = 1;
      bytes->second = graph_.add_tensor_result(
          here, {.dtype = at::kByte, .sizes = contents.sizes(), .strides = {&one, 1}, .storage = own});
      note(here, node, false);
    }
    const NodeId here = graph_.append(target_of(Builtin::kAlias), {Argument::of_value(bytes->second)});
    copier_.bind(value, graph_.add_tensor_result(here, spec_of(record_, value, graph_.value(bytes->second).storage)));
    note(here, node, false);
  });
}

}  // namespace shadowgraph
