// Prints graphs as text, in three presets: canonical, short and fingerprint.
//
//     n4: %3 = aten::relu(self=%2) : f32[8,64] @s5 | r2 grad_mode      canonical: parse() restores the same graph
//     %3 = relu(%2) : f32[8,64]                                        short: for reading
//     aten::relu(self=^1) : f32[8,64] cpu | grad_mode                  fingerprint: equal for repeated blocks
//
// Linear in the graph. Files are written in pieces, so that memory use does not grow with them.
#include <concepts>
#include <ostream>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "ir/operators/operator_name.h"
#include "ir/records.h"
#include "ir/text/tensor_bytes.h"
#include "ir/text/words.h"
#include "shadowgraph/graph/analysis.h"
#include "shadowgraph/graph/target.h"
#include "shadowgraph/graph/text.h"
#include "shadowgraph/graph/verify.h"

namespace shadowgraph {

namespace {

constexpr size_t kShortList = 4;  // kShort truncates longer lists

// Writes all presets. Canonical text must round-trip byte for byte, so everything that parse() derives is omitted by
// the same rule: defaults, contiguous strides, allocations at the first use.
class TextWriter {
 public:
  TextWriter(const Graph& graph, const Numbering& numbering, PrintPreset preset)
      : graph_(graph), numbering_(numbering), preset_(preset) {}

  std::string& text() { return out_; }
  void set_effects(const Effects* effects) { effects_ = effects; }
  // For kFingerprint: prints values from outside the slice by type, and numbers the slice's values from 0, so that
  // equal slices of a graph have equal fingerprints.
  void set_slice(std::span<const NodeId> nodes) {
    sliced_ = true;
    slice_numbers_.assign(graph_.value_capacity(), Numbering::kNone);
    uint32_t next = 0;
    for (NodeId n : nodes) {
      graph_.for_each_output(n, [&](ValueId v) {
        // An invalid graph may refer to a value that does not exist; messages must print it all the same.
        if (v.index < slice_numbers_.size()) slice_numbers_[v.index] = next++;
      });
    }
  }

  // Everything that nodes refer to comes first, so that a reader needs one pass.
  void head() {
    put("shadowgraph 1 libtorch ", libtorch_version(), '\n');
    for (const auto& [key, value] : graph_.metadata.lines()) put("meta ", Quoted{key}, " = ", Quoted{value}, '\n');
    for (TargetId id : numbering_.targets()) {
      const bool function = graph_.target(id).kind() == TargetKind::kFunction;
      put(function ? "function " : "operator ", graph_.target(id).schema_text(), '\n');
    }
    for (uint32_t i = 0; i < numbering_.storages().size(); ++i) storage_line(i, numbering_.storages()[i]);
    // Before the regions, which may have constants as arguments.
    for (uint32_t i = 0; i < numbering_.constants().size(); ++i) constant_line(i, numbering_.constants()[i]);
    for (uint32_t i = 0; i < graph_.region_count(); ++i) region_line(RegionId(i));
    for (const Guard& guard : graph_.guards) guard_line(guard);
  }

  // One line per node, whatever it contains, so that diffs show nodes.
  void node_line(NodeId id) {
    const Node& node = graph_.node(id);
    const auto results = graph_.results(id);
    if (preset_ == PrintPreset::kCanonical) put(number(id), ": ");
    if (!results.empty() && preset_ != PrintPreset::kFingerprint) {
      this->results(results, [this](ValueId v) { put(number(v)); });
      put(" = ");
    }
    target_name(node.target);
    if (node.target.index < graph_.target_count()) {
      arguments(node.target, graph_.arguments(id));
    } else {
      put("(?)");
    }
    if (!results.empty()) {
      put(" : ");
      this->results(results, [this](ValueId v) { type(v); });
    }
    if (preset_ != PrintPreset::kShort) attributes(id);
    // Results are counted after the line, so that `^1` is the value produced just before.
    if (preset_ == PrintPreset::kFingerprint) {
      graph_.for_each_output(id, [&](ValueId) { ++next_value_; });
    }
  }

