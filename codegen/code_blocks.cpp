// Inlines the bodies of calls, each in a separate region.
//
//     %2 = my::block(%1) | note("body"="...")     becomes the body's nodes, in a scope or module region with a function
//
// Copies the graph once if any call has a body, and is linear in the bodies.
#include <algorithm>
#include <optional>
#include <set>
#include <unordered_set>

#include "codegen/code_layout.h"
#include "core/calls/functions.h"
#include "core/replay/body_function.h"
#include "ir/records.h"
#include "passes/recompute/forward_checkpoints.h"
#include "shadowgraph/codegen/codegen.h"
#include "shadowgraph/graph/edit.h"
#include "shadowgraph/graph/text.h"

namespace shadowgraph {
namespace {

bool has_body(const Graph& graph, NodeId node, const CodegenOptions& options) {
  return graph.target(node).kind() == TargetKind::kFunction && !graph.note(node, kBodyNote).empty() &&
         !options.functions.contains(graph.target(node).name());
}

RegionId add_function_region(Graph& graph, NodeId call) {
  const std::string path(graph.note(call, "module"));
  const std::string class_name(graph.note(call, "class"));
  Region region;
  region.kind = path.empty() ? RegionKind::kScope : RegionKind::kModule;
  region.name = graph.intern(path.empty() ? graph.target(call).name() : path);
  region.class_name = graph.intern(class_name);
  region.parent = graph.node(call).region;
  const Region& around = graph.region(region.parent);
  // The call may be in the region of the module that it calls, which must not be nested in itself.
  if (around.kind == RegionKind::kModule && graph.text_or_empty(around.name) == path) region.parent = around.parent;
  return graph.add_region(region);
}

// Removes the modules around the call, which an extracted body also contains.
void drop_outer_regions(Graph& body, const Graph& graph, RegionId around) {
  std::set<std::pair<RegionKind, std::string_view>> outer;
  for (; around.valid(); around = graph.region(around).parent) {
    outer.emplace(graph.region(around).kind, graph.text_or_empty(graph.region(around).name));
  }
  std::vector<RegionId> now(body.region_count(), Graph::kRootRegion);
  for (uint32_t i = 1; i < body.region_count(); ++i) {  // parents come first
    Region& region = mutable_region(body, RegionId(i));
    region.parent = now[region.parent.index];
    const bool known =
        region.parent == Graph::kRootRegion && outer.contains({region.kind, body.text_or_empty(region.name)});
    now[i] = known ? Graph::kRootRegion : RegionId(i);
  }
  for (const NodeId node : body.nodes()) {
    RegionId& region = mutable_node(body, node).region;
    if (region.valid()) region = now[region.index];
  }
}

void inline_body(InlinedBodies& inlined, NodeId call) {
  Graph& graph = inlined.graph;
  try {
    Graph body = parse(graph.note(call, kBodyNote));
    std::vector<ValueId> inputs, results;
    graph.for_each_input(call, [&](ValueId value) { inputs.push_back(value); });
    graph.for_each_output(call, [&](ValueId value) { results.push_back(value); });
    const RegionId region = add_function_region(graph, call);
    drop_outer_regions(body, graph, region);
    // Spliced nodes inherit the region of the call.
    mutable_node(graph, call).region = region;
    inlined.functions.push_back(region);
    // The nodes between this one and the call are those of the body.
    const NodeId before = graph.node(call).previous;
    const std::vector<ValueId> made = splice(graph, call, body, inputs);
    if (made.size() != results.size() || !std::ranges::all_of(made, [](ValueId value) { return value.valid(); })) {
      refuse_node(graph, call,
                  "its body returns " + std::to_string(made.size()) + " values, but the call has " +
                      std::to_string(results.size()) + ", or None for one of them");
    }
    for (NodeId node = graph.node(call).previous; node.valid() && node != before; node = graph.node(node).previous) {
      mutable_node(graph, node).phase = graph.node(call).phase;
    }
    for (size_t i = 0; i < results.size(); ++i) {
      graph.replace_all_uses_with(results[i], made[i]);
      std::ranges::replace(inlined.only, results[i], made[i]);
    }
    graph.erase(call);
  } catch (const UnsupportedError&) {
    throw;
  } catch (const Error& error) {
    refuse_node(graph, call, std::string("its body cannot be inlined: ") + error.what());
  }
}

}  // namespace

std::optional<InlinedBodies> inline_bodies(const Graph& graph, const CodegenOptions& options) {
  const auto calls_of = [&options](const Graph& in) {
    std::vector<NodeId> calls;
    for (const NodeId node : in.nodes()) {
      if (has_body(in, node, options)) calls.push_back(node);
    }
    return calls;
  };
  std::vector<NodeId> calls = calls_of(graph);
  if (calls.empty()) return std::nullopt;
  // The caller's graph is const, so bodies are inlined into a copy.
  InlinedBodies inlined{.graph = clone(graph), .functions = {}, .only = options.only};
  // Repeats for nested bodies. Each is part of the text of its caller, so this terminates.
  for (; !calls.empty(); calls = calls_of(inlined.graph)) {
    for (const NodeId call : calls) inline_body(inlined, call);
  }
  return inlined;
}

// Groups the steps of a plan into blocks. Linear in steps times the depth of modules, which is bounded by kMaxDepth.

namespace {

constexpr size_t kMaxDepth = 32;  // nested functions; deeper modules are written inline

bool is_function_region(const Graph& graph, RegionId id) {
  const Region& region = graph.region(id);
  const bool named = region.kind == RegionKind::kModule || region.kind == RegionKind::kScope;
  return region.kind == RegionKind::kCheckpoint || (named && !graph.text_or_empty(region.name).empty());
}

class BlockBuilder {
 public:
  BlockBuilder(CodeLayout& plan, const CodegenOptions& options, const std::vector<RegionId>& functions)
      : plan_(plan), graph_(*plan.graph), options_(options), always_(functions.begin(), functions.end()) {}

