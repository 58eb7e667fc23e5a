// The tool as a function, and its callbacks into Python. They are set in the Python extension (python/src/tool.cpp) and
// empty in the shadowgraph executable.
#pragma once

#include <nlohmann/json.hpp>

#include <functional>
#include <string>
#include <utility>

#include "shadowgraph/graph/graph.h"
#include "shadowgraph/plan/serving.h"

namespace shadowgraph::cli {

// python/shadowgraph/_tool.py documents the requests. Each function converts Python exceptions to Error.
struct Python {
  std::function<std::pair<Graph, double>(const nlohmann::json& request)> capture;  // and seconds
  std::function<Serving(const nlohmann::json& request)> serve;
  std::function<std::string(const std::string& what, const nlohmann::json& request)> ask;
};
Python& python();  // process-wide; its functions are empty without Python
// Throws Error if Python is unavailable; `what` begins the message and names what needs it.
const Python& needed_python(const std::string& what);

// Returns the exit code. Prints to C stdout and stderr.
int run_tool(int argc, char** argv);

}  // namespace shadowgraph::cli
