// Finds where in the user's C++ a program is: notes call stacks while it runs, and turns them into lines when the
// record ends. Internal to core/capture.
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "shadowgraph/graph/graph.h"

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

// Finds where in the user's Python a TorchScript program is: "file:line" of the operator being called. Internal to
// core/.

// Asks the TorchScript interpreter that runs on this thread. Empty outside it, or where the file carries no debug
// information. A trace has Python's call stack as text in place of its source; a script has the source itself.
std::string script_location();

// Is told the frames on the way to an operator, from the innermost outwards. It gives the first that is not PyTorch's
// own code, for that is the line a user can change, or else the innermost.
class UsersFrame {
 public:
  void add(std::string_view file, std::string_view line);
  bool found() const { return !users_.empty(); }
  // "file:line", or empty.
  std::string text() && { return std::move(users_.empty() ? innermost_ : users_); }

 private:
  std::string users_;
  std::string innermost_;
};

}  // namespace shadowgraph
