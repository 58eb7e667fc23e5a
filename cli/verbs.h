// The verbs of the tool, one source file each. tool.cpp has the table of verbs and their summaries.
#pragma once

#include <CLI/CLI.hpp>

#include <functional>
#include <memory>

namespace shadowgraph::cli {

// Runs a verb after its command line has been parsed, and returns the exit code. Prints to stdout; writes each file
// completely or not at all. Throws CLI::ParseError for wrong usage; tool.cpp maps other exceptions to exit codes.
using Work = std::function<int()>;

// Combines two functions into a verb: `add` declares options that fill a request, and `run` executes the request. `run`
// may also take the command, to see which options were given.
template <class Request>
Work work_of(CLI::App& command, void (*add)(CLI::App&, Request&), int (*run)(const CLI::App&, const Request&)) {
  const auto request = std::make_shared<Request>();
  add(command, *request);
  return [request, &command, run] { return run(command, *request); };
}
template <class Request>
Work work_of(CLI::App& command, void (*add)(CLI::App&, Request&), int (*run)(const Request&)) {
  const auto request = std::make_shared<Request>();
  add(command, *request);
  return [request, run] { return run(*request); };
}

// Each function declares the options and examples of its verb.
Work declare_profile(CLI::App& command);
Work declare_fit(CLI::App& command);
Work declare_checkpoint(CLI::App& command);
Work declare_shard(CLI::App& command);
Work declare_pipeline(CLI::App& command);
Work declare_plan(CLI::App& command);
Work declare_compare(CLI::App& command);
Work declare_check(CLI::App& command);
Work declare_draw(CLI::App& command);
Work declare_capture(CLI::App& command);
Work declare_opt(CLI::App& command);
Work declare_emit(CLI::App& command);
Work declare_list(CLI::App& command);
Work declare_operator(CLI::App& command);
Work declare_calibrate(CLI::App& command);
Work declare_completion(CLI::App& command);

}  // namespace shadowgraph::cli