  // Each part is omitted if parse() would assume it.
  void type(ValueId id) {
    if (id.index >= graph_.value_capacity() || !graph_.in_bounds(graph_.value(id))) return put('?');
    const Value& value = graph_.value(id);
    if (value.kind != ValueKind::kTensor) return put(to_string(value.kind));
    put(dtype_word(value.dtype), '[', Ints{graph_.sizes(id)}, ']');
    // Only shape and dtype; strides, storage and device are in the long forms.
    if (preset_ == PrintPreset::kShort) return;
    if (!has_contiguous_strides(graph_.sizes(id), graph_.strides(id))) put('{', Ints{graph_.strides(id)}, '}');
    // Only canonical text has storages.
    const bool canonical = preset_ == PrintPreset::kCanonical;
    const bool has_storage = value.storage.index < graph_.storage_count();
    if (canonical && value.storage.valid()) {
      put(" @", number(value.storage));
    } else if (canonical && value.offset != 0) {
      put(" @none");
    }
    if (value.offset != 0) put('+', Int{value.offset});
    // The storage's line has the device already, unless the value's differs.
    if (!has_storage || graph_.storage(value.storage).device() != value.device() || !canonical) {
      put(' ', value.device());
    }
    if (value.layout != c10::Layout::Strided) put(' ', layout_word(value.layout));
    if (value.requires_grad) put(" grad");
  }

 private:
  // Parts of a line, for put().
  struct Quoted {
    std::string_view text;
  };
  struct Int {
    int64_t value;
  };
  struct Ints {
    std::span<const int64_t> list;
  };
  struct Number {
    char letter;
    uint32_t n;
  };
  Number number(NodeId id) const { return {'n', numbering_.of(id)}; }
  Number number(ValueId id) const { return {'%', numbering_.of(id)}; }
  Number number(StorageId id) const { return {'s', numbering_.of(id)}; }

  void put(std::string_view text) { out_ += text; }
  void put(char c) { out_ += c; }
  void put(std::same_as<c10::Device> auto device) { append_device(out_, device); }
  void put(Quoted quoted) { append_quoted(out_, quoted.text); }
  void put(Int number) { append_int(out_, number.value); }
  void put(Ints numbers) { ints(numbers.list); }
  // Invalid graphs are printed in messages of the verifier; anything without a number is "?".
  void put(Number number) {
    put(number.letter);
    number.n == Numbering::kNone ? put('?') : put(Int{number.n});
  }
  template <class... Parts>
  requires(sizeof...(Parts) > 1) void put(const Parts&... parts) { (put(parts), ...); }

  // Calls put_element for each element of a list, separated by commas.
  template <class List, class F>
  void each(const List& list, F&& put_element) {
    bool first = true;
    for (const auto& element : list) {
      if (!first) put(", ");
      first = false;
      put_element(element);
    }
  }

  // Writes a reference to a value. A fingerprint uses distances, since absolute numbers differ from block to block:
  //
  //     %7 = mul(%5, %6), %12 = mul(%10, %11)        both are mul(^2, ^1)
  void value_ref(ValueId id) {
    if (preset_ != PrintPreset::kFingerprint) return put(number(id));
    const uint32_t n =
        sliced_ ? (id.index < slice_numbers_.size() ? slice_numbers_[id.index] : Numbering::kNone) : numbering_.of(id);
    const bool known = id.index < graph_.value_capacity();
    const NodeId producer = known ? graph_.value(id).producer : NodeId();
    const bool placeholder = producer.index < graph_.node_capacity() && graph_.is_placeholder(producer);
    // A value from outside is printed by type only, since each layer has its own parameters.
    if (n == Numbering::kNone || placeholder) {
      put('<');
      if (placeholder) put(graph_.target(producer).name(), ' ');
      known ? type(id) : put("?");
      put('>');
    } else {
      // Both numbers count values, so a repeated block refers back by the same distances.
      put('^', Int{int64_t{next_value_} - int64_t{n}});
    }
  }

  // Two schemas may have the same name; copies are numbered as in the parser.
  void target_name(TargetId id) {
    if (id.index >= graph_.target_count()) return put("target?");
    const std::string_view name = graph_.target(id).name();
    // Nearly every operator is in aten, so the short form omits the namespace.
    put(preset_ == PrintPreset::kShort && namespace_of(name) == "aten" ? without_namespace(name) : name);
    if (const uint32_t copy = numbering_.name_copy(id); copy > 1) put(Number{'#', copy});
  }

  void storage_line(uint32_t n, StorageId id) {
    const Storage& storage = graph_.storage(id);
    put(Number{'s', n}, " = ", Int{storage.bytes}, ' ', storage.device(), ' ', to_string(storage.kind));
    // Omits the allocating node if it is the first one with a value in the storage, which parse() assumes.
    const uint32_t born = numbering_.of(storage.born);
    if (born != numbering_.of(numbering_.first_node(id))) {
      born == Numbering::kNone ? put(" born before") : put(" born ", Number{'n', born});
    }
    put('\n');
  }

