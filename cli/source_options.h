// Options shared by all verbs: the SOURCE, the step to capture and the device.
#pragma once

#include <CLI/CLI.hpp>

#include <string>

#include "cli/estimates.h"
#include "cli/source.h"

namespace shadowgraph::cli {

// Headings of --help.
constexpr const char* kModel = "Model";
constexpr const char* kStep = "Step";
constexpr const char* kDevice = "Device";
constexpr const char* kOutput = "Output";

// Adds the options declared next to this group of --help.
void begin_group(CLI::App& command, const char* heading);

constexpr const char* kSourceHelp = "Built-in model, .pt, .pt2 or .sg file, some.module:factory or hf:CONFIG.json";
CLI::Option* add_source(CLI::App& command, CaptureRequest& request, const char* description = kSourceHelp);
// The same for a command with several sources; `add_untrusted` adds the option that all of them obey.
void add_untrusted(CLI::App& command, CaptureRequest& request);
CLI::Option* add_source(CLI::App& command, const char* name, std::string& source, const CaptureRequest& request,
                        const char* description);

// Adds all options of a capture. Sizes are --batch and --seq; `fit` defines its own.
void add_capture_options(CLI::App& command, CaptureRequest& request);
void add_sizes(CLI::App& command, CaptureRequest& request);
void add_capture_options_but_sizes(CLI::App& command, CaptureRequest& request);
// Adds only the named options, for `plan`, which defines its own --attention.
void add_capture_options_named(CLI::App& command, CaptureRequest& request, std::initializer_list<const char*> names);

// Adds options for estimates of time and reserved memory.
void add_estimate_options(CLI::App& command, EstimateRequest& request);
CLI::Option* add_spec_option(CLI::App& command, std::string& spec);
CLI::Option* add_interconnect_option(CLI::App& command, std::string& interconnect);
CLI::Option* add_allocator_option(CLI::App& command, std::string& allocator);

}  // namespace shadowgraph::cli
