// Where in the user's C++ a program is: call stacks noted while it runs, made lines when the record ends. Internal to
// core/capture.
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "shadowgraph/graph.h"

namespace shadowgraph {

class CppBacktraces {
 public:
  // Notes the calling stack; the text stands for it until resolve().
  std::string note();
  // "file:line" of a noted stack: of the innermost frame that is in neither libtorch nor shadowgraph nor the standard
  // library, inlined ones included. Empty if the program has no debug information there.
  std::string line_of(const std::string& noted);
  // Puts lines in place of what was noted, in the sources of all nodes. All addresses are asked for at once, since
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
