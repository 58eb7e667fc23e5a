// Writes the data of a page as described in viz/page/README.md: columns, and strings by number.
#include "viz/page_data.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <ranges>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>
#include <zlib.h>

#include "ir/analysis/module_tree.h"
#include "ir/text/words.h"
#include "profiler/memory/allocation_order.h"
#include "profiler/program_costs.h"
#include "shadowgraph/draw/draw.h"
#include "shadowgraph/graph/graph.h"
#include "shadowgraph/graph/text.h"
#include "shadowgraph/profile/device_spec.h"
#include "shadowgraph/profile/operator_costs.h"
#include "shadowgraph/profile/profile.h"
#include "shadowgraph/profile/step_time.h"
#include "support/json.h"
#include "viz/drawn_graph.h"
#include "viz/node_colors.h"

namespace shadowgraph {
namespace {

// A column of integers as variable-length numbers, seven bits per byte: plain, or as differences from the previous one.
class Column {
 public:
  enum class Code : char { kPlain = 'u', kDelta = 'd' };
  explicit Column(std::string name, Code code = Code::kPlain) : name_(std::move(name)), code_(code) {}

  void add(int64_t value) {
    ++count_;
    if (code_ == Code::kPlain) {
      append(value < 0 ? 0 : static_cast<uint64_t>(value));
      return;
    }
    const int64_t step = value - last_;
    last_ = value;
    append((static_cast<uint64_t>(step) << 1U) ^ static_cast<uint64_t>(step >> 63));
  }

  nlohmann::json entry(size_t offset) const {
    return {{"name", name_},
            {"code", std::string(1, static_cast<char>(code_))},
            {"count", count_},
            {"at", offset},
            {"bytes", bytes_.size()}};
  }

  const std::string& bytes() const { return bytes_; }

 private:
  void append(uint64_t value) {
    for (; value >= 0x80; value >>= 7U) bytes_ += static_cast<char>((value & 0x7FU) | 0x80U);
    bytes_ += static_cast<char>(value);
  }

  std::string name_;
  Code code_;
  int64_t last_ = 0;
  size_t count_ = 0;
  std::string bytes_;
};

class Columns {
 public:
  Column& plain(const char* name) { return add(name, Column::Code::kPlain); }
  Column& delta(const char* name) { return add(name, Column::Code::kDelta); }
  // Adds a column with a number of each row: a member, or the result of a function.
  template <class Rows, class Number>
  void plain(const char* name, const Rows& rows, Number number) {
    fill(plain(name), rows, number);
  }
  template <class Rows, class Number>
  void delta(const char* name, const Rows& rows, Number number) {
    fill(delta(name), rows, number);
  }

  nlohmann::json entries() const {
    nlohmann::json entries = nlohmann::json::array();
    size_t at = 0;
    for (const auto& column : columns_) {
      entries.push_back(column->entry(at));
      at += column->bytes().size();
    }
    return entries;
  }

  // Appends all columns, in the order of entries().
  void append_to(std::string& bytes) const {
    size_t size = bytes.size();
    for (const auto& column : columns_) size += column->bytes().size();
    bytes.reserve(size);
    for (const auto& column : columns_) bytes += column->bytes();
  }

 private:
  Column& add(const char* name, Column::Code code) {
    return *columns_.emplace_back(std::make_unique<Column>(name, code));
  }
  template <class Rows, class Number>
  static void fill(Column& column, const Rows& rows, Number& number) {
    for (const auto& row : rows) column.add(static_cast<int64_t>(std::invoke(number, row)));
  }
  std::vector<std::unique_ptr<Column>> columns_;
};

// Interns strings; 0 is the empty one.
class Texts {
 public:
  Texts() { number(""); }

  uint32_t number(std::string_view text) {
    const auto [entry, added] = numbers_.try_emplace(std::string(text), static_cast<uint32_t>(list_.size()));
    if (added) list_.push_back(entry->first);
    return entry->second;
  }

  nlohmann::json list() const { return list_; }

