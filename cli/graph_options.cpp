#include "cli/graph_options.h"

#include "cli/option_checks.h"
#include "shadowgraph/text.h"

namespace shadowgraph::cli {

void add_dot_options(CLI::App& command, DotRequest& request) {
  command.add_option("graph", request.file, "Graph file")->required();
  command.add_flag("--svg", request.svg, "SVG, laid out by Graphviz, rather than DOT (also by -o NAME.svg)");
  command.add_option("-o,--output", request.output, "File to write (default: stdout)");
  command.add_option("--depth", request.depth, "Module levels to open (default: what stays readable)")
      ->check(whole_number_from(0));
  command.add_flag("--unfold", request.unfold, "Draw repeated layers one by one");
  command.add_flag("--all-phases", request.all_phases, "Draw backward and optimizer too");
  command.add_option("--phase", request.phases, "Draw this phase (repeat for several): forward, backward, optimizer");
  command.add_flag("--views", request.views, "Draw views and other plumbing too");
  command
      .add_option("--around", request.around,
                  "Draw what is near this: a node (n12), a value (%7), a module's path, a parameter, an operator")
      ->type_name("NODE");
  command.add_option("--radius", request.radius, "With --around: steps along tensors, either way")
      ->check(whole_number_from(0))
      ->capture_default_str();
  command.add_option("--path", request.path, "Draw the ways of tensors from one to the other")
      ->type_name("FROM TO")
      ->expected(2);
  command
      .add_option("--color", request.color,
                  "operator; flops, bytes (moved), allocated, memory (kept for backward), time; device, phase, module; "
                  "or values by node: FILE.json, FILE.csv, FILE.csv:COLUMN")
      ->capture_default_str();
  command.add_option("--spec", request.profile.spec, "With --color time: the device, as of 'profile'");
  command.add_option("--diff", request.before, "Mark what differs from this graph file: added, removed, changed")
      ->type_name("BEFORE");
  command
      .add_option(
          "--boxes", request.boxes,
          "Boxes in all before modules close and runs are joined (default: 250 of SVG, whose layout takes long, "
          "3000 of DOT; 0: any number)")
      ->check(whole_number_from(0));
  command
      .add_option("--rows", request.rows,
                  "Boxes below one another before the picture folds further by itself (0: any number)")
      ->check(whole_number_from(0))
      ->capture_default_str();
}

void add_codegen_options(CLI::App& command, CodegenRequest& request) {
  command.add_option("graph", request.file, "Graph file")->required();
  command.add_option("-o,--output", request.directory, "Folder to write to; made if it is not there")->required();
  command.add_option("--lang", request.language, "cpp: against libtorch alone; python: over torch.ops")
      ->check(CLI::IsMember({"cpp", "python"}))
      ->capture_default_str();
  command.add_option("--name,--namespace", request.name,
                     "Name of the files and the namespace (default: the graph file's)");
  command
      .add_option("--only", request.only,
                  "Only what this value needs: %12 as the text numbers it, output0, gradient.layer.weight, or a "
                  "pattern with * (repeat for several)")
      ->take_all();
  command.add_option("--device", request.device, "Every device of the graph as this one: cpu, cuda, cuda:i")
      ->check([](const std::string& text) {
        const auto device = parse_device(text);
        return device && (device->is_cpu() || device->is_cuda()) ? std::string()
                                                                 : "'" + text + "' is not cpu, cuda or cuda:i";
      });
  command
      .add_option("--function", request.functions,
                  "What the code calls for a function of your own: my::op=library::callee@header.h, in Python "
                  "my::op=callee@module (repeat for several)")
      ->take_all()
      ->check([](const std::string& text) {
        return text.find('=') == text.npos ? "'" + text + "' is not NAME=CALLEE or NAME=CALLEE@FROM" : std::string();
      });
  command.add_flag("--autograd", request.autograd,
                   "Forward graphs: code that autograd differentiates; checkpoint regions are recomputed in backward");
}

void add_materialize_options(CLI::App& command, MaterializeRequest& request) {
  command.add_option("model", request.model, "Built-in model")->required();
  command.add_option("--only", request.only,
                     "Names to write, as a shell pattern: '*layers.3.*'; repeat for several (default: all)");
  command.add_option("-o,--output", request.output, "File to write")->required();
  command.add_option("--seed", request.seed, "What building the model starts from: torch::manual_seed")
      ->check(whole_number_from(0))
      ->capture_default_str();
  command.add_option("--dtype", request.dtype, "Floating-point type of the parameters")
      ->check(CLI::IsMember({"f32", "bf16"}))
      ->capture_default_str();
  command.footer(
      "The model is described, not built: only what is written is computed, one tensor at a time, with the very "
      "numbers\n"
      "that building the whole model after torch::manual_seed(seed) gives.");
}

}  // namespace shadowgraph::cli
