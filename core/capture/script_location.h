// Where in the user's Python a TorchScript program is: "file:line" of the operator being called. Internal to
// core/capture.
#pragma once

#include <string>

namespace shadowgraph {

// Of the TorchScript interpreter running on this thread; empty outside it or where the file carries no debug
// information. Of the frames on the way to the operator the innermost that is not PyTorch's own code is given: that is
// the line a user can change. A trace has Python's call stack as text in place of its source, a script has the source
// itself.
std::string script_location();

}  // namespace shadowgraph