 private:
  std::unordered_map<std::string, uint32_t> numbers_;
  std::vector<std::string> list_;
};

constexpr size_t kLongestConstants = 2000;  // characters of a call's constant arguments

// Adds the module calls around every node, phase by phase, and marks those identical to a previous one.
void add_clusters(const Profile& profile, Columns& columns, Texts& texts) {
  const Graph& graph = profile.graph();
  const ProgramCosts& costs = ProgramCosts::of(profile);
  ViewOptions options;
  for (uint32_t i = 0; i < graph.phase_count(); ++i) options.phases.push_back(graph.phase_name(PhaseId(i)));
  options.show_views = true;
  options.show_parameters = true;
  const DrawnGraph drawn = DrawnGraph::of(graph, options);
  columns.delta("node.cluster", costs.nodes, [&](NodeId id) {
    const uint32_t at = drawn.index[id];
    return at == DrawnGraph::kNone ? 0 : drawn.cluster_of[at];
  });
  columns.plain("node.stand_in", costs.nodes, [&](NodeId id) {
    const uint32_t i = costs.order[id], at = drawn.index[id];
    const uint32_t other = at == DrawnGraph::kNone ? i : drawn.position[drawn.stand_in[at]];
    return other < i ? i - other : 0;
  });
  const auto& clusters = drawn.clusters;
  columns.delta("cluster.parent", clusters,
                [&](const ModuleCluster& c) { return &c == clusters.data() ? 0 : c.parent; });
  columns.plain("cluster.name", clusters, [&](const ModuleCluster& c) { return texts.number(c.name); });
  columns.plain("cluster.class", clusters, [&](const ModuleCluster& c) { return texts.number(c.class_name); });
  columns.plain("cluster.call", clusters, &ModuleCluster::call);
  columns.plain("cluster.phase", clusters, [](const ModuleCluster& c) { return c.phase ? 1 : 0; });
  columns.plain("cluster.stands_for", clusters, [](const ModuleCluster& c) {
    return c.stands_for == ModuleCluster::kNone ? 0 : int64_t{c.stands_for} + 1;
  });
  columns.plain("cluster.repeats", clusters, &ModuleCluster::repeats);
  columns.plain("cluster.span", clusters, [&](const ModuleCluster& c) { return texts.number(c.span); });
}

// Adds calls of composite operators, checkpoints and scopes.
void add_regions(const Graph& graph, Columns& columns, Texts& texts) {
  const auto regions = std::views::iota(uint32_t{0}, static_cast<uint32_t>(graph.region_count())) |
                       std::views::transform([&](uint32_t i) -> const Region& { return graph.region(RegionId(i)); });
  columns.plain("region.kind", regions, &Region::kind);
  columns.delta("region.parent", regions,
                [](const Region& r) { return r.parent.valid() ? int64_t{r.parent.index} + 1 : 0; });
  columns.plain("region.name", regions, [&](const Region& r) -> uint32_t {
    // Names of modules are in module.*; calls of composite operators need theirs here.
    if (r.kind == RegionKind::kModule) return 0;
    const std::string_view text = graph.text_or_empty(r.name);
    return texts.number(text.empty() && r.target.valid() ? graph.target(r.target).name() : text);
  });
  columns.plain("region.call", regions, &Region::call);
}

// Adds the module tree with its costs.
void add_modules(const Profile& profile, Columns& columns, Texts& texts) {
  const std::vector<ModuleProfile>& modules = profile.modules;
  std::vector<uint32_t> parents(modules.size(), 0);
  for (uint32_t m = 0; m < modules.size(); ++m) {
    for (const uint32_t child : modules[m].children) parents[child] = m;
  }
  columns.delta("module.parent", parents, std::identity());
  columns.plain("module.path", modules, [&](const ModuleProfile& module) {
    // Write only the part below the parent; a long path would otherwise be repeated at every level.
    const auto m = static_cast<size_t>(&module - modules.data());
    const std::string& above = modules[parents[m]].path;
    const bool below = m != 0 && !above.empty() && module.path.size() > above.size() &&
                       module.path.starts_with(above) && module.path[above.size()] == '.';
    return texts.number(below ? module.path.substr(above.size()) : module.path);
  });
  columns.plain("module.class", modules, [&](const ModuleProfile& m) { return texts.number(m.class_name); });
  columns.plain("module.calls", modules, &ModuleProfile::calls);
  columns.plain("module.peak", modules, &ModuleProfile::peak);
  const auto figure = [&](const char* name, auto number) {
    columns.plain(name, modules, [&](const ModuleProfile& m) { return std::invoke(number, m.figures); });
  };
  figure("module.saved", &GroupCosts::incremental);
  figure("module.output", &GroupCosts::output);
  figure("module.temporary", &GroupCosts::temporary);
  figure("module.parameters", &GroupCosts::parameters);
  figure("module.backward", &GroupCosts::backward);
  figure("module.forward_nodes", &GroupCosts::forward_nodes);
  figure("module.backward_nodes", &GroupCosts::backward_nodes);
  figure("module.forward_flops", [](const GroupCosts& f) { return f.forward_flops.matmul; });
  figure("module.backward_flops", [](const GroupCosts& f) { return f.backward_flops.matmul; });
  figure("module.forward_elementwise", [](const GroupCosts& f) { return f.forward_flops.elementwise; });
  figure("module.backward_elementwise", [](const GroupCosts& f) { return f.backward_flops.elementwise; });
}

using nlohmann::json;

constexpr uint32_t kNoNumber = 0xFFFFFFFFU;
constexpr size_t kMaxPlannedStorages = 200'000;  // above this, the page itself lays out the blocks it shows

class PageData {
 public:
  PageData(const Profile& profile, const PageRole& role)
      : profile_(profile), role_(role), graph_(profile.graph()), costs_(ProgramCosts::of(profile)) {}

