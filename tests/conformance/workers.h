// Runs something for many indices in child processes, so that a crash costs one index and names it.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

namespace shadowgraph::conformance {

// In a child, for one index: what it found, as text. `mark` leaves a character that is reported if the child dies
// later.
using Work = std::function<std::string(size_t index, const std::function<void(char)>& mark)>;
// In the parent: the text, or that the child died (of a signal, or because one index took more than `seconds`).
using Done = std::function<void(size_t index, bool died, char mark, const std::string& text)>;

// All of `indices`, in `processes` children at a time. The calling process must have no other threads.
void run_in_children(const std::vector<size_t>& indices, int processes, unsigned seconds, const Work& work,
                     const Done& done);

}  // namespace shadowgraph::conformance
