#include "viz/page_data.h"

#include <ATen/core/jit_type.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <unordered_map>
#include <zlib.h>

#include "ir/text/words.h"
#include "profiler/memory/device_run.h"
#include "profiler/module_tree.h"
#include "profiler/program_costs.h"
#include "shadowgraph/draw.h"
#include "shadowgraph/profile/time.h"
#include "shadowgraph/text.h"
#include "viz/drawn_graph.h"

namespace shadowgraph {
namespace {

using nlohmann::json;

constexpr uint32_t kNoNumber = 0xFFFFFFFFU;
constexpr size_t kMostPlannedStorages = 200'000;  // beyond, the page places the blocks that it shows by itself
constexpr size_t kLongestConstants = 2000;        // characters of the constant arguments of a call

// A column of whole numbers: variable-length, seven bits a byte; as they are, or as differences from the one before.
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
  json entry(size_t offset) const {
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

// Texts by number, each once; 0 is the empty one.
class Texts {
 public:
  Texts() { number(""); }
  uint32_t number(std::string_view text) {
    const auto [entry, added] = numbers_.try_emplace(std::string(text), static_cast<uint32_t>(list_.size()));
    if (added) list_.push_back(entry->first);
    return entry->second;
  }
  json list() const { return list_; }

 private:
  std::unordered_map<std::string, uint32_t> numbers_;
  std::vector<std::string> list_;
};

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
    clusters();
    regions();
    modules();
    differences();
    return joined();
  }

 private:
  Column& column(const char* name, Column::Code code = Column::Code::kPlain) {
    columns_.push_back(std::make_unique<Column>(name, code));
    return *columns_.back();
  }
  Column& delta(const char* name) { return column(name, Column::Code::kDelta); }

  void number_all() {
    uint32_t next = 0;
    const Numbering numbering = Numbering::of(graph_);
    storage_order_ = numbering.storages();
    for (uint32_t i = 0; i < storage_order_.size(); ++i) storage_number_[storage_order_[i]] = i;
    // Those that nothing shown holds still take memory.
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
    for (const auto& formal : target.schema().arguments()) names.push_back(formal.name());
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

  // "stride=[2, 2], groups=1": what a node is given beside tensors.
  std::string constants(NodeId id) const {
    std::string text;
    const auto& formal = graph_.target(id).schema().arguments();
    const auto actual = graph_.arguments(id);
    for (size_t i = 0; i < actual.size() && i < formal.size() && text.size() < kLongestConstants; ++i) {
      if (actual[i].kind == ArgumentKind::kNone || actual[i].kind == ArgumentKind::kValue) continue;
      const size_t before = text.size();
      text += (text.empty() ? "" : ", ") + formal[i].name() + "=";
      if (!append(text, actual[i], formal[i].real_type()->kind(), 0)) text.resize(before);
    }
    if (text.size() > kLongestConstants) text = text.substr(0, kLongestConstants) + " ...";
    return text;
  }
  // Whether there is anything but values in it.
  bool append(std::string& text, const Argument& argument, c10::TypeKind type, int depth) const {
    switch (argument.kind) {
      case ArgumentKind::kNone:
        text += "None";
        return false;
      case ArgumentKind::kValue:
        text += '%';
        text += std::to_string(number_of(argument.ref.value));
        return false;
      case ArgumentKind::kInt:
        if (type == c10::TypeKind::ScalarTypeType && argument.i >= 0 && argument.i < 127) {
          text += dtype_word(static_cast<c10::ScalarType>(argument.i));
        } else if (type == c10::TypeKind::LayoutType) {
          text += layout_word(static_cast<c10::Layout>(argument.i));
        } else if (type == c10::TypeKind::MemoryFormatType) {
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
        const at::Tensor& tensor = graph_.constant(argument.constant);
        text += fmt::format("constant {}[{}]", dtype_word(tensor.scalar_type()), fmt::join(tensor.sizes(), ","));
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
          any = append(text, element, c10::TypeKind::AnyType, depth + 1) || any;
        }
        text += ']';
        return any;
      }
    }
    return false;
  }