  std::string write() {
    number_all();
    nodes();
    values();
    storages();
    reserved();
    add_clusters(profile_, columns_, texts_);
    add_regions(graph_, columns_, texts_);
    add_modules(profile_, columns_, texts_);
    differences();
    given();
    return joined();
  }

 private:
  void number_all() {
    uint32_t next = 0;
    const Numbering numbering = Numbering::of(graph_);
    storage_order_ = numbering.storages();
    for (uint32_t i = 0; i < storage_order_.size(); ++i) storage_number_[storage_order_[i]] = i;
    // Storages without shown values still take memory.
    for (uint32_t i = 0; i < graph_.storage_count(); ++i) {
      if (std::as_const(storage_number_)[StorageId(i)] != kNoNumber) continue;
      storage_number_[StorageId(i)] = static_cast<uint32_t>(storage_order_.size());
      storage_order_.emplace_back(i);
    }
    for (const NodeId node : costs_.nodes) {
      graph_.for_each_output(node, [&](ValueId value) {
        if (std::as_const(value_number_)[value] != kNoNumber) return;
        value_number_[value] = next++;
        value_order_.push_back(value);
      });
    }
  }
  uint32_t number_of(ValueId id) const { return value_number_[id]; }
  uint32_t number_of(NodeId id) const { return id.valid() && !graph_.is_erased(id) ? costs_.order[id] : kNoNumber; }

  uint32_t target_number(TargetId id) {
    uint32_t& number = target_number_[id];
    if (number != kNoNumber) return number;
    number = static_cast<uint32_t>(targets_.size());
    const Target& target = graph_.target(id);
    const OperatorFacts& facts = graph_.facts(id);
    json names = json::array();
    for (const auto& formal : target.signature().arguments) names.push_back(formal.name);
    json entry{{"name", target.name()},
               {"schema", target.schema_text()},
               {"arguments", std::move(names)},
               {"category", static_cast<int>(category_of(target))}};
    if (facts.is_view) entry["view"] = true;
    if (facts.is_in_place) entry["in_place"] = true;
    if (facts.collective) entry["collective"] = true;
    if (facts.random) entry["random"] = true;
    if (target.kind() == TargetKind::kBuiltin) entry["builtin"] = true;
    targets_.push_back(std::move(entry));
    return number;
  }

