// Finds where in the user's Python a TorchScript program is: "file:line" of the operator being called. Internal to
// core/.
#pragma once

#include <string>
#include <string_view>

namespace shadowgraph {

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
