#include "cli/tool.h"
#include "shadowgraph/graph/text.h"

int main(int argc, char** argv) {
  shadowgraph::exit_on_interrupt();
  return shadowgraph::cli::run_tool(argc, argv);
}
