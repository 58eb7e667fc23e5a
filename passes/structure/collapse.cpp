// collapse: replaces the nodes of each module call, or composite operator call, by one node, as in torch.fx.
//
// The nodes of one region and phase become one call of a function. Its schema declares operands, writes and aliases:
//
//     n3: %3 = aten::t(self=%0) | r2                     function module::fc1(Tensor x, Tensor weight, Tensor bias) -> Tensor
//     n4: %4 = aten::addmm(%1, %2, %3) | r2       ->     n3: %3 = module::fc1(x=%2, weight=%0, bias=%1) note("module"="fc1")
//
// level=module selects the module whose path has `depth` names ("layers.0" has 2), or the last one above it without
// child modules. Operators of a module outside its children are kept, as in torch.fx. Optimizer nodes of a parameter
// belong to the module of that depth that owns it. level=composite selects the outermost operator called by the user
// (aten::linear). The report is the graph as printed by torch.fx (shadowgraph/passes/structure.h).
//
// Preserves values and storages that cross the boundary, phases, and the order of effects. Drops the nodes inside,
// their saved tensors, and storages local to them. The backward nodes of a module become one call of
// module::path.backward. Host reads, collectives and unknown operators are never collapsed; random operators add a
// generator argument.
//
// A region that the program left and re-entered is still one call, unless a node in between depends on the first part
// and the second part depends on it. Other nodes in between are moved (shadowgraph/graph/analysis.h).
//
// Every node has a stage, which never decreases along a dependence and increases along each dependence that leaves a
// region. The nodes of a region with the same stage can be one call, since no path leaves and re-enters them. From the
// end, a node moves to the latest stage of its region that its users allow.
//
// The functions have no kernel, so such a graph can be analyzed but not run, unless bodies=keep. Each call then carries
// its nodes as graph text in the note "body", which the interpreter runs (core/replay/body_function.h). Calls with
// numbers as inputs or outputs (a size read from data) have no body.
//
// Costs about 1 us per node, 10 with bodies.
#include <fmt/format.h>

#include <cctype>
#include <map>
#include <optional>

#include "core/replay/body_function.h"
#include "ir/analysis/module_tree.h"
#include "ir/edit/bulk_edits.h"
#include "ir/records.h"
#include "shadowgraph/graph/analysis.h"
#include "shadowgraph/graph/edit.h"
#include "shadowgraph/graph/text.h"
#include "shadowgraph/passes/structure.h"

namespace shadowgraph {
namespace {

std::string identifier(std::string_view text) {
  std::string name;
  for (const char c : text) name += std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
  if (name.empty() || std::isdigit(static_cast<unsigned char>(name[0])) != 0) name.insert(0, "m");
  return name;
}

int64_t names_in(std::string_view path) {
  return path.empty() ? 0 : 1 + static_cast<int64_t>(std::count(path.begin(), path.end(), '.'));
}

class Collapse {
 public:
  Collapse(Graph& graph, bool modules, int64_t depth, bool bodies)
      : graph_(graph),
        modules_(modules),
        bodies_(bodies),
        effects_(Effects::of(graph)),
        to_erase_(graph.node_capacity(), false) {
    choose_regions(depth);
  }

  CollapseResult run() {
    for (const std::vector<NodeId>& members : group()) {
      replace(members, chosen_[graph_.node(members.front()).region.index]);
    }
    replacements_.finish(graph_);
    const int64_t hidden = erase_nodes(graph_, to_erase_);
    return {.calls = calls_, .hidden = hidden, .fx_text = fx_text(graph_)};
  }

 private:
  static constexpr uint32_t kNone = ~uint32_t{0};

  // Returns an equal key for nodes that may be in one call; kNone for a node that is kept.
  uint32_t key_of(NodeId n) const {
    if (!can_be_in_call(n) || is_call_already(n)) return kNone;
    const RegionId region = chosen_[graph_.node(n).region.index];
    return region.valid() ? region.index * graph_.phase_count() + graph_.node(n).phase.index : kNone;
  }

