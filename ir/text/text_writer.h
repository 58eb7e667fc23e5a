// What the presets of the text share: a writer of lines (printer.cpp), of the head above them (text_writer_head.cpp),
// and of arguments, results and types (text_writer_values.cpp).
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shadowgraph/analysis/effects.h"
#include "shadowgraph/graph/signature.h"
#include "shadowgraph/text.h"

namespace shadowgraph {

// Writes the presets of the text. Canonical text must come back byte for byte. So whatever parse() derives is left out
// here by the same rule: defaults, contiguous strides, births at the first use.
class TextWriter {
 public:
  TextWriter(const Graph& graph, const Numbering& numbering, PrintPreset preset)
      : graph_(graph), numbering_(numbering), preset_(preset) {}

  std::string& text() { return out_; }
  void set_effects(const Effects* effects) { effects_ = effects; }
  // For kFingerprint: values that are made by none of these are printed by type.
  void set_slice(std::span<const NodeId> nodes);
  void head();
  void node_line(NodeId id);
  void type(ValueId id);

 private:
  void put(std::string_view text) { out_ += text; }
  void put(char c) { out_ += c; }
  void number(char letter, uint32_t n);
  void value_ref(ValueId id);
  void target_name(TargetId id);
  void storage_line(uint32_t number, StorageId id);
  void region_line(RegionId id);
  void constant_line(uint32_t number, ConstantId id);
  void guard_line(const Guard& guard);
  void arguments(TargetId target, std::span<const Argument> arguments);
  void argument(const Argument& argument, TypeClass type, bool int_list, TypeClass element, int depth);
  void elements(std::span<const Argument> list, TypeClass element, int depth);
  void ints(std::span<const int64_t> ints, bool cut = false, std::string_view separator = ",");
  void result_names(std::span<const Argument> results, int depth);
  void result_types(std::span<const Argument> results, int depth);
  // Attributes of a node, each written only if it is there; attribute() puts what separates them.
  void attributes(NodeId id);
  void phase(PhaseId id);
  void modes(const NodeFlags& on);
  void saved(NodeId id);
  void writes(NodeId id);
  void frees(NodeId id);
  void notes(NodeId id);
  // The separator before the next attribute.
  void attribute() {
    put(any_attribute_ ? " " : " | ");
    any_attribute_ = true;
  }

  const Graph& graph_;
  const Numbering& numbering_;
  const PrintPreset preset_;
  const Effects* effects_ = nullptr;
  std::string out_;
  bool any_attribute_ = false;  // on this line
  bool sliced_ = false;
  std::vector<uint32_t> slice_numbers_;  // by value index: its number among the slice's values
  uint32_t next_value_ = 0;              // kFingerprint: how many values the lines so far made
};

}  // namespace shadowgraph