  void nodes() {
    const auto& ids = costs_.nodes;
    columns_.plain("node.target", ids, [&](NodeId id) { return target_number(graph_.node(id).target); });
    columns_.plain("node.phase", ids, [&](NodeId id) { return graph_.node(id).phase.index; });
    columns_.plain("node.category", ids, [&](NodeId id) { return category_of(graph_, id); });
    columns_.delta("node.module", ids, [&](NodeId id) { return costs_.modules().of_node[id]; });
    columns_.delta("node.region", ids, [&](NodeId id) {
      const RegionId region = graph_.node(id).region;
      return region.valid() ? region.index : 0;
    });
    columns_.plain("node.forward", ids, [&](NodeId id) {
      const uint32_t i = costs_.order[id], of = number_of(graph_.node(id).forward);
      return of == kNoNumber || of >= i ? 0 : i - of;
    });
    columns_.delta("node.source", ids,
                   [&](NodeId id) { return texts_.number(graph_.text_or_empty(graph_.node(id).source)); });
    columns_.plain("node.name", ids, [&](NodeId id) { return texts_.number(placeholder_name(graph_, id)); });
    columns_.plain("node.constants", ids,
                   [&](NodeId id) { return placeholder_name(graph_, id).empty() ? texts_.number(constants(id)) : 0; });
    operands();
    columns_.plain("node.matmul", ids, [&](NodeId id) { return profile_.of(id).matmul; });
    columns_.plain("node.elementwise", ids, [&](NodeId id) { return profile_.of(id).elementwise; });
    columns_.plain("node.transcendental", ids, [&](NodeId id) { return profile_.of(id).transcendental; });
    columns_.plain("node.uncovered", ids, [&](NodeId id) { return profile_.node_flops().is_uncovered(id); });
    columns_.plain("node.read", ids, [&](NodeId id) { return costs_.traffic().of(id).read; });
    columns_.plain("node.written", ids, [&](NodeId id) { return costs_.traffic().of(id).written; });
    columns_.plain("node.scratch", ids, [&](NodeId id) { return profile_.scratch(id).bytes; });
    columns_.plain("node.scratch_source", ids, [&](NodeId id) { return profile_.scratch(id).source; });
    if (const StepTime* time = profile_.time()) {
      columns_.plain("node.picoseconds", ids, [&](NodeId id) { return std::llround(time->of(id).seconds * 1e12); });
      columns_.plain("node.kernel", ids, [&](NodeId id) { return time->of(id).kind; });
      columns_.plain("node.bound", ids, [&](NodeId id) { return time->of(id).bound; });
    }
    for (const NodeId id : ids) {
      if (!graph_.has_notes(id)) continue;
      json list = json::array();
      graph_.for_each_note(id, [&](std::string_view key, std::string_view text) {
        list.push_back({std::string(key), std::string(text)});
      });
      notes_.push_back({costs_.order[id], std::move(list)});
    }
  }

  // Formats the constant arguments of a call: "stride=[2, 2], groups=1".
  std::string constants(NodeId id) const {
    std::string text;
    const auto& formal = graph_.target(id).signature().arguments;
    const auto actual = graph_.arguments(id);
    for (size_t i = 0; i < actual.size() && i < formal.size() && text.size() < kLongestConstants; ++i) {
      if (actual[i].kind == ArgumentKind::kNone || actual[i].kind == ArgumentKind::kValue) continue;
      const size_t before = text.size();
      text += (text.empty() ? "" : ", ") + formal[i].name + "=";
      if (!append_constant(text, actual[i], formal[i].type.type, 0)) text.resize(before);
    }
    if (text.size() > kLongestConstants) text = text.substr(0, kLongestConstants) + " ...";
    return text;
  }

  // Appends an argument; returns true if it contains anything except values.
  bool append_constant(std::string& text, const Argument& argument, TypeClass type, int depth) const {
    switch (argument.kind) {
      case ArgumentKind::kNone:
        text += "None";
        return false;
      case ArgumentKind::kValue:
        text += '%';
        text += std::to_string(number_of(argument.ref.value));
        return false;
      case ArgumentKind::kInt:
        if (type == TypeClass::kDtype && argument.i >= 0 && argument.i < 127) {
          text += dtype_word(static_cast<c10::ScalarType>(argument.i));
        } else if (type == TypeClass::kLayout) {
          text += layout_word(static_cast<c10::Layout>(argument.i));
        } else if (type == TypeClass::kMemoryFormat) {
          text += memory_format_word(static_cast<c10::MemoryFormat>(argument.i));
        } else {
          append_int(text, argument.i);
        }
        return true;
      case ArgumentKind::kFloat:
        append_float(text, argument.d);
        return true;
      case ArgumentKind::kBool:
        text += argument.b ? "true" : "false";
        return true;
      case ArgumentKind::kComplex: {
        const auto parts = graph_.complex_parts(argument);
        text += fmt::format("{}{:+}i", parts[0], parts[1]);
        return true;
      }
      case ArgumentKind::kString:
        append_quoted(text, graph_.text(argument.string));
        return true;
      case ArgumentKind::kOpaque:
        text += '<';
        text += graph_.text(argument.string);
        text += '>';
        return true;
      case ArgumentKind::kDevice:
      case ArgumentKind::kGenerator:
        append_device(text, argument.device());
        return true;
      case ArgumentKind::kIntList:
        text += fmt::format("[{}]", fmt::join(graph_.ints(argument), ", "));
        return true;
      case ArgumentKind::kConstant: {
        const auto tensor = graph_.constant_meta(argument.constant);
        text += tensor ? fmt::format("constant {}[{}]", dtype_word(tensor->dtype), fmt::join(tensor->sizes, ","))
                       : std::string("constant");
        return true;
      }
      case ArgumentKind::kList: {
        bool any = false;
        bool first = true;
        text += '[';
        for (const Argument& element : graph_.list(argument)) {
          if (!first) text += ", ";
          first = false;
          if (depth > 8 || text.size() > kLongestConstants) {
            text += "...";
            break;
          }
          any = append_constant(text, element, TypeClass::kAny, depth + 1) || any;
        }
        text += ']';
        return any;
      }
    }
    return false;
  }

