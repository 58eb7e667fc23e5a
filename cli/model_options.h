// Options of the subcommands that capture a model: what it is, how it runs, what is asked of it.
#pragma once

#include <CLI/CLI.hpp>

#include <string>

#include "cli/commands.h"
#include "cli/fit.h"
#include "cli/what_if.h"

namespace shadowgraph::cli {

void add_mode_option(CLI::App& command, std::string& mode);
// What add_mode_option() took, into the request.
void set_mode(CaptureRequest& request, const std::string& mode);
// `profile`: of `profile` alone, ranges of batches and their memory too; else nullptr.
void add_capture_options(CLI::App& command, CaptureRequest& request, std::string& mode, ProfileRequest* profile);
void add_profile_options(CLI::App& command, ProfileRequest& request, std::string& mode);
void add_report_options(CLI::App& command, ReportRequest& request, std::string& mode);
void add_fit_options(CLI::App& command, FitRequest& request, std::string& mode);
void add_what_if_options(CLI::App& command, WhatIfRequest& request);

}  // namespace shadowgraph::cli