  void nodes() {
    const auto plain = Column::Code::kPlain;
    Column &target = column("node.target"), &phase = column("node.phase"), &module = delta("node.module"),
           &region = delta("node.region"), &forward = column("node.forward"), &source = delta("node.source"),
           &constant = column("node.constants", plain), &name = column("node.name"), &inputs = column("node.inputs"),
           &outputs = column("node.outputs"), &saved = column("node.saved"), &category = column("node.category");
    Column &input_value = column("input.value"), &input_place = column("input.place");
    Column &saved_value = column("saved.value"), &saved_role = column("saved.role");
    Column &matmul = column("node.matmul"), &elementwise = column("node.elementwise"),
           &transcendental = column("node.transcendental"), &read = column("node.read"),
           &written = column("node.written"), &scratch = column("node.scratch"),
           &scratch_source = column("node.scratch_source"), &uncovered = column("node.uncovered");
    const StepTime* time = profile_.time();
    Column* picoseconds = time != nullptr ? &column("node.picoseconds") : nullptr;
    Column* kernel = time != nullptr ? &column("node.kernel") : nullptr;
    Column* bound = time != nullptr ? &column("node.bound") : nullptr;
    const Traffic& traffic = costs_.traffic();
    const IdMap<NodeId, uint32_t>& module_of = costs_.modules().of_node;
    uint32_t next_value = 0;
    for (uint32_t i = 0; i < costs_.nodes.size(); ++i) {
      const NodeId id = costs_.nodes[i];
      const Node& node = graph_.node(id);
      target.add(target_number(node.target));
      phase.add(node.phase.index);
      category.add(static_cast<int64_t>(category_of(graph_, id)));
      module.add(module_of[id]);
      region.add(node.region.valid() ? node.region.index : 0);
      const uint32_t of = number_of(node.forward);
      forward.add(of == kNoNumber || of >= i ? 0 : i - of);
      source.add(texts_.number(graph_.text_or_empty(node.source)));
      const std::string placeholder = placeholder_name(graph_, id);
      name.add(texts_.number(placeholder));
      constant.add(texts_.number(placeholder.empty() ? constants(id) : std::string()));

      const OperatorFacts& facts = graph_.facts(node.target);
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
      int64_t output_count = 0;
      graph_.for_each_output(id, [&](ValueId value) {
        if (number_of(value) != next_value) return;
        ++output_count;
        ++next_value;
      });
      outputs.add(output_count);
      int64_t saved_count = 0;
      for (const SavedTensor& tensor : graph_.saved(id)) {
        const uint32_t number = number_of(tensor.value);
        if (number == kNoNumber || number >= next_value) continue;
        ++saved_count;
        saved_value.add(next_value - 1 - number);
        saved_role.add(static_cast<int64_t>(tensor.role));
      }
      saved.add(saved_count);

      const NodeFlops& flops = profile_.of(id);
      matmul.add(flops.matmul);
      elementwise.add(flops.elementwise);
      transcendental.add(flops.transcendental);
      uncovered.add(profile_.node_flops().is_uncovered(id) ? 1 : 0);
      read.add(traffic.of(id).read);
      written.add(traffic.of(id).written);
      scratch.add(profile_.scratch(id).bytes);
      scratch_source.add(static_cast<int64_t>(profile_.scratch(id).source));
      if (time != nullptr) {
        picoseconds->add(std::llround(time->of(id).seconds * 1e12));
        kernel->add(static_cast<int64_t>(time->of(id).kind));
        bound->add(static_cast<int64_t>(time->of(id).bound));
      }
      if (graph_.has_notes(id)) {
        json list = json::array();
        graph_.for_each_note(id, [&](std::string_view key, std::string_view text) {
          list.push_back({std::string(key), std::string(text)});
        });
        notes_.push_back({i, std::move(list)});
      }
    }
  }

