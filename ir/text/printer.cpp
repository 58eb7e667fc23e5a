// Prints graphs as text, in the three presets: canonical, short and fingerprint.
//
//     n4: %3 = aten::relu(self=%2) : f32[8,64] @s5 | r2 grad_mode      canonical: parse() gives the same graph back
//     %3 = relu(%2) : f32[8,64]                                        short: for people
//     aten::relu(self=^1) : f32[8,64] cpu | grad_mode                  fingerprint: equal for blocks that repeat
//
// Linear in the graph. A file is written in pieces, so that memory does not grow with it.
#include <ostream>

#include "ir/operators/operator_name.h"
#include "ir/text/text_writer.h"
#include "ir/text/words.h"
#include "shadowgraph/analysis/effects.h"
#include "shadowgraph/text.h"
#include "shadowgraph/verify.h"

namespace shadowgraph {

// Numbers the values that the slice makes, from 0, so that equal slices of one graph give equal fingerprints wherever
// they stand.
void TextWriter::set_slice(std::span<const NodeId> nodes) {
  sliced_ = true;
  slice_numbers_.assign(graph_.value_capacity(), Numbering::kNone);
  uint32_t next = 0;
  for (NodeId n : nodes) {
    graph_.for_each_output(n, [&](ValueId v) {
      // A broken graph may name a value that is not there; messages must print it all the same.
      if (v.index < slice_numbers_.size()) slice_numbers_[v.index] = next++;
    });
  }
}

// Broken graphs are printed, too, in messages of the verifier: what has no number is "?".
void TextWriter::number(char letter, uint32_t n) {
  put(letter);
  if (n == Numbering::kNone) {
    put('?');
  } else {
    append_int(out_, n);
  }
}

// Writes a reference to a value. A fingerprint names values by distance, since absolute numbers differ from block to
// block:
//
//     %7 = mul(%5, %6), %12 = mul(%10, %11)        both are mul(^2, ^1)
void TextWriter::value_ref(ValueId id) {
  if (preset_ != PrintPreset::kFingerprint) return number('%', numbering_.of(id));
  const uint32_t n =
      sliced_ ? (id.index < slice_numbers_.size() ? slice_numbers_[id.index] : Numbering::kNone) : numbering_.of(id);
  const bool known = id.index < graph_.value_capacity();
  const NodeId producer = known ? graph_.value(id).producer : NodeId();
  const bool placeholder = producer.index < graph_.node_capacity() &&
                           graph_.node(producer).target.index <= target_of(Builtin::kConstant).index;
  // A value from outside says what it is by its type only: layers have parameters of their own.
  if (n == Numbering::kNone || placeholder) {
    put('<');
    if (placeholder) {
      put(graph_.target(producer).name());
      put(' ');
    }
    known ? type(id) : put("?");
    put('>');
  } else {
    // Both numbers count values, so a repeated block refers back by the same distances.
    put('^');
    append_int(out_, int64_t{next_value_} - int64_t{n});
  }
}

// Two schemas may have one name; the copies are numbered as the parser numbers them.
void TextWriter::target_name(TargetId id) {
  if (id.index >= graph_.target_count()) return put("target?");
  const std::string_view name = graph_.target(id).name();
  // Nearly every operator is in aten, so people do not need to read it.
  put(preset_ == PrintPreset::kShort && namespace_of(name) == "aten" ? without_namespace(name) : name);
  if (const uint32_t copy = numbering_.name_copy(id); copy > 1) number('#', copy);
}

// ---- Nodes ----------------------------------------------------------------------------------------------------------

// One line a node, whatever it holds: diffs then show nodes.
void TextWriter::node_line(NodeId id) {
  const Node& node = graph_.node(id);
  const auto results = graph_.results(id);
  if (preset_ == PrintPreset::kCanonical) {
    number('n', numbering_.of(id));
    put(": ");
  }
  if (!results.empty() && preset_ != PrintPreset::kFingerprint) {
    result_names(results, 0);
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
    result_types(results, 0);
  }
  if (preset_ != PrintPreset::kShort) attributes(id);
  // Results count after the line, so that `^1` is the value made just before.
  if (preset_ == PrintPreset::kFingerprint) {
    graph_.for_each_output(id, [&](ValueId) { ++next_value_; });
  }
}

// Attributes come in a fixed order: region, phase, forward, modes, saved, writes, frees, notes, source.
void TextWriter::attributes(NodeId id) {
  const Node& node = graph_.node(id);
  const bool canonical = preset_ == PrintPreset::kCanonical;
  any_attribute_ = false;
  if (canonical && node.region != Graph::kRootRegion) {
    attribute();
    number('r', node.region.index);
  }
  if (node.phase != Graph::kForward) phase(node.phase);
  if (canonical && numbering_.of(node.forward) != Numbering::kNone) {
    attribute();
    put("of ");
    number('n', numbering_.of(node.forward));
  }
  modes(node.flags);
  if (!canonical) return;
  if (node.saved.size != 0) saved(id);
  if (effects_ != nullptr) writes(id);
  if (node.frees.size != 0) frees(id);
  if (graph_.has_notes(id)) notes(id);
  if (const std::string_view source = graph_.text_or_empty(node.source); !source.empty()) {
    attribute();
    append_quoted(out_, source);
  }
}

// The built-in phases are words; one that a user named is quoted, so that it cannot pass for an attribute.
void TextWriter::phase(PhaseId id) {
  attribute();
  if (id.index >= graph_.phase_count()) {
    put("phase ?");
  } else if (id.index > Graph::kInit.index) {
    put("phase ");
    append_quoted(out_, graph_.phase_name(id));
  } else {
    put(graph_.phase_name(id));
  }
}

void TextWriter::modes(const NodeFlags& on) {
  const std::pair<bool, std::string_view> modes[] = {{on.grad_mode, "grad_mode"},
                                                     {on.inference_mode, "inference_mode"},
                                                     {on.autocast_cpu, "autocast_cpu"},
                                                     {on.autocast_cuda, "autocast_cuda"}};
  for (const auto& [is_on, word] : modes) {
    if (!is_on) continue;
    attribute();
    put(word);
  }
}

// Writes are derived. They are printed since they answer what readers of a graph ask first, and the parser checks them.
void TextWriter::writes(NodeId id) {
  bool open = false;
  for (const StorageWrite& write : effects_->writes(id)) {
    // Generators and collectives are pseudo storages of the analysis, so the text has no number for them.
    if (effects_->is_generator(write.storage)) continue;
    if (!open) attribute();
    put(open ? ", " : "writes(");
    open = true;
    number('s', numbering_.of(write.storage));
    put('@');
    append_int(out_, write.after);
  }
  if (open) put(')');
}

void TextWriter::frees(NodeId id) {
  attribute();
  put("free(");
  bool first = true;
  for (StorageId storage : graph_.frees(id)) {
    if (!first) put(", ");
    first = false;
    number('s', numbering_.of(storage));
  }
  put(')');
}

void TextWriter::notes(NodeId id) {
  attribute();
  put("note(");
  bool first = true;
  graph_.for_each_note(id, [&](std::string_view key, std::string_view value) {
    if (!first) put(", ");
    first = false;
    append_quoted(out_, key);
    put('=');
    append_quoted(out_, value);
  });
  put(')');
}

// Names what is saved by its role. The value follows only where the role does not imply it, which parse() works out in
// the same way.
void TextWriter::saved(NodeId id) {
  const auto arguments = graph_.arguments(id);
  const TargetId target = graph_.node(id).target;
  static const std::vector<Formal> kNoFormals;
  const auto& formals = target.index < graph_.target_count() ? graph_.target(target).signature().arguments : kNoFormals;
  attribute();
  put("saved(");
  bool first = true;
  for (const SavedTensor& saved : graph_.saved(id)) {
    if (!first) put(", ");
    first = false;
    bool implied = false;  // the value is the one that the name stands for
    if (saved.role == SavedRole::kArgument) {
      // "internal" is a role, so an argument of this name goes by its number.
      if (saved.index < formals.size() && formals[saved.index].name != "internal") {
        put(formals[saved.index].name);
      } else {
        put("argument[");
        append_int(out_, saved.index);
        put(']');
      }
      implied = saved.index < arguments.size() && arguments[saved.index].kind == ArgumentKind::kValue &&
                arguments[saved.index].ref.value == saved.value;
    } else if (saved.role == SavedRole::kResult) {
      put("result[");
      append_int(out_, saved.index);
      put(']');
      uint32_t flat = 0;
      graph_.for_each_output(id, [&](ValueId v) { implied = implied || (flat++ == saved.index && v == saved.value); });
    } else {
      put("internal");
    }
    if (!implied) {
      put('=');
      number('%', numbering_.of(saved.value));
    }
  }
  put(')');
}

namespace {

// Text goes out in pieces of this size, so that a graph of a million nodes needs no string of 150 MB.
constexpr size_t kFlushBytes = size_t{1} << 18;

// Works for strings and streams: `flush` takes the text whenever it likes.
template <class Flush>
void write_graph(const Graph& graph, PrintPreset preset, Flush&& flush) {
  const Numbering numbering = Numbering::of(graph);
  TextWriter writer(graph, numbering, preset);
  std::optional<Effects> effects;
  // Effects cost a walk over the graph, so only the preset that prints writes pays it.
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
    // Few large writes: one for each line would cost more than making the lines.
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

// One line for a message. Numbering costs a walk over the graph; callers with many messages keep one.
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

// Needs no numbering: a type in short form cites nothing.
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

}  // namespace shadowgraph