  void region_line(RegionId id) {
    const Region& region = graph_.region(id);
    const std::string_view name = graph_.text_or_empty(region.name);
    const std::string_view class_name = graph_.text_or_empty(region.class_name);
    const bool has_target = region.target.index < graph_.target_count();
    // Every graph has the root; a line for it is only needed for additional properties.
    const bool has_details = region.call != 0 || region.inferred || has_target || region.parent.valid();
    // A root with a name or a call is printed.
    if (id == Graph::kRootRegion && name.empty() && class_name.empty() && !has_details) return;
    put(Number{'r', id.index}, " = ", to_string(region.kind));
    // A composite has the name of its operator by default, which is not repeated.
    const bool name_is_target = has_target && name == graph_.target(region.target).name();
    if (!name_is_target || !class_name.empty()) put(' ', Quoted{name});
    if (!class_name.empty()) put(' ', Quoted{class_name});
    if (region.kind == RegionKind::kModule || region.call != 0) put(" call ", Int{region.call});
    if (has_target) {
      put(' ');
      target_name(region.target);
      if (region.arguments.size != 0) arguments(region.target, graph_.region_arguments(id));
    }
    if (region.parent.valid()) put(" in ", Number{'r', region.parent.index});
    if (region.inferred) put(" inferred");
    put('\n');
  }

  // A constant without readable contents (meta, sparse) is declared without its bytes: the rest of the graph
  // round-trips.
  void constant_line(uint32_t n, ConstantId id) {
    const auto bytes = tensor_bytes(graph_.constant(id));
    put(Number{'c', n}, " = ");
    if (!bytes) return put("unreadable\n");
    put(dtype_word(bytes->dtype), '[', Ints{bytes->sizes}, ']');
    if (!has_contiguous_strides(bytes->sizes, bytes->strides)) put('{', Ints{bytes->strides}, '}');
    put(" \"");
    append_base64(out_, bytes->bytes);
    put("\"\n");
  }

  void guard_line(const Guard& guard) {
    put("depends ", to_string(guard.kind), '(', number(guard.value));
    // Only a guard on one size has a dimension.
    if (guard.dimension != -1) put(", ", Int{guard.dimension});
    put(") = ", Quoted{guard.observed}, '\n');
  }

  // Omits arguments that equal their schema's default. Compared as arguments, so "1" and "1.0" differ here as they do
  // for the parser.
  void arguments(TargetId target, std::span<const Argument> actual) {
    const Signature& formals = graph_.target(target).signature();
    put('(');
    bool first = true;
    for (size_t i = 0; i < actual.size(); ++i) {
      const Formal* formal = i < formals.arguments.size() ? &formals.arguments[i] : nullptr;
      if (formal != nullptr && formal->default_value && formal->default_value->equals(graph_, actual[i])) continue;
      // A placeholder's name and constants are not part of a fingerprint.
      if (preset_ == PrintPreset::kFingerprint && is_placeholder(target)) continue;
      if (!first) put(", ");
      first = false;
      // Values are printed by position to save space; other arguments keep their names.
      const bool by_position = preset_ == PrintPreset::kShort && actual[i].kind == ArgumentKind::kValue;
      if (formal != nullptr && !by_position) put(formal->name, '=');
      // Variadic arguments have no formal, so their integers cannot be words.
      const FormalType type = formal != nullptr ? formal->type : FormalType();
      argument(actual[i], type.type, type.is_int_list(), type.element, 0);
    }
    put(')');
  }