  void run() {
    find_regions();
    CodeBlock whole{.region = Graph::kRootRegion, .phase = Graph::kForward, .begin = 0, .end = step_count()};
    fill_and_cut(whole, 0);
    finish(std::move(whole));
  }

 private:
  uint32_t step_count() const { return static_cast<uint32_t>(plan_.steps.size()); }

  void find_regions() {
    std::vector<std::vector<RegionId>> chains(graph_.region_count());
    for (uint32_t r = 1; r < graph_.region_count(); ++r) {
      const RegionId id(r);
      const RegionId parent = graph_.region(id).parent;
      // A parent comes before its children, so its chain is known.
      if (parent.valid() && parent.index < r) chains[r] = chains[parent.index];
      if (is_function_region(graph_, id) && chains[r].size() < kMaxDepth) chains[r].push_back(id);
    }
    chain_of_.resize(plan_.steps.size());
    for (uint32_t step = 0; step < step_count(); ++step) {
      const Node& node = graph_.node(plan_.steps[step].node);
      if (node.region.valid() && node.region.index < chains.size()) chain_of_[step] = chains[node.region.index];
      // Autograd runs operators between modules, such as sums of gradients. As separate blocks they would split the
      // backward of a module.
      const bool after_forward = node.phase == Graph::kBackward || node.phase == Graph::kOptimizer;
      if (chain_of_[step].empty() && after_forward && step != 0 && phase(step - 1) == node.phase) {
        chain_of_[step] = chain_of_[step - 1];
      }
    }
  }

  PhaseId phase(uint32_t step) const { return graph_.node(plan_.steps[step].node).phase; }
  RegionId region_at(uint32_t step, size_t depth) const {
    return depth < chain_of_[step].size() ? chain_of_[step][depth] : RegionId();
  }
  // Returns whether a region becomes a function regardless of size.
  bool is_function_always(RegionId region) const {
    return graph_.region(region).kind == RegionKind::kCheckpoint || always_.contains(region);
  }
  bool has_function(uint32_t begin, uint32_t end, size_t depth) const {
    for (uint32_t step = begin; step < end; ++step) {
      for (size_t d = depth; d < chain_of_[step].size(); ++d) {
        if (is_function_always(chain_of_[step][d])) return true;
      }
    }
    return false;
  }

