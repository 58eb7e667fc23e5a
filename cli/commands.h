// What the tool does, one function a subcommand. They print to stdout, write files whole or not at all, and throw.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/size_sweep.h"
#include "cli/source.h"
#include "shadowgraph/draw.h"

namespace shadowgraph::cli {

struct ProfileRequest {
  CaptureRequest capture;
  std::string directory;         // write graph.sg, profile.json, graph.dot, graph.svg here
  bool json = false;             // one JSON object on stdout instead of the tables
  std::string group = "module";  // module | composite | operator
  int depth = 0;
  int rows = 40;
  std::optional<SizeRange> batches;      // --batch 1..512: a table over these instead
  std::optional<int64_t> memory;         // bytes; with `batches`
  std::string by;                        // which bytes `memory` is of: live, reserved or device; empty: live
  bool measure = false;                  // calls on the CPU that are not known yet
  std::string spec;                      // name of a device or file with its figures; empty: by the graph's device
  std::string interconnect;              // name or file of links between processes; empty: what is usual around `spec`
  std::string mesh;                      // "dp=8,tp=4"; empty: none
  std::string allocator;                 // as PYTORCH_ALLOC_CONF takes it
  std::optional<int64_t> device_memory;  // bytes
  bool run = false;                      // also the first three steps of a training run
};

struct CalibrateRequest {
  std::string output;  // empty: where `profile` looks for it
};

struct ReportRequest {
  ProfileRequest profile;
  std::string compare;  // a graph file, profile.json, or another model captured the same way; empty: none
  std::string title;    // empty: the model's name
  std::string color;    // a file of values by node; empty: none
  std::string output;
};

struct DotRequest {
  std::string file;
  std::string output;  // empty: stdout
  bool svg = false;
  int depth = -1;       // module levels to open; -1: as many as stay readable
  bool unfold = false;  // draw repeated layers one by one
  bool all_phases = false;
  std::vector<std::string> phases;  // which to draw; empty: forward alone if the graph is large
  bool views = false;               // draw views too
  std::string around;               // what nodes_named() takes; empty: the whole graph
  int radius = 2;
  std::vector<std::string> path;  // two of those; empty: none
  std::string color = "operator";
  std::string before;      // a graph file to mark the differences from; empty: none
  ProfileRequest profile;  // for colours: the device's figures
  size_t rows = ViewOptions().most_rows;
  std::optional<size_t> boxes;  // at most; empty: what DOT and SVG each take
};

struct OptimizeRequest {
  std::string file;
  std::string passes;  // "canonicalize,cse,dce{random=drop}"
  std::string output;  // empty: the graph to stdout, the report to stderr
  bool json = false;   // the report as JSON
  bool check = true;   // verify after each pass, and compare after those that say "unchanged"
};

struct MaterializeRequest {
  std::string model;
  std::vector<std::string> only;  // globs over names; empty: all
  std::string output;
  std::string dtype = "f32";  // f32 | bf16
  int64_t seed = 0;
};

struct CodegenRequest {
  std::string file;
  std::string directory;
  std::string language = "cpp";        // cpp | python
  std::string name;                    // empty: that of the file
  std::vector<std::string> only;       // "%12", "gradient.*"; empty: the whole graph
  std::string device;                  // empty: those of the graph
  std::vector<std::string> functions;  // "my::op=callee@header"
  bool autograd = false;
};

void list_models(bool json);
void capture_to_file(const CaptureRequest& request, const std::string& output, bool json);
void profile(const ProfileRequest& request);
// A page of one file: the graph, the memory, the tables.
void report(const ReportRequest& request);
// Profiles of two graphs, or two files of profiles: what grew, and where.
void compare(const std::string& before, const std::string& after, size_t limit, bool json);
void calibrate(const CalibrateRequest& request);
void list_devices(bool json);
// A state dict, for Python's torch.load.
void materialize(const MaterializeRequest& request);
void print_graph(const std::string& file, const std::string& preset, bool json);
void verify_graph(const std::string& file);
// Prints what differs, at most `limit` nodes (0: all). Whether anything does.
bool diff_graphs(const std::string& before, const std::string& after, size_t limit);
void draw(const DotRequest& request);
void list_passes(bool json);
void optimize(const OptimizeRequest& request);
void generate_code(const CodegenRequest& request);

}  // namespace shadowgraph::cli
