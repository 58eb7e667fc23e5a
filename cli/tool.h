// The tool as a function, and what it asks the Python of its process. The program shadowgraph has none;
// shadowgraph._shadowgraph has (python/src/tool.cpp).
#pragma once

#include <nlohmann/json.hpp>

#include <functional>
#include <string>
#include <utility>

#include "shadowgraph/graph/graph.h"
#include "shadowgraph/plan/serving.h"

namespace shadowgraph::cli {

// Requests are what python/shadowgraph/_tool.py reads. Each throws Error for what Python raises.
struct Python {
  std::function<std::pair<Graph, double>(const nlohmann::json& request)> capture;  // and seconds
  std::function<Serving(const nlohmann::json& request)> serve;
  std::function<std::string(const std::string& what, const nlohmann::json& request)> ask;
};
Python& python();                                      // of this process; empty functions: none
const Python& needed_python(const std::string& what);  // throws Error, which says what needs it

// The exit code. Prints to stdout and stderr of C.
int run_tool(int argc, char** argv);

}  // namespace shadowgraph::cli