  // Lists of numbers by text, each once: sizes and strides.
  uint32_t list_number(std::span<const int64_t> numbers) {
    std::string text;
    for (const int64_t number : numbers) {
      if (!text.empty()) text += ',';
      append_int(text, number);
    }
    return lists_.number(text);
  }
  uint32_t device_number(c10::Device device) {
    std::string name;
    append_device(name, device);
    const auto found = std::find(devices_.begin(), devices_.end(), name);
    if (found == devices_.end()) devices_.push_back(name);
    return static_cast<uint32_t>(std::find(devices_.begin(), devices_.end(), name) - devices_.begin());
  }
  uint32_t dtype_number(c10::ScalarType dtype) {
    const std::string name(dtype_word(dtype));
    const auto found = std::find(dtypes_.begin(), dtypes_.end(), name);
    if (found != dtypes_.end()) return static_cast<uint32_t>(found - dtypes_.begin());
    dtypes_.push_back(name);
    dtype_bytes_.push_back(dtype == c10::ScalarType::Undefined ? 0 : static_cast<int64_t>(c10::elementSize(dtype)));
    return static_cast<uint32_t>(dtypes_.size() - 1);
  }

  void values() {
    Column &kind = column("value.kind"), &dtype = column("value.dtype"), &sizes = column("value.sizes"),
           &strides = column("value.strides"), &offset = column("value.offset"), &storage = delta("value.storage"),
           &grad = column("value.requires_grad"), &device = column("value.device");
    for (const ValueId id : value_order_) {
      const Value& value = graph_.value(id);
      const bool tensor = value.kind == ValueKind::kTensor;
      kind.add(static_cast<int64_t>(value.kind));
      dtype.add(tensor ? dtype_number(value.dtype) : 0);
      sizes.add(tensor ? list_number(graph_.sizes(id)) : 0);
      strides.add(tensor && !graph_.is_contiguous(id) ? list_number(graph_.strides(id)) + 1 : 0);
      offset.add(tensor ? value.offset : 0);
      storage.add(value.storage.valid() ? int64_t{storage_number_[value.storage]} + 1 : 0);
      grad.add(value.requires_grad ? 1 : 0);
      device.add(tensor ? device_number(value.device()) : 0);
    }
  }

  void storages() {
    Column &bytes = column("storage.bytes"), &kind = column("storage.kind"), &device = column("storage.device"),
           &born = delta("storage.born"), &freed = delta("storage.freed"), &value = delta("storage.value"),
           &existed = column("storage.existed");
    std::vector<uint32_t> first(storage_order_.size(), 0);
    for (uint32_t v = static_cast<uint32_t>(value_order_.size()); v-- > 0;) {
      const StorageId id = graph_.value(value_order_[v]).storage;
      if (id.valid()) first[std::as_const(storage_number_)[id]] = v + 1;
    }
    for (uint32_t i = 0; i < storage_order_.size(); ++i) {
      const Storage& storage = graph_.storage(storage_order_[i]);
      bytes.add(storage.bytes);
      kind.add(static_cast<int64_t>(profile_.kind(storage_order_[i])));
      device.add(device_number(storage.device()));
      const uint32_t from = number_of(storage.born);
      born.add(from == kNoNumber ? 0 : int64_t{from} + 1);
      const uint32_t until = number_of(storage.freed_after);
      freed.add(until == kNoNumber ? 0 : int64_t{until} + 1);
      value.add(first[i]);
      existed.add(existed_before(graph_, storage) ? 1 : 0);
    }
    if (storage_order_.size() > kMostPlannedStorages) return;
    const MemoryPlan plan = profile_.plan();
    Column& place = delta("storage.place");
    for (const StorageId id : storage_order_) place.add(plan.offsets[id] + 1);
    json own = json::array();
    for (const auto& scratch : costs_.custom.scratch()) {
      own.push_back({costs_.order[scratch.node], scratch.bytes, device_number(scratch.device)});
    }
    if (!own.empty()) header_["registered_scratch"] = std::move(own);
  }