  // A value is encoded by its distance from the next one to be created. The lists of all nodes are concatenated.
  void operands() {
    Column &inputs = columns_.plain("node.inputs"), &input_value = columns_.plain("input.value"),
           &input_place = columns_.plain("input.place"), &outputs = columns_.plain("node.outputs"),
           &saved = columns_.plain("node.saved"), &saved_value = columns_.plain("saved.value"),
           &saved_role = columns_.plain("saved.role");
    uint32_t next_value = 0;  // number of values created so far
    for (const NodeId id : costs_.nodes) {
      const OperatorFacts& facts = graph_.facts(graph_.node(id).target);
      const auto actual = graph_.arguments(id);
      int64_t input_count = 0;
      for (size_t place = 0; place < actual.size(); ++place) {
        const bool writes = std::find(facts.written.begin(), facts.written.end(), place) != facts.written.end();
        graph_.for_each_value(actual.subspan(place, 1), [&](ValueId value) {
          const uint32_t number = number_of(value);
          if (number == kNoNumber || number >= next_value) return;
          ++input_count;
          input_value.add(next_value - 1 - number);
          input_place.add(static_cast<int64_t>(place) * 2 + (writes ? 1 : 0));
        });
      }
      inputs.add(input_count);
      const uint32_t first_output = next_value;
      graph_.for_each_output(id, [&](ValueId value) { next_value += number_of(value) == next_value ? 1 : 0; });
      outputs.add(next_value - first_output);
      int64_t saved_count = 0;
      for (const SavedTensor& tensor : graph_.saved(id)) {
        const uint32_t number = number_of(tensor.value);
        if (number == kNoNumber || number >= next_value) continue;
        ++saved_count;
        saved_value.add(next_value - 1 - number);
        saved_role.add(static_cast<int64_t>(tensor.role));
      }
      saved.add(saved_count);
    }
  }

  // Interns lists of numbers (sizes and strides).
  uint32_t list_number(std::span<const int64_t> numbers) {
    std::string text;
    for (const int64_t number : numbers) {
      if (!text.empty()) text += ',';
      append_int(text, number);
    }
    return lists_.number(text);
  }
  uint32_t device_number(c10::Device device) { return position_in(devices_, device_text(device)); }
  uint32_t dtype_number(c10::ScalarType dtype) {
    const uint32_t number = position_in(dtypes_, std::string(dtype_word(dtype)));
    if (number < dtype_bytes_.size()) return number;
    dtype_bytes_.push_back(dtype == c10::ScalarType::Undefined ? 0 : static_cast<int64_t>(c10::elementSize(dtype)));
    return number;
  }
  // Adds the name if it is new.
  static uint32_t position_in(std::vector<std::string>& names, const std::string& name) {
    const auto at = std::ranges::find(names, name) - names.begin();
    if (at == std::ssize(names)) names.push_back(name);
    return static_cast<uint32_t>(at);
  }

