// Makes a graph in which no operator writes: functionalize.cpp walks over the nodes and writes back at the end,
// functionalize_writes.cpp has what writing nodes become. Internal to the pass `functionalize`.
//
// The walk goes once in program order. For each storage, StorageImages has a value of the new graph that holds what the
// storage holds at this point of the old one. A read takes its operand from the image, and a write makes a new one.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "ir/operators/operator_forms.h"
#include "passes/functional/storage_images.h"
#include "passes/rewrite/graph_rebuild.h"
#include "passes/rewrite/node_emitter.h"
#include "shadowgraph/passes/functional.h"
#include "shadowgraph/text.h"

namespace shadowgraph {

class Functionalizer {
 public:
  explicit Functionalizer(const Graph& graph)
      : read_(graph),
        emitter_(graph, made_),
        images_(graph, made_, emitter_),
        carried_(graph, made_),
        writes_(graph.storage_count()) {}

  // The graph that is read stays as it is until the new one is complete, so a throw leaves it alone.
  FunctionalizeResult run();
  Graph take_graph() { return std::move(made_); }

 private:
  // What a node writes: the argument and, after it, the tensor that it leaves there.
  struct Written {
    uint16_t position = 0;
    ValueId before;
    ValueId after;  // geometry of what is written: the aliasing result if there is one
  };

  // One node of the old graph, by kind: a placeholder, one that only computes (copy), one that changes geometry alone
  // (metadata), one that writes (write).
  void node(NodeId n);
  void placeholder(NodeId n);
  void copy(NodeId n);
  bool metadata(NodeId n, std::span<const Written> written);
  bool copies_lazily(NodeId n) const;
  // Whether what it writes is longer than the storage was, as resize_ and `out=` may make it.
  bool outgrows(const Written& w) const {
    return view_of(read_, w.after).bytes().second > images_.bytes(read_.value(w.before).storage);
  }
  void write(NodeId n);
  std::vector<Written> written_by(NodeId n);
  // Ways to write, tried in this order. The content is known without the operator (copy_, fill_); a functional
  // overload; the very operator on copies of the storages (call_functionally).
  bool write_contents(NodeId n, const Written& written);
  bool write_functionally(NodeId n, const FunctionalForm& form, std::span<const Written> written);
  void call_functionally(NodeId n, std::span<const Written> written);
  bool may_reorder(NodeId n, const FunctionalForm& form, std::span<const Written> written) const;
  void commit(const Written& written, ValueId content);
  ValueId converted(ValueId content, c10::ScalarType dtype, c10::Device device, const Argument& non_blocking);
  // The end: what the program was given and has written is written back there, and outputs follow.
  void epilogue();
  void write_back(NodeId placeholder);
  ValueId longer(ValueId placeholder, int64_t before, int64_t bytes);
  void ends();

  // How nodes of the old graph are carried over: operands as they are now, results, saved tensors.
  std::vector<Argument> current_arguments(NodeId n);
  void define_results(NodeId n, NodeId made, std::span<const uint16_t> which);
  Argument result_like(const Argument& result, NodeId made);
  void keep_saved(NodeId n, NodeId made);
  void prepare_saved(NodeId n);
  [[noreturn]] void fail(NodeId n, const std::string& what) const {
    throw FunctionalizeError(what + ": " + to_text(read_, n), n);
  }

  // What was written of each storage, in bytes.
  struct Extent {
    int64_t begin = 0;
    int64_t end = 0;
    ValueId only;  // the one geometry written, if it was one
    bool several = false;
    NodeId last;
  };

  const Graph& read_;
  Graph made_;
  NodeEmitter emitter_;
  StorageImages images_;
  GraphRebuild carried_;
  std::vector<Extent> writes_;
  std::vector<NodeId> placeholders_;
  std::vector<NodeId> ends_;
  FunctionalizeResult result_;
};

}  // namespace shadowgraph