  // What the caching allocator has reserved after each step, if it is the device's: of one step from nothing, before what
  // is freed is taken again.
  void reserved() {
    if (!profile_.device_memory || costs_.nodes.empty() || costs_.nodes.size() > kMostPlannedStorages) return;
    std::vector<uint32_t> ends(costs_.nodes.size());
    for (uint32_t i = 0; i < ends.size(); ++i) ends[i] = i;
    std::vector<AllocatorPeaks> peaks;
    try {
      peaks = allocator_peaks(costs_, profile_.device_memory->options, ends);
    } catch (const OutOfMemoryError&) {
      return;  // the profile says so
    }
    Column& bytes = delta("node.reserved");
    for (const AllocatorPeaks& peak : peaks) bytes.add(peak.reserved);
  }

  // The module calls around every node, phase by phase, and which of them do the same as the one before.
  void clusters() {
    ViewOptions options;
    for (uint32_t i = 0; i < graph_.phase_count(); ++i) options.phases.push_back(graph_.phase_name(PhaseId(i)));
    options.show_views = true;
    options.show_parameters = true;
    const DrawnGraph drawn = DrawnGraph::of(graph_, options);
    Column &of = delta("node.cluster"), &stand_in = column("node.stand_in");
    for (uint32_t i = 0; i < costs_.nodes.size(); ++i) {
      const uint32_t at = drawn.index[costs_.nodes[i]];
      of.add(at == DrawnGraph::kNone ? 0 : drawn.cluster_of[at]);
      const uint32_t other = at == DrawnGraph::kNone ? i : drawn.position[drawn.stand_in[at]];
      stand_in.add(other < i ? i - other : 0);
    }
    Column &parent = delta("cluster.parent"), &name = column("cluster.name"), &class_name = column("cluster.class"),
           &call = column("cluster.call"), &phase = column("cluster.phase"), &stands_for = column("cluster.stands_for"),
           &repeats = column("cluster.repeats"), &span = column("cluster.span");
    for (uint32_t c = 0; c < drawn.clusters.size(); ++c) {
      const ModuleCluster& cluster = drawn.clusters[c];
      parent.add(c == 0 ? 0 : cluster.parent);
      name.add(texts_.number(cluster.name));
      class_name.add(texts_.number(cluster.class_name));
      call.add(cluster.call);
      phase.add(cluster.phase ? 1 : 0);
      stands_for.add(cluster.stands_for == ModuleCluster::kNone ? 0 : int64_t{cluster.stands_for} + 1);
      repeats.add(cluster.repeats);
      span.add(texts_.number(cluster.span));
    }
  }

  void regions() {
    Column &kind = column("region.kind"), &parent = delta("region.parent"), &name = column("region.name"),
           &call = column("region.call");
    for (uint32_t i = 0; i < graph_.region_count(); ++i) {
      const Region& region = graph_.region(RegionId(i));
      kind.add(static_cast<int64_t>(region.kind));
      parent.add(region.parent.valid() ? int64_t{region.parent.index} + 1 : 0);
      std::string_view text = graph_.text_or_empty(region.name);
      if (text.empty() && region.target.valid()) text = graph_.target(region.target).name();
      // Modules have their names in module.*; here it is calls of composite operators that matter.
      name.add(region.kind == RegionKind::kModule ? 0 : texts_.number(text));
      call.add(region.call);
    }
  }

