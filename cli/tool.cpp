// The shadowgraph tool: command line to verbs, and errors to exit codes.
//
//   0  success    1  invalid input    2  wrong usage    3  internal error    4  `check` found growth
#include "cli/tool.h"

#include <CLI/CLI.hpp>
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/jit/runtime/print_handler.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "cli/output.h"
#include "cli/verbs.h"
#include "shadowgraph/error.h"
#include "shadowgraph/passes/pipeline.h"
#include "support/suggestion.h"

namespace shadowgraph::cli {
namespace {

constexpr int kInvalidInput = 1;
constexpr int kWrongUsage = 2;
constexpr int kInternalError = 3;

struct Verb {
  const char* name;
  const char* summary;
  Work (*declare)(CLI::App& command);
};

constexpr Verb kVerbs[] = {
    {"profile", "Profile the memory, time and FLOPs of a model's step", declare_profile},
    {"fit", "Find the largest batch, sequence or context that fits in a device's memory", declare_fit},
    {"checkpoint", "Plan activation checkpointing: what to recompute for a given peak memory", declare_checkpoint},
    {"shard", "Find the best sharding of a training step over a device mesh", declare_shard},
    {"pipeline", "Simulate pipeline parallelism: time and memory of every rank under a schedule", declare_pipeline},
    {"plan", "Find the fastest parallelism plan for a cluster that fits in memory", declare_plan},
    {"compare", "Compare two programs, or a prediction with a profiler trace", declare_compare},
    {"check", "Check a program's memory and time against a baseline, for CI", declare_check},
    {"draw", "Draw the graph as SVG or DOT, or write an interactive HTML page", declare_draw},
    {"capture", "Capture a graph, and print, save or verify it", declare_capture},
    {"opt", "Run passes on a saved graph", declare_opt},
    {"emit", "Generate code from a graph, or write a model's initial weights", declare_emit},
    {"list", "List models, devices, passes or compiled kernels", declare_list},
    {"operator", "Show the rules and kernels of an operator, and what is missing", declare_operator},
    {"calibrate", "Create a device spec: measure this machine, or read a GPU trace or tables", declare_calibrate},
    {"completion", "Print a script for tab completion in bash and zsh", declare_completion},
};

constexpr const char* kAbout =
    "shadowgraph: capture and profile PyTorch programs on fake tensors.\n"
    "\n"
    "Runs a model without a GPU and without allocating memory for it, and captures forward, backward and optimizer\n"
    "step as one graph, which the commands below analyze. A SOURCE is a built-in model, a TorchScript file (.pt), a\n"
    "torch.export archive (.pt2), a saved graph (.sg, .json) or, if the Python package is installed, a Python model:\n"
    "some.module:factory, which returns a torch.nn.Module, or hf:CONFIG.json, a transformers configuration.\n";

constexpr const char* kExamples =
    "Examples:\n"
    "  shadowgraph profile resnet50 --mode train --batch 32 -o out/resnet50\n"
    "  shadowgraph profile gpt2 --mode train --what-if zero=1,ranks=8,dtype=bf16\n"
    "  shadowgraph fit llama3_8b --memory 80GB --dtype bf16 --seq 4096\n"
    "  shadowgraph capture net.pt --input 'f32[8,3,224,224]' --mode train -o net.sg\n"
    "  shadowgraph draw net.sg -o net.html\n"
    "  shadowgraph profile some.module:factory --input 'f32[batch,16]' --batch 8 --mode train\n"
    "  shadowgraph fit hf:CONFIG.json --mode serve --spec l4 --context 8Ki --weights awq\n"
    "  shadowgraph VERB --help\n"
    "\n"
    "Exit codes: 0 success, 1 invalid input (or compare --nodes found a difference), 2 wrong usage, 3 internal error,\n"
    "4 check found growth.\n";

// Removes the second empty line that CLI11 prints between groups, so that help fits on a screen.
struct Formatter : CLI::Formatter {
  std::string make_help(const CLI::App* app, std::string name, CLI::AppFormatMode mode) const override {
    std::string text = CLI::Formatter::make_help(app, std::move(name), mode);
    for (size_t at = 0; (at = text.find("\n\n\n")) != text.npos;) text.erase(at, 1);
    return text;
  }
};

// "; did you mean --optimizer?" for the first unknown option; "" if there is none, or no option has a similar name.
std::string option_suggestion(const CLI::App& app) {
  for (const CLI::App* command : app.get_subcommands()) {
    std::vector<std::string> names;
    for (const CLI::Option* option : command->get_options()) {
      for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    }
    for (const std::string& word : command->remaining()) {
      if (!word.starts_with("--")) continue;
      const std::string near = closest(word.substr(0, word.find('=')), names);
      return near.empty() ? "" : fmt::format("; did you mean {}?", near);
    }
  }
  return "";
}

std::string usage_message(const CLI::App* app, const CLI::Error& error) {
  std::string command = app->get_name();
  for (const CLI::App* sub : app->get_subcommands()) command += " " + sub->get_name();
  return fmt::format("shadowgraph: {}{}\nRun '{} --help' for usage.\n", error.what(), option_suggestion(*app), command);
}

int print_error(int code, const std::string& message) {
  print_log("shadowgraph: {}\n", message);
  return code;
}

// The message for an unknown verb. CLI11 would only report that a command is missing.
std::optional<std::string> unknown_verb_message(const std::string& word) {
  std::vector<std::string> names;
  for (const Verb& verb : kVerbs) names.emplace_back(verb.name);
  if (word.starts_with('-') || std::ranges::find(names, word) != names.end()) return std::nullopt;
  const std::string near = closest(word, names);
  return fmt::format("unknown command '{}'{}; the commands are {}", word,
                     near.empty() ? "" : " (did you mean " + near + "?)", fmt::join(names, ", "));
}

// Reports a full disk or a closed stdout.
void flush_stdout() {
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    throw FileError("cannot write to stdout: " + std::generic_category().message(errno));
  }
}

// An empty value is usually an unset variable of a script.
void refuse_empty_values(const CLI::App& command) {
  for (const CLI::Option* option : command.get_options()) {
    if (std::ranges::any_of(option->results(), &std::string::empty)) {
      throw CLI::ValidationError(option->get_name(), "the value is empty");
    }
  }
}

int run(int argc, char** argv) {
  CLI::App app{kAbout, "shadowgraph"};
  app.set_version_flag("--version", std::string("shadowgraph ") + SHADOWGRAPH_VERSION);
  app.require_subcommand(1);
  app.footer(kExamples);
  app.formatter(std::make_shared<Formatter>());
  app.get_formatter()->column_width(30);
  app.get_formatter()->label("SUBCOMMAND", "VERB");
  app.failure_message(usage_message);
  std::vector<std::pair<const CLI::App*, Work>> works;
  for (const Verb& verb : kVerbs) {
    CLI::App* command = app.add_subcommand(verb.name, verb.summary);
    command->group("Verbs");
    works.emplace_back(command, verb.declare(*command));
    command->set_help_flag("-h,--help", "Print this help");  // listed in the last group, not before the first
  }
  if (argc > 1) {
    if (const auto message = unknown_verb_message(argv[1])) return print_error(kWrongUsage, *message);
  }
  try {
    app.parse(argc, argv);
    int code = 0;
    for (const auto& [command, work] : works) {
      if (!*command) continue;
      refuse_empty_values(*command);
      code = work();
    }
    flush_stdout();
    return code;
  } catch (const CLI::Success& success) {  // --help, --version
    return app.exit(success);
  } catch (const CLI::ParseError& error) {
    app.exit(error);
    return kWrongUsage;
  }
}

// Prints the messages of libtorch, and of TorchScript programs while they are captured, to stderr.
class Messages final : public c10::WarningHandler {
 public:
  Messages() {
    torch::jit::setPrintHandler([](const std::string& text) { print_to(stderr, text); });
  }
  ~Messages() override { torch::jit::setPrintHandler(before_); }
  Messages(const Messages&) = delete;
  Messages& operator=(const Messages&) = delete;
  void process(const c10::Warning& warning) override { print_log("shadowgraph: warning: {}\n", warning.msg()); }

