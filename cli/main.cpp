#include "cli/tool.h"

int main(int argc, char** argv) { return shadowgraph::cli::run_tool(argc, argv); }
