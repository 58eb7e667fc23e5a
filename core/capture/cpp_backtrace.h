// Finds where in the user's C++ a program is: notes call stacks while it runs, and turns them into lines when the
// record ends. Internal to core/capture.
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "shadowgraph/graph.h"

namespace shadowgraph {

class CppBacktraces {
 public:
  // Notes the calling stack; the returned text stands for it until resolve().
  std::string note();
  // Returns "file:line" of a noted stack. It is that of the innermost frame, inlined ones included, that is not in
  // libtorch, shadowgraph or the standard library. Empty if the program has no debug information there.
  std::string line_of(const std::string& noted);
  // Puts lines in place of what was noted, in the sources of all nodes. It asks for all addresses at once, since
  // reading a program's debug information takes long.
  void resolve(Graph& graph);

 private:
  using Stack = std::vector<void*>;
  struct HashOfStack {
    size_t operator()(const Stack& stack) const;
  };
  void symbolize(const std::vector<const Stack*>& stacks);
  std::string users_line(const Stack& stack) const;

  std::unordered_map<Stack, size_t, HashOfStack> index_;
  std::vector<const Stack*> stacks_;                           // keys of index_
  std::unordered_map<void*, std::vector<std::string>> known_;  // "file:line", innermost of the inlined ones first
};

}  // namespace shadowgraph