  void values() {
    const auto of_tensors = [&](const char* name, auto number) {
      columns_.plain(name, value_order_, [&](ValueId id) -> int64_t {
        return graph_.value(id).kind == ValueKind::kTensor ? number(id) : 0;
      });
    };
    columns_.plain("value.kind", value_order_, [&](ValueId id) { return graph_.value(id).kind; });
    of_tensors("value.dtype", [&](ValueId id) { return dtype_number(graph_.value(id).dtype); });
    of_tensors("value.sizes", [&](ValueId id) { return list_number(graph_.sizes(id)); });
    of_tensors("value.strides",
               [&](ValueId id) { return graph_.is_contiguous(id) ? 0 : list_number(graph_.strides(id)) + 1; });
    of_tensors("value.offset", [&](ValueId id) { return graph_.value(id).offset; });
    columns_.delta("value.storage", value_order_, [&](ValueId id) {
      const StorageId storage = graph_.value(id).storage;
      return storage.valid() ? int64_t{storage_number_[storage]} + 1 : 0;
    });
    columns_.plain("value.requires_grad", value_order_, [&](ValueId id) { return graph_.value(id).requires_grad; });
    of_tensors("value.device", [&](ValueId id) { return device_number(graph_.value(id).device()); });
  }

  void storages() {
    std::vector<uint32_t> first(storage_order_.size(), 0);
    for (uint32_t v = static_cast<uint32_t>(value_order_.size()); v-- > 0;) {
      const StorageId id = graph_.value(value_order_[v]).storage;
      if (id.valid()) first[std::as_const(storage_number_)[id]] = v + 1;
    }
    const auto after = [&](NodeId id) { return number_of(id) == kNoNumber ? 0 : int64_t{number_of(id)} + 1; };
    const auto& ids = storage_order_;
    columns_.plain("storage.bytes", ids, [&](StorageId id) { return graph_.storage(id).bytes; });
    columns_.plain("storage.kind", ids, [&](StorageId id) { return profile_.kind(id); });
    columns_.plain("storage.device", ids, [&](StorageId id) { return device_number(graph_.storage(id).device()); });
    columns_.delta("storage.born", ids, [&](StorageId id) { return after(graph_.storage(id).born); });
    columns_.delta("storage.freed", ids, [&](StorageId id) { return after(graph_.storage(id).freed_after); });
    columns_.delta("storage.value", first, std::identity());
    columns_.plain("storage.existed", ids, [&](StorageId id) {
      // Charts show the steady state that the report leads with, where optimizer state exists from the beginning.
      const Storage& storage = graph_.storage(id);
      const bool stays =
          profile_.steady_peak && profile_.kind(id) == StorageKind::kOptimizerState && after(storage.freed_after) == 0;
      return stays || existed_before(graph_, storage);
    });
    // A plan of the recorded step has other lifetimes.
    if (storage_order_.size() > kMaxPlannedStorages || profile_.steady_peak) return;
    const MemoryLayout plan = profile_.memory_layout();
    columns_.delta("storage.place", ids, [&](StorageId id) { return plan.offsets[id] + 1; });
    json own = json::array();
    for (const auto& scratch : costs_.custom.scratch()) {
      own.push_back({costs_.order[scratch.node], scratch.bytes, device_number(scratch.device)});
    }
    if (!own.empty()) header_["registered_scratch"] = std::move(own);
  }

  // Writes the bytes reserved by the caching allocator after each node, if the device has one: for a single step that
  // starts with an empty cache.
  void reserved() {
    if (!profile_.device_memory || costs_.nodes.empty() || costs_.nodes.size() > kMaxPlannedStorages) return;
    std::vector<uint32_t> ends(costs_.nodes.size());
    for (uint32_t i = 0; i < ends.size(); ++i) ends[i] = i;
    std::vector<AllocatorPeaks> peaks;
    try {
      peaks = allocator_peaks(costs_, profile_.device_memory->options, ends);
    } catch (const OutOfMemoryError&) {
      return;  // reported in the profile
    }
    columns_.delta("node.reserved", peaks, &AllocatorPeaks::reserved);
  }

  // Marks nodes that differ: 1 removed or added, 2 changed.
  void differences() {
    if (role_.diff == nullptr) return;
    std::vector<int64_t> state(costs_.nodes.size(), 0);
    json words = json::array();
    for (const GraphDiff::Change& change : role_.diff->changes) {
      const NodeId own = role_.before ? change.before : change.after;
      const NodeId other = role_.before ? change.after : change.before;
      if (!own.valid()) continue;
      const uint32_t at = costs_.order[own];
      state[at] = other.valid() ? 2 : 1;
      if (!change.what.empty()) words.push_back({at, change.what});
    }
    columns_.plain("node.different", state, std::identity());
    header_["different"] = std::move(words);
    header_["same"] = role_.diff->same;
  }

