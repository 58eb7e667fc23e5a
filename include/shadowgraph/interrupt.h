// Ctrl-C in command line programs.
#pragma once

#include "shadowgraph/export.h"

namespace SHADOWGRAPH_API shadowgraph {

// Makes SIGINT end this process at once: removes the temporary files of writes in progress (write_file), prints one
// line to stderr, and ends by the signal, so that a calling shell sees it. For programs that need no cleanup.
void exit_on_interrupt() noexcept;

}  // namespace shadowgraph