  void argument(const Argument& a, TypeClass type, bool int_list, TypeClass element, int depth) {
    switch (a.kind) {
      case ArgumentKind::kNone:
        return put("None");
      case ArgumentKind::kValue:
        return value_ref(a.ref.value);
      case ArgumentKind::kInt: {
        // Numbers without a word are printed as they are.
        const std::string_view word = word_of_number(type, a.i);
        return word.empty() ? put(Int{a.i}) : put(word);
      }
      case ArgumentKind::kFloat:
        return append_float(out_, a.d);
      case ArgumentKind::kBool:
        return put(a.b ? "true" : "false");
      case ArgumentKind::kComplex: {
        const auto parts = graph_.complex_parts(a);
        put("complex(");
        append_float(out_, parts[0]);
        put(", ");
        append_float(out_, parts[1]);
        return put(')');
      }
      case ArgumentKind::kString:
        return put(Quoted{graph_.text_or_empty(a.string)});
      case ArgumentKind::kDevice:
        return put(a.device());
      // A list of ints where the schema has one is `[..]`. The other kind of list is marked, so that both round-trip.
      case ArgumentKind::kIntList:
        put(int_list ? "[" : "ints[");
        ints(graph_.ints(a), preset_ == PrintPreset::kShort, ", ");
        return put(']');
      case ArgumentKind::kList:
        // Bounded as in the parser, which would reject deeper lists.
        if (depth >= kMaxListDepth) return put("[?]");
        put(int_list ? "list[" : "[");
        elements(graph_.list(a), element, depth);
        return put(']');
      case ArgumentKind::kConstant:
        return preset_ == PrintPreset::kFingerprint ? put("<constant>") : put(Number{'c', numbering_.of(a.constant)});
      case ArgumentKind::kGenerator:
        return put("generator(", a.device(), ')');
      case ArgumentKind::kOpaque:
        return put("opaque(", Quoted{graph_.text_or_empty(a.string)}, ')');
    }
    put('?');
  }

  void elements(std::span<const Argument> list, TypeClass element, int depth) {
    const bool cut = preset_ == PrintPreset::kShort && list.size() > kShortList;
    each(list.first(cut ? kShortList - 1 : list.size()),
         [&](const Argument& a) { argument(a, element, false, TypeClass::kAny, depth + 1); });
    if (cut) put(", ...");
  }

  // kShort truncates long lists.
  void ints(std::span<const int64_t> list, bool cut = false, std::string_view separator = ",") {
    const size_t shown = cut && list.size() > kShortList ? kShortList - 1 : list.size();
    for (size_t i = 0; i < shown; ++i) {
      if (i != 0) put(separator);
      put(Int{list[i]});
    }
    if (shown < list.size()) put(", ...");
  }

  // Names and types are written separately, names first, so that lines start with their results.
  template <class F>
  void results(std::span<const Argument> results, F&& put_value, int depth = 0) {
    each(results, [&](const Argument& result) {
      if (result.kind == ArgumentKind::kValue) {
        put_value(result.ref.value);
      } else if (result.kind == ArgumentKind::kList && depth < kMaxListDepth) {
        put('[');
        this->results(graph_.list(result), put_value, depth + 1);
        put(']');
      } else {
        put("None");
      }
    });
  }

  // Writes the node's attributes that are present, in a fixed order: region, phase, forward, modes, saved, writes,
  // frees, notes, source.
  void attributes(NodeId id) {
    const Node& node = graph_.node(id);
    const bool canonical = preset_ == PrintPreset::kCanonical;
    any_attribute_ = false;
    if (canonical && node.region != Graph::kRootRegion) attribute(Number{'r', node.region.index});
    if (node.phase != Graph::kForward) phase(node.phase);
    if (canonical && numbering_.of(node.forward) != Numbering::kNone) attribute("of ", number(node.forward));
    for (const auto& [flag, word] : kModeWords) {
      if (node.flags.*flag) attribute(word);
    }
    if (!canonical) return;
    if (node.saved.size != 0) saved(id);
    if (effects_ != nullptr) writes(id);
    if (node.frees.size != 0) frees(id);
    if (graph_.has_notes(id)) notes(id);
    if (const std::string_view source = graph_.text_or_empty(node.source); !source.empty()) {
      attribute(Quoted{source});
    }
  }

  // Built-in phases are words; custom ones are quoted to distinguish them from attributes.
  void phase(PhaseId id) {
    if (id.index >= graph_.phase_count()) {
      attribute("phase ?");
    } else if (id.index > Graph::kInit.index) {
      attribute("phase ", Quoted{graph_.phase_name(id)});
    } else {
      attribute(graph_.phase_name(id));
    }
  }

  // Writes saved tensors by role. The value is added only if the role does not imply it, by the same rule as in
  // parse().
  void saved(NodeId id) {
    const auto arguments = graph_.arguments(id);
    const TargetId target = graph_.node(id).target;
    static const std::vector<Formal> kNoFormals;
    const auto& formals =
        target.index < graph_.target_count() ? graph_.target(target).signature().arguments : kNoFormals;
    attribute("saved(");
    each(graph_.saved(id), [&](const SavedTensor& saved) {
      bool implied = false;  // the role implies the value
      if (saved.role == SavedRole::kArgument) {
        // "internal" is a role, so an argument with this name is given by its number.
        if (saved.index < formals.size() && formals[saved.index].name != "internal") {
          put(formals[saved.index].name);
        } else {
          put("argument[", Int{saved.index}, ']');
        }
        implied = saved.index < arguments.size() && arguments[saved.index].kind == ArgumentKind::kValue &&
                  arguments[saved.index].ref.value == saved.value;
      } else if (saved.role == SavedRole::kResult) {
        put("result[", Int{saved.index}, ']');
        for_each_value_of_role(graph_, id, saved, [&](ValueId v) { implied = v == saved.value; });
      } else {
        put("internal");
      }
      if (!implied) put('=', number(saved.value));
    });
    put(')');
  }