  // Returns the nodes of each call, after making them contiguous in the graph.
  std::vector<std::vector<NodeId>> group() {
    std::vector<uint32_t> keys(graph_.node_capacity(), kNone);
    bool any = false;
    for (NodeId n : graph_.nodes()) {
      keys[n.index] = key_of(n);
      any = any || keys[n.index] != kNone;
    }
    if (!any) return {};
    const Dependences dependences = Dependences::of(graph_, effects_);
    std::vector<int32_t> stage(graph_.node_capacity(), 0);
    const auto step = [&](NodeId from, NodeId to) {
      return keys[from.index] != kNone && keys[from.index] != keys[to.index] ? 1 : 0;
    };
    for (NodeId n : graph_.nodes()) {
      for (NodeId b : dependences.before(n)) stage[n.index] = std::max(stage[n.index], stage[b.index] + step(b, n));
    }
    take_latest_stages(keys, dependences, stage);

    std::vector<std::vector<NodeId>> groups;
    IdMap<NodeId, int32_t> group_of(-1);
    std::map<std::pair<uint32_t, int32_t>, int32_t> known;
    bool together = true;
    int32_t last = -1;
    std::pair<uint32_t, int32_t> last_is;
    for (NodeId n : graph_.nodes()) {
      const std::pair<uint32_t, int32_t> is(keys[n.index], stage[n.index]);
      if (is.first == kNone || is != last_is) last = -1;
      if (is.first == kNone) continue;
      if (last < 0) {
        const auto [entry, added] = known.try_emplace(is, static_cast<int32_t>(groups.size()));
        if (added) groups.emplace_back();
        together = together && added;
        last = entry->second;
        last_is = is;
      }
      groups[static_cast<size_t>(last)].push_back(n);
      group_of[n] = last;
    }
    if (!together) graph_.reorder(topological_order(graph_, dependences, group_of));
    return groups;
  }

  // Existing stages of each key, with their numbers of nodes.
  void take_latest_stages(const std::vector<uint32_t>& keys, const Dependences& dependences,
                          std::vector<int32_t>& stage) const {
    using Slot = std::pair<uint32_t, int32_t>;  // key, stage
    std::vector<Slot> slots;
    for (NodeId n : graph_.nodes()) {
      const Slot slot(keys[n.index], stage[n.index]);
      if (slot.first != kNone && (slots.empty() || slots.back() != slot)) slots.push_back(slot);
    }
    std::sort(slots.begin(), slots.end());
    slots.erase(std::unique(slots.begin(), slots.end()), slots.end());
    std::vector<uint32_t> counts(slots.size(), 0);
    const auto place_of = [&](const Slot& slot) {
      return static_cast<size_t>(std::lower_bound(slots.begin(), slots.end(), slot) - slots.begin());
    };
    // A region with one stage has no later one.
    const auto has_several = [&](size_t place) {
      return (place > 0 && slots[place - 1].first == slots[place].first) ||
             (place + 1 < slots.size() && slots[place + 1].first == slots[place].first);
    };
    for (NodeId n : graph_.nodes()) {
      if (keys[n.index] != kNone) ++counts[place_of({keys[n.index], stage[n.index]})];
    }
    for (NodeId n : graph_.nodes_reversed()) {
      if (keys[n.index] == kNone) continue;
      const size_t place = place_of({keys[n.index], stage[n.index]});
      if (!has_several(place)) continue;
      int32_t latest = INT32_MAX;
      for (NodeId a : dependences.after(n)) {
        latest = std::min(latest, stage[a.index] - (keys[a.index] != keys[n.index] ? 1 : 0));
      }
      const Slot bound(keys[n.index], latest);
      auto to = static_cast<size_t>(std::upper_bound(slots.begin(), slots.end(), bound) - slots.begin()) - 1;
      while (to > place && counts[to] == 0) --to;
      --counts[place];
      ++counts[to];
      stage[n.index] = slots[to].second;
    }
  }

  // Maps every region to the one that represents it; invalid if its nodes are kept.
  void choose_regions(int64_t depth) {
    chosen_.resize(graph_.region_count());
    std::vector<bool> has_modules(graph_.region_count(), false);
    for (uint32_t i = graph_.region_count(); i-- > 1;) {
      const Region& region = graph_.region(RegionId(i));
      if (has_modules[i] || region.kind == RegionKind::kModule) has_modules[region.parent.index] = true;
    }
    std::map<std::string_view, RegionId> at_depth;  // first region of each path
    for (uint32_t i = 1; i < graph_.region_count(); ++i) {
      const Region& region = graph_.region(RegionId(i));
      const std::string_view path = graph_.text_or_empty(region.name);
      if (region.kind == RegionKind::kModule && names_in(path) == depth) at_depth.try_emplace(path, RegionId(i));
    }
    for (uint32_t i = 1; i < graph_.region_count(); ++i) {
      const RegionId id(i);
      const Region& region = graph_.region(id);
      chosen_[i] = chosen_[region.parent.index];
      if (chosen_[i].valid()) continue;
      if (!modules_) {
        if (region.kind == RegionKind::kComposite) chosen_[i] = id;
      } else if (region.kind == RegionKind::kModule) {
        const int64_t names = names_in(graph_.text_or_empty(region.name));
        if (names >= depth || (names > 0 && !has_modules[i])) chosen_[i] = id;
        if (names <= depth) continue;
        // Outside of the module, named after the owner of the parameter.
        std::string_view path = graph_.text_or_empty(region.name);
        for (int64_t extra = names - depth; extra > 0; --extra) path = path.substr(0, path.rfind('.'));
        if (const auto owner = at_depth.find(path); owner != at_depth.end()) chosen_[i] = owner->second;
      }
    }
  }

