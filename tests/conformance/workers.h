// Runs a function for many indices in child processes, so that a crash affects one index and is attributed to it.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

namespace shadowgraph::conformance {

// Runs in a child for one index and returns its result as text. `mark` stores a character that is reported if the child
// dies later.
using Work = std::function<std::string(size_t index, const std::function<void(char)>& mark)>;
// Runs in the parent: receives the text, or that the child died (by a signal, or because one index took over
// `seconds`).
using Done = std::function<void(size_t index, bool died, char mark, const std::string& text)>;

// Runs all `indices` in `processes` children at a time. The calling process must have no other threads.
void run_in_children(const std::vector<size_t>& indices, int processes, unsigned seconds, const Work& work,
                     const Done& done);

}  // namespace shadowgraph::conformance
