// The options that say what a SOURCE is, which step of it is captured, and on which device.
#pragma once

#include <CLI/CLI.hpp>

#include <string>

#include "cli/estimates.h"
#include "cli/source.h"

namespace shadowgraph::cli {

// Headings of --help, the same for all verbs.
constexpr const char* kModel = "The model";
constexpr const char* kStep = "The step";
constexpr const char* kDevice = "The device";
constexpr const char* kOutput = "The output";

// What is added next stands under that heading.
void begin_group(CLI::App& command, const char* heading);

constexpr const char* kSourceHelp = "Built-in model, .pt, .pt2 or .sg file, some.module:factory or hf:CONFIG.json";
CLI::Option* add_source(CLI::App& command, CaptureRequest& request, const char* description = kSourceHelp);

// All that a capture takes. Sizes: --batch and --seq, for whom `fit` has its own.
void add_capture_options(CLI::App& command, CaptureRequest& request);
void add_sizes(CLI::App& command, CaptureRequest& request);
void add_capture_options_but_sizes(CLI::App& command, CaptureRequest& request);
// Some of these, for `plan`, which has its own attention.
void add_capture_options_named(CLI::App& command, CaptureRequest& request, std::initializer_list<const char*> names);

// Figures that times and reserved bytes are estimated from.
void add_estimate_options(CLI::App& command, EstimateRequest& request);
CLI::Option* add_spec_option(CLI::App& command, std::string& spec);
CLI::Option* add_interconnect_option(CLI::App& command, std::string& interconnect);
CLI::Option* add_allocator_option(CLI::App& command, std::string& allocator);

}  // namespace shadowgraph::cli
