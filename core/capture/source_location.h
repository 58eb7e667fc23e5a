// Finds the user's C++ source lines: collects backtraces during capture and symbolizes them at the end.
#pragma once

#include "shadowgraph/graph/graph.h"

namespace shadowgraph {

class CppBacktraces {
 public:
  // Collects the current backtrace; the returned text represents it until resolve().
  std::string note();
  // Returns "file:line" of a collected backtrace: the innermost frame, including inlined ones, outside libtorch,
  // shadowgraph and the standard library. Empty without debug information there.
  std::string line_of(const std::string& noted);
  // Replaces collected backtraces by lines in the sources of all nodes. Symbolizes all addresses together, since
  // reading debug information is slow.
  void resolve(Graph& graph);

 private:
  using Stack = std::vector<void*>;
  struct HashOfStack {
    size_t operator()(const Stack& stack) const;
  };
  void symbolize(const std::vector<const Stack*>& stacks);
  std::string user_line(const Stack& stack) const;

  std::unordered_map<Stack, size_t, HashOfStack> index_;
  std::vector<const Stack*> stacks_;                           // keys of index_
  std::unordered_map<void*, std::vector<std::string>> known_;  // "file:line", innermost inlined frame first
};

// Returns "file:line" of the operator being called by the TorchScript interpreter on this thread. Empty outside the
// interpreter or without debug information. A trace stores Python's call stack as text; a script stores its source.
std::string script_location();

// Selects the user's frame from those added, innermost first: the first outside PyTorch's own code, or else the
// innermost.
class UserFrame {
 public:
  void add(std::string_view file, std::string_view line);
  bool found() const { return !users_.empty(); }
  // "file:line", or empty.
  std::string text() && { return std::move(users_.empty() ? innermost_ : users_); }

 private:
  std::string users_, innermost_;
};

}  // namespace shadowgraph