  bool can_be_in_call(NodeId n) const {
    const TargetId target = graph_.node(n).target;
    return !is_placeholder(target) && !is_end(target) && !effects_.host_read(n) && !effects_.unknown(n) &&
           !effects_.collective(n);
  }

  // Inputs and outputs of a call.
  struct Border {
    std::vector<ValueId> inputs;
    std::vector<ValueId> outputs;
    std::optional<c10::Device> generator;
    std::map<StorageId, std::string> alias_sets;  // of storages from outside that are written or returned
    std::map<StorageId, bool> written;
  };

  Border border_of(const std::vector<NodeId>& members) {
    ++stamp_;
    for (const NodeId n : members) inside_[n] = stamp_;
    const auto is_inside = [&](NodeId n) { return std::as_const(inside_)[n] == stamp_; };
    Border border;
    for (const NodeId n : members) {
      graph_.for_each_input(n, [&](ValueId v) {
        if (is_inside(graph_.value(v).producer) || std::as_const(seen_)[v] == stamp_) return;
        seen_[v] = stamp_;
        border.inputs.push_back(v);
      });
      graph_.for_each_output(n, [&](ValueId v) {
        bool leaves = false;
        graph_.for_each_use(v, [&](NodeId user) { leaves = leaves || !is_inside(user); });
        if (leaves) border.outputs.push_back(v);
      });
      for (const StorageWrite& write : effects_.writes(n)) {
        if (effects_.is_generator(write.storage)) {
          for (const Effects::Generator& generator : effects_.generators()) {
            if (generator.storage == write.storage) border.generator = generator.device;
          }
        } else if (!is_inside(graph_.storage(write.storage).born)) {
          border.written[write.storage] = true;
        }
      }
    }
    const auto name_set = [&](StorageId s) {
      border.alias_sets.try_emplace(s, fmt::format("s{}", border.alias_sets.size()));
    };
    for (const auto& [storage, is_written] : border.written) name_set(storage);
    for (const ValueId v : border.outputs) {
      const StorageId s = graph_.value(v).storage;
      if (s.valid() && !is_inside(graph_.storage(s).born)) name_set(s);
    }
    return border;
  }

  std::string type_of(const Border& border, ValueId v, bool argument) const {
    const Value& value = graph_.value(v);
    if (value.kind != ValueKind::kTensor) return std::string(to_string(value.kind));
    const auto set = border.alias_sets.find(value.storage);
    if (set == border.alias_sets.end()) return "Tensor";
    const bool written = argument && border.written.contains(value.storage);
    return fmt::format("Tensor({}{})", set->second, written ? "!" : "");
  }

  // Parameters and buffers of the module keep their names (weight, bias); other operands are x0, x1, ... An alias set
  // is declared for each storage that is written or returned.
  std::string schema_of(const Border& border, RegionId region, PhaseId phase) const {
    const std::string path = path_of(region);
    std::map<std::string, int> taken{{"generator", 1}};
    const size_t colons = path.rfind("::");
    const std::string name = colons == path.npos ? path : path.substr(colons + 2);  // of aten::linear
    std::string text = fmt::format("{}::{}{}(", modules_ ? "module" : "composite", identifier(name),
                                   phase == Graph::kForward ? "" : "." + identifier(graph_.phase_name(phase)));
    bool first = true;
    size_t number = 0;
    for (const ValueId v : border.inputs) {
      std::string name = placeholder_name(graph_, graph_.value(v).producer);
      if (name.starts_with(path + ".")) name.erase(0, path.size() + 1);
      name = name.empty() ? fmt::format("x{}", number++) : identifier(name);
      if (const int copy = taken[name]++; copy != 0) name += fmt::format("__{}", copy);
      text += fmt::format("{}{} {}", first ? "" : ", ", type_of(border, v, true), name);
      first = false;
    }
    if (border.generator) text += fmt::format("{}Generator? generator=None", first ? "" : ", ");
    text += ") -> ";
    std::string results;
    for (const ValueId v : border.outputs) results += (results.empty() ? "" : ", ") + type_of(border, v, false);
    return text + (border.outputs.size() == 1 ? results : "(" + results + ")");
  }