  void fill_and_cut(CodeBlock& block, size_t depth) {
    fill(block, block.begin, block.end, depth);
    while (block.items.size() > static_cast<size_t>(std::max(options_.max_function_items, 2))) {
      const size_t before = block.items.size();
      // Splits repeatedly until the function is short: compilers are slow on long ones.
      cut(block, /*by_phase=*/true);
      if (block.items.size() == before) cut(block, /*by_phase=*/false);  // the phases alternate
    }
  }

  // Returns whether a function would only call another one (or two in backward, where recomputation splits modules).
  bool only_calls(const CodeBlock& block) const {
    if (is_function_always(block.region) || block.items.size() > (block.phase == Graph::kForward ? 1 : 2)) return false;
    return std::ranges::all_of(block.items, [](const CodeBlock::Item& item) { return item.is_block(); });
  }

  // Lists the steps from begin to end as items, with each region that becomes a function as one item.
  void fill(CodeBlock& block, uint32_t begin, uint32_t end, size_t depth) {
    for (uint32_t step = begin; step < end;) {
      const RegionId child = region_at(step, depth);
      uint32_t stop = step + 1;
      // A region may recur after another one, as in backward; each visit is a separate block.
      while (stop < end && region_at(stop, depth) == child && phase(stop) == phase(step)) ++stop;
      if (!child.valid()) {
        for (; step < stop; ++step) block.items.push_back({.step = step});
        continue;
      }
      const bool checkpoint = graph_.region(child).kind == RegionKind::kCheckpoint;
      if (is_function_always(child) || stop - step >= static_cast<uint32_t>(std::max(options_.min_function_nodes, 1))) {
        CodeBlock inner{.region = child, .checkpoint = checkpoint, .phase = phase(step), .begin = step, .end = stop};
        fill_and_cut(inner, depth + 1);
        if (only_calls(inner)) {
          block.items.insert(block.items.end(), inner.items.begin(), inner.items.end());
        } else {
          block.items.push_back({.step = step, .block = finish(std::move(inner))});
        }
        // Too small for a function, but contains a region that must be one.
      } else if (has_function(step, stop, depth + 1)) {
        fill(block, step, stop, depth + 1);
      } else {
        for (uint32_t s = step; s < stop; ++s) block.items.push_back({.step = s});
      }
      step = stop;
    }
  }

  void cut(CodeBlock& block, bool by_phase) {
    const auto most = static_cast<size_t>(std::max(options_.max_function_items, 2));
    std::vector<CodeBlock::Item> items;
    for (size_t i = 0; i < block.items.size();) {
      const PhaseId first = phase(block.items[i].step);
      size_t stop = i;
      while (stop < block.items.size() && stop - i < most && (!by_phase || phase(block.items[stop].step) == first)) {
        ++stop;
      }
      if (stop - i == 1) {
        items.push_back(block.items[i]);
      } else {
        const uint32_t end = stop < block.items.size() ? block.items[stop].step : block.end;
        CodeBlock part{.region = block.region, .part = true, .phase = first, .begin = block.items[i].step, .end = end};
        part.items.assign(block.items.begin() + static_cast<ptrdiff_t>(i),
                          block.items.begin() + static_cast<ptrdiff_t>(stop));
        items.push_back({.step = part.begin, .block = finish(std::move(part))});
      }
      i = stop;
    }
    block.items = std::move(items);
  }

  bool is_state(NodeId node) const {
    const Target& target = graph_.target(node);
    return target.kind() == TargetKind::kFunction && random_state_function(target) != nullptr;
  }

