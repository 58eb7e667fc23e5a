// The verbs of the tool, a file each. tool.cpp has the table of them and what each says of itself.
#pragma once

#include <CLI/CLI.hpp>

#include <functional>
#include <memory>

namespace shadowgraph::cli {

// What a verb does once its command line is read. It prints to stdout, writes files whole or not at all, and gives back
// the exit code. It throws CLI::ParseError for wrong usage that shows late, anything else as tool.cpp sorts it.
using Work = std::function<int()>;

// Makes the work of a verb of two functions. `add` declares options that fill a request, and `run` answers the request
// once the command line is read. Some ask the command, too, which options were given.
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

// Each declares the options and examples of its verb.
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

}  // namespace shadowgraph::cli