  // Writes node values given in a file.
  void given() {
    if (role_.values == nullptr) return;
    const NodeColors& colors = *role_.values;
    json values = json::array();
    const bool kinds = !colors.kind_entries.empty();
    for (uint32_t i = 0; i < costs_.nodes.size(); ++i) {
      const NodeId id = costs_.nodes[i];
      if (kinds && colors.kinds[id] != NodeColors::kNoKind) values.push_back({i, colors.kinds[id]});
      if (!kinds && colors.amounts[id] > 0) values.push_back({i, colors.amounts[id]});
    }
    header_["given"] = {{"title", colors.title}, {"unit", to_string(colors.unit)}, {"values", std::move(values)}};
    if (!kinds) return;
    json entries = json::array();
    for (const LegendEntry& entry : colors.kind_entries) entries.push_back({entry.label, entry.fill});
    header_["given"]["kinds"] = std::move(entries);
  }

  std::string joined() {
    json profile = to_json(profile_);
    for (const char* large : {"modules", "top_at_peak"}) profile.erase(large);
    header_["version"] = kPageDataVersion;
    header_["title"] = role_.title;
    header_["profile"] = std::move(profile);
    json metadata = json::array();
    for (const auto& [key, text] : graph_.metadata.lines()) metadata.push_back({key, text});
    header_["metadata"] = std::move(metadata);
    header_["libtorch"] = libtorch_version();
    header_["shadowgraph"] = SHADOWGRAPH_VERSION;
    header_["nodes"] = costs_.nodes.size();
    header_["values"] = value_order_.size();
    header_["storages"] = storage_order_.size();
    header_["targets"] = std::move(targets_);
    header_["texts"] = texts_.list();
    header_["lists"] = lists_.list();
    header_["devices"] = devices_;
    header_["dtypes"] = dtypes_;
    header_["dtype_bytes"] = dtype_bytes_;
    header_["notes"] = std::move(notes_);
    header_["guards"] = graph_.guards.size();
    json phases = json::array();
    for (uint32_t i = 0; i < graph_.phase_count(); ++i) phases.push_back(graph_.phase_name(PhaseId(i)));
    header_["phases"] = std::move(phases);
    header_["storage_kinds"] = enum_words<StorageKind>();
    json categories = json::array();
    for (const CategoryStyle& style : category_styles()) categories.push_back({style.name, style.fill});
    header_["categories"] = std::move(categories);
    header_["kernels"] = enum_words<KernelClass>();
    header_["region_kinds"] = enum_words<RegionKind>();

    header_["columns"] = columns_.entries();
    const std::string head = json_text(header_);
    std::string all = "SGPD";
    for (int i = 0; i < 4; ++i) all += static_cast<char>(head.size() >> (8 * i) & 0xFF);
    all += head;
    columns_.append_to(all);
    return all;
  }

  const Profile& profile_;
  const PageRole& role_;
  const Graph& graph_;
  const ProgramCosts& costs_;
  json header_;
  Columns columns_;
  Texts texts_, lists_;
  std::vector<std::string> devices_, dtypes_;
  std::vector<int64_t> dtype_bytes_;
  json targets_ = json::array();
  json notes_ = json::array();
  IdMap<TargetId, uint32_t> target_number_{kNoNumber};
  IdMap<ValueId, uint32_t> value_number_{kNoNumber};
  IdMap<StorageId, uint32_t> storage_number_{kNoNumber};
  std::vector<ValueId> value_order_;
  std::vector<StorageId> storage_order_;
};

}  // namespace

std::string packed(const std::string& bytes) {
  // For large data, the last few percent of compression take seconds.
  const int level = bytes.size() > 8'000'000 ? 5 : 9;
  uLongf size = compressBound(static_cast<uLong>(bytes.size()));
  std::vector<uint8_t> compressed(size);
  const int status = compress2(compressed.data(), &size, reinterpret_cast<const Bytef*>(bytes.data()),
                               static_cast<uLong>(bytes.size()), level);
  TORCH_INTERNAL_ASSERT(status == Z_OK);
  std::string text;
  append_base64(text, {compressed.data(), size});
  return text;
}

std::string page_data(const Profile& profile, const PageRole& role) { return PageData(profile, role).write(); }

}  // namespace shadowgraph