  std::string path_of(RegionId region) const { return std::string(graph_.text_or_empty(graph_.region(region).name)); }

  // Returns "" if the nodes cannot be a function of tensors.
  std::string body_of(const std::vector<NodeId>& members, const Border& border) const {
    const auto is_tensor = [&](ValueId v) { return graph_.value(v).kind == ValueKind::kTensor; };
    if (!std::ranges::all_of(border.inputs, is_tensor) || !std::ranges::all_of(border.outputs, is_tensor)) return {};
    Subgraph piece = extract(graph_, members);
    TORCH_INTERNAL_ASSERT(piece.inputs == border.inputs);
    // Tensors that are only saved for backward are not outputs.
    const NodeId end = piece.graph.last();
    const auto all = piece.graph.list(piece.graph.arguments(end)[0]);
    std::vector<Argument> outputs;
    for (size_t i = 0; i < piece.outputs.size(); ++i) {
      if (std::ranges::find(border.outputs, piece.outputs[i]) != border.outputs.end()) outputs.push_back(all[i]);
    }
    TORCH_INTERNAL_ASSERT(outputs.size() == border.outputs.size());
    piece.graph.set_argument(end, 0, piece.graph.make_list(outputs));
    return to_text(piece.graph);
  }

  // Returns whether it is a call created by an earlier run.
  bool is_call_already(NodeId n) const {
    return graph_.target(n).kind() == TargetKind::kFunction && !graph_.note(n, "nodes").empty();
  }

  // Inserts the call in place of the first of its nodes. Storages allocated by the nodes are then allocated by the
  // call, and outside uses move to the call's results. The nodes are erased together at the end.
  void replace(const std::vector<NodeId>& members, RegionId region) {
    const Border border = border_of(members);
    const std::string body = bodies_ ? body_of(members, border) : std::string();
    const NodeId head = members.front();
    const PhaseId phase = graph_.node(head).phase;
    const TargetId target = graph_.intern_target(Target(TargetKind::kFunction, schema_of(border, region, phase)));
    std::vector<Argument> arguments;
    for (const ValueId v : border.inputs) arguments.push_back(Argument::of_value(v));
    if (border.generator) arguments.push_back(Argument::of_device(*border.generator, ArgumentKind::kGenerator));
    InsertionPoint at(graph_, head);
    const NodeId call = at.insert(target, arguments);
    mutable_node(graph_, call).region = region;
    for (const NodeId n : members) {
      if (!graph_.node(call).forward.valid()) mutable_node(graph_, call).forward = graph_.node(n).forward;
      replacements_.add(n, call);
      to_erase_[n.index] = true;
    }

    std::vector<Argument> results;
    for (const ValueId v : border.outputs) {
      const ValueId made = graph_.new_value(call, graph_.value(v).kind, graph_.meta(v));
      if (const StorageId s = graph_.value(v).storage; s.valid()) {
        Storage& storage = mutable_storage(graph_, s);
        if (std::as_const(inside_)[storage.born] == stamp_) storage.born = call;
      }
      results.push_back(Argument::of_value(made));
      replacements_.add(v, made);
    }
    graph_.set_results(call, results);
    for (size_t i = 0; i < results.size(); ++i) {
      graph_.replace_uses_if(border.outputs[i], results[i].ref.value,
                             [&](NodeId user, const Argument&) { return std::as_const(inside_)[user] != stamp_; });
    }
    const Region& called = graph_.region(region);
    graph_.set_note(call, modules_ ? "module" : "composite", path_of(region));
    graph_.set_note(call, "class", graph_.text_or_empty(called.class_name));
    graph_.set_note(call, "nodes", fmt::format("{}", members.size()));
    if (!body.empty()) graph_.set_note(call, kBodyNote, body);
    ++calls_;
  }

  Graph& graph_;
  const bool modules_;
  const bool bodies_;
  const Effects effects_;
  std::vector<RegionId> chosen_;
  std::vector<bool> to_erase_;
  IdMap<NodeId, uint32_t> inside_{0};  // the current call that contains it
  IdMap<ValueId, uint32_t> seen_{0};
  uint32_t stamp_ = 0;
  Replacements replacements_;
  int64_t calls_ = 0;
};

}  // namespace

CollapseResult collapse(Graph& graph, const CollapseOptions& options) {
  return Collapse(graph, options.level == CollapseOptions::Level::kModule, options.depth,
                  options.bodies == CollapseOptions::Bodies::kKeep)
      .run();
}

PassResult CollapseResult::summary() const {
  return {.changed = hidden != 0, .counters = {{"calls", calls}, {"nodes in them", hidden}}, .report = fx_text};
}

}  // namespace shadowgraph
