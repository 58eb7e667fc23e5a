#include "shadowgraph/sharding/apply.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "core/fake/process_groups.h"
#include "shadowgraph/edit/copy.h"
#include "shadowgraph/text.h"
#include "sharding/apply/application.h"
#include "sharding/apply/sharding_notes.h"

namespace shadowgraph {

Application::Application(const Graph& graph, const ShardingPlan& plan, int64_t rank, const ApplyOptions& options)
    : read_(clone(graph)),
      plan_(plan),
      rank_(rank),
      options_(options),
      effects_(Effects::of(read_)),
      program_(read_, made_),
      redistributor_(program_, made_, plan.mesh, rank),
      versions_(read_.storage_count()) {
  if (options.rules == nullptr) rules_.emplace();
  if (options.planner == nullptr) {
    interconnect_ = Interconnect::named("h100");
    planner_.emplace(plan.mesh, RedistributionRates{.interconnect = &interconnect_});
  }
}

Graph Application::run() {
  check_mesh();
  for (const NodeId node : read_.nodes()) {
    program_.rebuild.enter_region(read_.node(node).region,
                                  [this](ValueId v) { return std::as_const(values_)[v].made; });
    program_.stand_for(node);
    if (is_end(read_.node(node).target)) {
      if (!ends_begun_) prepare_ends(node);
      end(node);
    } else if (read_.is_placeholder(node)) {
      placeholder(node);
    } else if (read_.node(node).target == target_of(Builtin::kAlias)) {
      alias(node);
    } else {
      call(node);
    }
    program_.rebuild.done(node);
    for (const StorageWrite& write : effects_.writes(node)) {
      if (write.storage.index < versions_.size()) versions_[write.storage.index] = write.after;
    }
  }
  finish();
  return std::move(made_);
}

void Application::fail(NodeId node, const std::string& what) const {
  throw ShardingError(fmt::format("cannot shard {}\n  {}", to_text(read_, node), what), node);
}

void Application::check_mesh() const {
  if (rank_ < 0 || rank_ >= plan_.mesh.size()) {
    throw Error(fmt::format("the mesh {} has no rank {}", plan_.mesh.to_string(), rank_));
  }
  for (const ProcessGroupInfo& group : process_groups(read_)) {
    for (const MeshAxis& axis : plan_.mesh.axes) {
      if (axis.name != group.name) continue;
      throw Error(
          fmt::format("the graph communicates in a process group '{}' already; call that axis of the mesh {} "
                      "otherwise",
                      axis.name, plan_.mesh.to_string()));
    }
  }
}

std::vector<ValueId> Application::operands_of(NodeId node) const {
  std::vector<ValueId> operands;
  read_.for_each_input(node, [&](ValueId v) {
    if (is_tensor(v)) operands.push_back(v);
  });
  return operands;
}

std::vector<ValueId> Application::results_of(NodeId node) const {
  std::vector<ValueId> results;
  read_.for_each_output(node, [&](ValueId v) {
    if (is_tensor(v)) results.push_back(v);
  });
  return results;
}

const NodeLayouts& Application::layouts_of(NodeId node, size_t operands, size_t results) const {
  const NodeLayouts& layouts = plan_.nodes[node];
  const auto fits = [&](const std::vector<Layout>& given, size_t wanted) {
    return given.size() == wanted && std::all_of(given.begin(), given.end(), [&](const Layout& layout) {
             return layout.size() == plan_.mesh.axes.size();
           });
  };
  if (fits(layouts.operands, operands) && fits(layouts.results, results)) return layouts;
  fail(node, fmt::format("the plan has {} layouts of operands and {} of results for it; it has {} and {} tensors, and "
                         "the mesh {} axes",
                         layouts.operands.size(), layouts.results.size(), operands, results, plan_.mesh.axes.size()));
}

std::string Application::text_of(std::span<const Layout> layouts) {
  std::string text;
  for (const Layout& layout : layouts) text += fmt::format("{}{}", text.empty() ? "" : "; ", to_string(layout));
  return fmt::format("[{}]", text);
}

std::vector<int64_t> Application::local_sizes_of(NodeId node, ValueId value, const Layout& layout) const {
  const auto local = local_sizes(read_.sizes(value), layout, plan_.mesh);
  if (local) return *local;
  fail(node, fmt::format("a tensor of sizes [{}] cannot lie as {} on the mesh {}", fmt::join(read_.sizes(value), ", "),
                         to_string(layout), plan_.mesh.to_string()));
}

void Application::prepare_ends(NodeId first) {
  ends_begun_ = true;
  for (NodeId node = first; node.valid(); node = read_.node(node).next) {
    program_.stand_for(node);
    std::vector<Taken>& taken = ends_[node];
    const std::vector<ValueId> operands = operands_of(node);
    const NodeLayouts& layouts = layouts_of(node, operands.size(), 0);
    const bool gradient = read_.node(node).target == target_of(Builtin::kGradient);
    for (size_t i = 0; i < operands.size(); ++i) {
      // The parameter of a gradient is named, not read.
      taken.push_back(gradient && i == 0 ? Taken{std::as_const(values_)[operands[0]].made, std::nullopt}
                                         : take(node, operands[i], layouts.operands[i], false, false));
    }
  }
  program_.stand_for(first);
}

void Application::end(NodeId node) {
  const std::vector<Taken>& taken = ends_[node];
  size_t next = 0;
  std::vector<Argument> local;
  for (const Argument& argument : read_.arguments(node)) {
    local.push_back(program_.emitter.mapped(argument, [&](ValueId v) {
      if (is_tensor(v)) return taken[next++].made;
      return std::as_const(values_)[v].made;
    }));
  }
  const NodeId made = program_.append(program_.rebuild.target(read_.node(node).target), local);
  program_.rebuild.node(node, made);
  std::string layouts;
  std::string sizes;
  const auto describe = [&](const Layout& layout, std::span<const int64_t> whole) {
    if (!layouts.empty()) {
      layouts += ';';
      sizes += ';';
    }
    layouts += to_string(layout);
    sizes += whole.empty() ? "scalar" : fmt::format("{}", fmt::join(whole, ","));
  };
  const std::vector<ValueId> operands = operands_of(node);
  const NodeLayouts& plan = plan_.nodes[node];
  const bool gradient = read_.node(node).target == target_of(Builtin::kGradient);
  for (size_t i = gradient ? 1 : 0; i < operands.size(); ++i) {
    describe(plan.operands[i], read_.sizes(operands[i]));
  }
  if (layouts.empty()) return;
  made_.set_note(made, kLayoutNote, layouts);
  made_.set_note(made, kSizesNote, sizes);
}

void Application::finish() {
  const auto self = [this](ValueId value) { return value.valid() ? std::as_const(values_)[value].made : ValueId(); };
  for (const NodeId node : read_.nodes()) {
    const NodeId made = program_.rebuild.made(node);
    if (made.valid()) program_.rebuild.saved(node, made, self);
  }
  // A program that holds a tensor to the end holds its last alias. Where that lives in a copy, such as the sum of a
  // gradient's parts, the parts die.
  IdMap<StorageId, StorageId> held;
  for (const NodeId node : read_.nodes()) {
    read_.for_each_output(node, [&](ValueId value) {
      const StorageId storage = read_.value(value).storage;
      if (!storage.valid() || read_.storage(storage).freed_after.valid()) return;
      if (read_.is_placeholder(read_.storage(storage).born)) return;
      const ValueId made = std::as_const(values_)[value].made;
      if (made.valid()) held[storage] = made_.value(made).storage;
    });
  }
  program_.rebuild.finish(self, [&](StorageId storage) {
    const StorageId last = std::as_const(held)[storage];
    return last.valid() ? last : program_.self_of(storage);
  });
  std::vector<bool> cut(made_.value_capacity());
  for (uint32_t i = 0; i < read_.value_capacity(); ++i) {
    const LocalValue& local = std::as_const(values_)[ValueId(i)];
    if (!local.made.valid() || !is_tensor(ValueId(i))) continue;
    cut[local.made.index] = !std::ranges::equal(read_.sizes(ValueId(i)), made_.sizes(local.made));
  }
  std::erase_if(made_.guards, [&](const Guard& guard) {
    return (guard.kind == Guard::Kind::kSize || guard.kind == Guard::Kind::kSizes) && cut[guard.value.index];
  });
  made_.metadata.other[kMeshKey] = plan_.mesh.to_string();
  made_.metadata.other[kRankKey] = std::to_string(rank_);
}

ShardedGraph apply(const Graph& graph, const ShardingPlan& plan, int64_t rank, const ApplyOptions& options) {
  return ShardedGraph::of(Application(graph, plan, rank, options).run());
}

}  // namespace shadowgraph