  // Writes could be derived, but are printed because readers look for them first; the parser checks them.
  void writes(NodeId id) {
    bool open = false;
    for (const StorageWrite& write : effects_->writes(id)) {
      // Generators and collectives are pseudo storages of the analysis, which the text does not number.
      if (effects_->is_generator(write.storage)) continue;
      open ? put(", ") : attribute("writes(");
      open = true;
      put(number(write.storage), '@', Int{write.after});
    }
    if (open) put(')');
  }

  void frees(NodeId id) {
    attribute("free(");
    each(graph_.frees(id), [&](StorageId storage) { put(number(storage)); });
    put(')');
  }

  void notes(NodeId id) {
    attribute("note(");
    bool first = true;
    graph_.for_each_note(id, [&](std::string_view key, std::string_view value) {
      if (!first) put(", ");
      first = false;
      put(Quoted{key}, '=', Quoted{value});
    });
    put(')');
  }

  // Writes an attribute, or its beginning, after a separator.
  void attribute(const auto&... parts) {
    put(any_attribute_ ? " " : " | ");
    any_attribute_ = true;
    (put(parts), ...);
  }

  const Graph& graph_;
  const Numbering& numbering_;
  const PrintPreset preset_;
  const Effects* effects_ = nullptr;
  std::string out_;
  bool any_attribute_ = false;  // on this line
  bool sliced_ = false;
  std::vector<uint32_t> slice_numbers_;  // by value index: its number within the slice
  uint32_t next_value_ = 0;              // kFingerprint: the number of values produced by the lines so far
};

// Text is flushed in pieces of this size, so that a graph of a million nodes needs no string of 150 MB.
constexpr size_t kFlushBytes = size_t{1} << 18;

// For strings and streams: `flush` may consume the text at any call.
template <class Flush>
void write_graph(const Graph& graph, PrintPreset preset, Flush&& flush) {
  const Numbering numbering = Numbering::of(graph);
  TextWriter writer(graph, numbering, preset);
  std::optional<Effects> effects;
  // Computing effects costs a walk over the graph, so only do it for the preset that prints writes.
  if (preset == PrintPreset::kCanonical) {
    effects = Effects::of(graph);
    writer.set_effects(&*effects);
    writer.head();
  }
  for (NodeId n : numbering.nodes()) {
    writer.node_line(n);
    writer.text() += '\n';
    flush(writer.text(), false);
  }
  flush(writer.text(), true);
}

}  // namespace

void print(std::ostream& out, const Graph& graph, PrintPreset preset) {
  write_graph(graph, preset, [&](std::string& text, bool last) {
    // Few large writes: one per line would cost more than formatting the lines.
    if (text.size() < kFlushBytes && !last) return;
    out.write(text.data(), static_cast<std::streamsize>(text.size()));
    text.clear();
  });
}

std::string to_text(const Graph& graph, PrintPreset preset) {
  std::string result;
  write_graph(graph, preset, [&](std::string& text, bool last) {
    if (last) result = std::move(text);
  });
  return result;
}

std::string to_text(const Graph& graph, NodeId node) { return to_text(graph, node, Numbering::of(graph)); }

std::string to_text(const Graph& graph, NodeId node, const Numbering& numbering) {
  if (node.index >= graph.node_capacity() || !graph.in_bounds(graph.node(node))) return "n?";
  TextWriter writer(graph, numbering, PrintPreset::kCanonical);
  writer.node_line(node);
  return std::move(writer.text());
}

std::string to_text(const Graph& graph, std::span<const NodeId> nodes, PrintPreset preset) {
  const Numbering numbering = Numbering::of(graph);
  TextWriter writer(graph, numbering, preset);
  writer.set_slice(nodes);
  for (NodeId n : nodes) {
    writer.node_line(n);
    writer.text() += '\n';
  }
  return std::move(writer.text());
}

// Needs no numbering: a type in short form contains no references.
std::string type_text(const Graph& graph, ValueId value) {
  const Numbering numbering;
  TextWriter writer(graph, numbering, PrintPreset::kShort);
  writer.type(value);
  return std::move(writer.text());
}

void write_graph_file(const std::string& path, const Graph& graph) {
  verify(graph);
  write_file(path, [&](std::ostream& file) { print(file, graph); });
}

// Numbers entities in order of appearance. Skips ids out of range, since invalid graphs are numbered for messages.
template <class I>
void Numbering::number(std::vector<uint32_t>& numbers, std::vector<I>& order, I id) {
  if (id.index >= numbers.size() || numbers[id.index] != kNone) return;
  numbers[id.index] = static_cast<uint32_t>(order.size());
  order.push_back(id);
}

bool Numbering::number_arguments(const Graph& graph, std::span<const Argument> arguments, int depth) {
  for (const Argument& argument : arguments) {
    if (argument.kind == ArgumentKind::kConstant) {
      number(constants_, constant_order_, argument.constant);
    } else if (argument.kind == ArgumentKind::kList && graph.in_bounds(argument)) {
      if (depth >= kMaxListDepth || !number_arguments(graph, graph.list(argument), depth + 1)) return false;
    }
  }
  return true;
}

// Values and their storages are numbered where they are produced, so that numbers increase along the program.
bool Numbering::number_results(const Graph& graph, NodeId node, std::span<const Argument> results, int depth) {
  for (const Argument& result : results) {
    if (result.kind == ArgumentKind::kValue && result.ref.value.index < values_.size()) {
      number(values_, value_order_, result.ref.value);
      const StorageId storage = graph.value(result.ref.value).storage;
      if (storage.index < storages_.size() && !first_nodes_[storage.index].valid()) first_nodes_[storage.index] = node;
      number(storages_, storage_order_, storage);
    } else if (result.kind == ArgumentKind::kList && graph.in_bounds(result)) {
      if (depth >= kMaxListDepth || !number_results(graph, node, graph.list(result), depth + 1)) return false;
    }
  }
  return true;
}

Numbering Numbering::of(const Graph& graph) {
  Numbering result;
  result.nodes_.assign(graph.node_capacity(), kNone);
  result.values_.assign(graph.value_capacity(), kNone);
  result.storages_.assign(graph.storage_count(), kNone);
  result.constants_.assign(graph.constant_count(), kNone);
  result.name_copies_.assign(graph.target_count(), 1);
  result.first_nodes_.assign(graph.storage_count(), NodeId());
  result.node_order_.reserve(graph.node_count());
  result.value_order_.reserve(graph.value_capacity());

  std::vector<bool> target_seen(graph.target_count());
  for (uint32_t i = 0; i < kBuiltinCount; ++i) target_seen[i] = true;
  const auto see_target = [&](TargetId id) {
    if (id.index >= target_seen.size() || target_seen[id.index]) return;
    target_seen[id.index] = true;
    result.target_order_.push_back(id);
  };

  // Stops at a node that is reached twice: the list of an invalid graph may be a cycle.
  for (NodeId n = graph.first(); n.index < graph.node_capacity() && result.of(n) == kNone; n = graph.node(n).next) {
    number(result.nodes_, result.node_order_, n);
    if (!graph.in_bounds(graph.node(n))) continue;
    see_target(graph.node(n).target);
    result.number_arguments(graph, graph.arguments(n), 0);
    result.number_results(graph, n, graph.results(n), 0);
    for (StorageId storage : graph.frees(n)) number(result.storages_, result.storage_order_, storage);
  }
  for (uint32_t i = 0; i < graph.region_count(); ++i) {
    if (!graph.in_bounds(graph.region(RegionId(i)))) continue;
    see_target(graph.region(RegionId(i)).target);
    result.number_arguments(graph, graph.region_arguments(RegionId(i)), 0);
  }
  // A storage may be allocated by a node without being referred to by a value (yet). It is kept for the memory
  // timeline.
  for (uint32_t i = 0; i < graph.storage_count(); ++i) {
    if (result.of(graph.storage(StorageId(i)).born) != kNone) {
      number(result.storages_, result.storage_order_, StorageId(i));
    }
  }
  std::unordered_map<std::string_view, uint32_t> names;
  for (uint32_t i = 0; i < kBuiltinCount; ++i) names[graph.target(TargetId(i)).name()] = 1;
  for (TargetId id : result.target_order_) result.name_copies_[id.index] = ++names[graph.target(id).name()];
  return result;
}

}  // namespace shadowgraph
