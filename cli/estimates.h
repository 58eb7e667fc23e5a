// Inputs of a profile besides the graph: device and link specs, and measurements on this machine.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "cli/source.h"
#include "shadowgraph/draw/draw.h"
#include "shadowgraph/profile/communication.h"
#include "shadowgraph/profile/measure.h"
#include "shadowgraph/profile/profile.h"

namespace shadowgraph::cli {

struct EstimateRequest {
  std::string spec;                   // device name or spec file; empty: by the graph's device
  std::string interconnect;           // name or file of the links between devices; empty: typical for `spec`
  std::string mesh;                   // "dp=8,tp=4"; empty: none
  std::string allocator;              // as in PYTORCH_ALLOC_CONF
  std::optional<MemoryLimit> memory;  // of the device; if it names a device, times are estimated for it too
  bool measure = false;               // measure calls on the CPU that have no measurement yet
};

class Estimates {
 public:
  Estimates(const EstimateRequest& request, const Graph& graph);
  Estimates(const Estimates&) = delete;  // options() point into this object
  Estimates& operator=(const Estimates&) = delete;
  const ProfileOptions& options() const { return options_; }

 private:
  void measure(const Graph& graph);

  ProfileOptions options_;
  MeasuredCalls measured_;
  Machine machine_;
};

// A graph and its profile. Not movable: the profile refers to the other members.
struct Profiled {
  LoadedGraph loaded;
  std::unique_ptr<Estimates> estimates;
  Profile costs;
  std::string title;  // name of the model or of the file it was read from
};

// Loads, verifies and profiles a source.
std::unique_ptr<Profiled> load_and_profile(const CaptureRequest& capture, const EstimateRequest& request);
// Writes the HTML page and prints its size to stderr.
void write_page(const std::string& path, const Profiled& profiled, const HtmlOptions& options);

}  // namespace shadowgraph::cli