  // Returns the common module path of a checkpoint or scope.
  std::string path_of(const CodeBlock& block) const {
    const RegionKind kind = graph_.region(block.region).kind;
    if (kind != RegionKind::kCheckpoint && kind != RegionKind::kScope) return std::string(plan_.path_of(block.region));
    std::optional<std::string> common;
    for (const CodeBlock::Item& item : block.items) {
      if (!item.is_block() && is_state(plan_.steps[item.step].node))
        continue;  // outside of them in each of several equal layers
      const std::string path = item.is_block()
                                   ? plan_.blocks[item.block].path
                                   : std::string(plan_.path_of(graph_.node(plan_.steps[item.step].node).region));
      if (!common) common = path;
      // Shortens "h.0.attn" to "h.0", at dots only: "h.1" is not a prefix of "h.10".
      while (!common->empty() && path != *common && !path.starts_with(*common + ".")) {
        const size_t dot = common->rfind('.');
        common->resize(dot == std::string::npos ? 0 : dot);
      }
    }
    return common.value_or("");
  }

  // Computes inputs and outputs, and appends the block; inner blocks first.
  uint32_t finish(CodeBlock block) {
    block.path = path_of(block);
    // A stamp per block avoids clearing a set of all variables.
    stamp_.resize(plan_.variables.size(), 0);
    ++stamp_now_;
    const auto inside = [&](uint32_t variable) {
      const uint32_t defined = plan_.variables[variable].defined;
      return defined != CodeLayout::kGiven && defined >= block.begin && defined < block.end;
    };
    const auto use = [&](uint32_t variable) {
      if (inside(variable) || stamp_[variable] == stamp_now_) return;
      stamp_[variable] = stamp_now_;
      block.inputs.push_back(variable);
    };
    const auto make = [&](uint32_t variable) {
      // Steps after the block read it, so the block must return it.
      if (plan_.variables[variable].last_use >= block.end) block.outputs.push_back(variable);
    };
    for (const CodeBlock::Item& item : block.items) {
      if (item.is_block()) {
        for (const uint32_t variable : plan_.blocks[item.block].inputs) use(variable);
        for (const uint32_t variable : plan_.blocks[item.block].outputs) make(variable);
        continue;
      }
      const CodeStep& step = plan_.steps[item.step];
      plan_.for_each_operand(item.step, use);
      plan_.for_each_constant(graph_.arguments(step.node), use);
      for (const CodeStep::Copy& copy : step.copies) make(copy.to);
      for (size_t i = 0; i < step.results.size(); ++i) {
        if (step.fresh[i]) make(step.results[i]);
      }
    }
    if (options_.autograd && block.checkpoint) find_statistics(block);
    plan_.blocks.push_back(std::move(block));
    return static_cast<uint32_t>(plan_.blocks.size()) - 1;
  }

  // Finds running statistics of a checkpoint's function; rejects other operations that cannot run twice.
  void find_statistics(CodeBlock& block) {
    if (!effects_) effects_ = Effects::of(graph_);
    std::vector<NodeId> nodes;
    for (uint32_t step = block.begin; step < block.end; ++step) nodes.push_back(plan_.steps[step].node);
    const RecomputeCheck again = check_recompute(graph_, *effects_, nodes);
    if (!again.obstacle.empty()) {
      refuse_node(graph_, again.at,
                  "code for autograd cannot recompute this checkpoint in backward: " + again.obstacle);
    }
    for (uint32_t i = 0; i < block.inputs.size(); ++i) {
      const ValueId value = plan_.variables[block.inputs[i]].value;
      if (value.valid() && again.statistics.contains(graph_.value(value).storage)) block.statistics.push_back(i);
    }
  }

  CodeLayout& plan_;
  const Graph& graph_;
  const CodegenOptions& options_;
  const std::unordered_set<RegionId> always_;
  std::optional<Effects> effects_;               // computed for the first checkpoint
  std::vector<std::vector<RegionId>> chain_of_;  // by step: enclosing regions emitted as functions, outermost first
  std::vector<uint32_t> stamp_;                  // by variable
  uint32_t stamp_now_ = 0;
};

}  // namespace

void build_blocks(CodeLayout& plan, const CodegenOptions& options, const std::vector<RegionId>& functions) {
  BlockBuilder(plan, options, functions).run();
}

}  // namespace shadowgraph
