// Reads the text form: its head and references (parser.cpp), and the lines of nodes (text_parser_nodes.cpp).
// docs/graph.md#the-text-form has the grammar; a function here is a rule there.
//
// The parser builds the graph as it goes, line by line, without a tree in between. A text of N bytes takes time and
// memory linear in N, whatever it says: files may come from anywhere. So lists have a bounded depth, phases a bounded
// number, and ids must come in order, which spares tables of names.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "ir/text/argument_reader.h"
#include "ir/text/cursor.h"
#include "shadowgraph/graph.h"

namespace shadowgraph {

// Lets names be looked up as views of the text, without a string for each node line.
struct NameHash {
  using is_transparent = void;
  size_t operator()(std::string_view name) const { return std::hash<std::string_view>()(name); }
};

class TextParser {
 public:
  TextParser(std::string_view text, std::string_view name) : cursor_(text, name) {
    // Built-ins need no line: every reader has them.
    for (uint32_t i = 0; i < kBuiltinCount; ++i) name_target(TargetId(i), graph_.target(TargetId(i)).name());
  }
  Graph run();

 private:
  using Place = Cursor::Place;

  void header();
  void meta_line();
  void target_line(TargetKind kind);
  void storage_line();
  void region_line();
  void constant_line();
  void guard_line();
  void node_line();

  // Each takes one kind of reference, and fails at its place if it names nothing that is there.
  void name_target(TargetId id, std::string name);
  TargetId take_target();
  // "%4"; with `forward`, also "%?" (no longer alive) and values that come later, which are checked at the end.
  ValueId take_value(bool forward);
  StorageId take_storage();
  NodeId take_node();

  // The left side of a line is read before its target, the types after it. So names are kept as a shape that the types
  // must follow.
  void take_result_names(int depth);
  void take_results(NodeId node);
  Argument take_result(NodeId node, size_t& shape, int depth);
  ValueId take_type(NodeId node);
  void take_sizes(char open, char close, std::vector<int64_t>& sizes);
  void take_attributes(NodeId node);
  void take_phase(NodeId node);
  void take_saved(NodeId node);
  void take_writes(NodeId node);
  void take_frees(NodeId node);
  void take_notes(NodeId node);

  // What refers to later lines is checked when all lines are read: values that are saved or guarded, forward nodes,
  // births.
  void finish();
  void check_writes();

  Cursor cursor_;
  Graph graph_;
  bool of_another_libtorch_ = false;
  ArgumentReader arguments_{cursor_, graph_, [this](bool forward) { return take_value(forward); }};
  std::unordered_map<std::string, TargetId, NameHash, std::equal_to<>> target_names_;

  // Scratch, kept to spare allocations.
  std::vector<Argument> stack_;  // elements of the lists of results being read, innermost last
  std::vector<int64_t> sizes_, strides_;
  // A line names its results before their types, %1, [%2, %3] = ... : f32[2], [f32[3], f32[4]]. The names' brackets are
  // kept until the types are read and must nest alike.
  struct Shape {
    enum Kind : uint8_t { kNone, kValue, kOpen, kClose } kind;
  };
  std::vector<Shape> shapes_;  // of the names left of '='
  std::vector<Argument> results_;
  uint32_t named_values_ = 0;  // values whose name was read; graph_.value_capacity() have their type too

  // What can only be checked when all is read.
  struct Forward {
    uint32_t index;
    Place place;
  };
  std::vector<Forward> forward_values_, forward_nodes_;
  struct Born {
    bool stated = false;
    NodeId node;
  };
  std::vector<Born> born_;  // by storage
  struct Written {
    NodeId node;
    StorageId storage;
    uint32_t version;
    Place place;
  };
  std::vector<Written> writes_;
};

}  // namespace shadowgraph