  void modules() {
    Column &parent = delta("module.parent"), &path = column("module.path"), &class_name = column("module.class"),
           &calls = column("module.calls"), &peak = column("module.peak"), &saved = column("module.saved"),
           &output = column("module.output"), &temporary = column("module.temporary"),
           &parameters = column("module.parameters"), &backward = column("module.backward"),
           &forward_nodes = column("module.forward_nodes"), &backward_nodes = column("module.backward_nodes"),
           &forward_flops = column("module.forward_flops"), &backward_flops = column("module.backward_flops"),
           &forward_elementwise = column("module.forward_elementwise"),
           &backward_elementwise = column("module.backward_elementwise");
    std::vector<uint32_t> parents(profile_.modules.size(), 0);
    for (uint32_t m = 0; m < profile_.modules.size(); ++m) {
      for (const uint32_t child : profile_.modules[m].children) parents[child] = m;
    }
    for (uint32_t m = 0; m < profile_.modules.size(); ++m) {
      const ModuleProfile& module = profile_.modules[m];
      const GroupFigures& figures = module.figures;
      parent.add(parents[m]);
      // The part below the parent: long paths would otherwise be there once a level.
      const std::string& above = profile_.modules[parents[m]].path;
      const bool below = m != 0 && !above.empty() && module.path.size() > above.size() &&
                         module.path.starts_with(above) && module.path[above.size()] == '.';
      path.add(texts_.number(below ? module.path.substr(above.size()) : module.path));
      class_name.add(texts_.number(module.class_name));
      calls.add(module.calls);
      peak.add(module.peak);
      saved.add(figures.incremental);
      output.add(figures.output);
      temporary.add(figures.temporary);
      parameters.add(figures.parameters);
      backward.add(figures.backward);
      forward_nodes.add(figures.forward_nodes);
      backward_nodes.add(figures.backward_nodes);
      forward_flops.add(figures.forward_flops.matmul);
      backward_flops.add(figures.backward_flops.matmul);
      forward_elementwise.add(figures.forward_flops.elementwise);
      backward_elementwise.add(figures.backward_flops.elementwise);
    }
  }

  // Of the nodes of this graph: 1 removed or added, 2 changed.
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
    Column& different = column("node.different");
    for (const int64_t s : state) different.add(s);
    header_["different"] = std::move(words);
    header_["same"] = role_.diff->same;
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
    json kinds = json::array();
    for (int k = 0; k < kStorageKindCount; ++k) kinds.push_back(to_string(static_cast<StorageKind>(k)));
    header_["storage_kinds"] = std::move(kinds);
    json categories = json::array();
    for (const CategoryStyle& style : category_styles()) categories.push_back({style.name, style.fill});
    header_["categories"] = std::move(categories);
    json kernels = json::array();
    for (int k = 0; k < kKernelClassCount; ++k) kernels.push_back(to_string(static_cast<KernelClass>(k)));
    header_["kernels"] = std::move(kernels);
    json regions = json::array();
    for (int k = 0; k <= static_cast<int>(RegionKind::kScope); ++k)
      regions.push_back(to_string(static_cast<RegionKind>(k)));
    header_["region_kinds"] = std::move(regions);

    json entries = json::array();
    size_t at = 0;
    for (const auto& column : columns_) {
      entries.push_back(column->entry(at));
      at += column->bytes().size();
    }
    header_["columns"] = std::move(entries);
    const std::string head = header_.dump(-1, ' ', false, json::error_handler_t::replace);
    std::string all = "SGPD";
    for (int i = 0; i < 4; ++i) all += static_cast<char>(head.size() >> (8 * i) & 0xFF);
    all.reserve(all.size() + head.size() + at);
    all += head;
    for (const auto& column : columns_) all += column->bytes();
    return all;
  }

  const Profile& profile_;
  const PageRole& role_;
  const Graph& graph_;
  const ProgramCosts& costs_;
  json header_;
  std::vector<std::unique_ptr<Column>> columns_;
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

std::string page_data(const Profile& profile, const PageRole& role) { return PageData(profile, role).write(); }

std::string packed(const std::string& bytes) {
  // The last few percent cost seconds where there is much.
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

}  // namespace shadowgraph