 private:
  torch::jit::PrintHandler before_ = torch::jit::getPrintHandler();
};

}  // namespace

int run_tool(int argc, char** argv) {
  Messages messages;
  const c10::WarningUtils::WarningHandlerGuard warnings(&messages);
  try {
    return run(argc, argv);
  } catch (const Error& error) {
    return print_error(static_cast<int>(error.fault()), error.what());
  } catch (const std::invalid_argument& error) {
    return print_error(kInvalidInput, error.what());
  } catch (const c10::Error& error) {
    // The backtrace only helps developers of libtorch.
    return print_error(kInvalidInput, error.what_without_backtrace());
  } catch (const std::filesystem::filesystem_error& error) {  // a path too long, or of a folder without rights
    return print_error(kInvalidInput, error.what());
  } catch (const std::bad_alloc&) {
    return print_error(kInvalidInput, "out of memory");
  } catch (const std::exception& error) {
    return print_error(kInternalError, std::string("internal error: ") + error.what());
  }
}

Python& python() {
  static Python instance;
  return instance;
}

const Python& needed_python(const std::string& what) {
  if (python().ask == nullptr) {
    throw Error(what +
                ", which needs Python: run the `shadowgraph` command of the Python package (pip install shadowgraph)");
  }
  return python();
}

}  // namespace shadowgraph::cli
