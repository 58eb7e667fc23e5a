// The shadowgraph tool: command line to verbs, and errors to exit codes.
//
//   0  done      1  the input's fault      2  wrong usage      3  our fault      4  `check` found growth
#include "cli/tool.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "cli/suggestion.h"
#include "cli/verbs.h"
#include "shadowgraph/error.h"
#include "shadowgraph/passes/pipeline.h"
#include "support/text.h"

namespace shadowgraph::cli {
namespace {

constexpr int kInputFault = 1;
constexpr int kUsage = 2;
constexpr int kOurFault = 3;

struct Verb {
  const char* name;
  const char* answers;
  Work (*declare)(CLI::App& command);
};

constexpr Verb kVerbs[] = {
    {"profile", "What it holds in memory, when the peak is, what it costs; what it would hold otherwise",
     declare_profile},
    {"fit", "The largest batch, sequence or context that fits into a device's memory", declare_fit},
    {"checkpoint", "What backward should compute again, and the curve of memory against work", declare_checkpoint},
    {"shard", "How the tensors of a step are best laid out over many devices", declare_shard},
    {"pipeline", "A step cut into stages: what all ranks of a pipeline take, in seconds and bytes", declare_pipeline},
    {"plan", "A plan of training on a cluster: how many ways each thing is cut, and what a step takes", declare_plan},
    {"compare", "What grew, and where; or a prediction beside a trace of the real step", declare_compare},
    {"check", "Whether a program grew beyond a baseline: for pull requests", declare_check},
    {"draw", "A picture of the graph, or a page to open in a browser", declare_draw},
    {"capture", "The graph itself: print it, save it, verify it", declare_capture},
    {"opt", "Rewrite a saved graph by passes", declare_opt},
    {"emit", "Code that runs the graph, or the initial weights of a model", declare_emit},
    {"list", "What there is: models, devices, passes, kernels", declare_list},
    {"operator", "What is known of one operator, from every table, and what is missing", declare_operator},
    {"calibrate", "Figures of devices: this machine measured, a trace of a GPU, tables", declare_calibrate},
};

constexpr const char* kAbout =
    "shadowgraph: capture and profile PyTorch programs on fake tensors.\n"
    "\n"
    "Runs a model without a GPU and without allocating it, records forward, backward and optimizer step as one graph,\n"
    "and answers from that graph. A SOURCE is a built-in model, a TorchScript file (.pt), an archive of torch.export\n"
    "(.pt2), a saved graph (.sg, .json), or, where the package shadowgraph is installed, a model in Python:\n"
    "some.module:factory, which makes a torch.nn.Module, or hf:CONFIG.json, a configuration of transformers.\n";

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
    "Exit codes: 0 done, 1 the input's fault (or compare --nodes found a difference), 2 wrong usage, 3 a bug of "
    "ours,\n4 check found growth.\n";

// CLI11 leaves two lines between groups, which costs a screen its foot.
struct Formatter : CLI::Formatter {
  std::string make_help(const CLI::App* app, std::string name, CLI::AppFormatMode mode) const override {
    std::string text = CLI::Formatter::make_help(app, std::move(name), mode);
    for (size_t at = 0; (at = text.find("\n\n\n")) != text.npos;) text.erase(at, 1);
    return text;
  }
};

// "; did you mean --optimizer?" for the first option that there is none of; "" if all are known, or none is near.
std::string meant_option(const CLI::App& app) {
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
  return fmt::format("shadowgraph: {}{}\nRun '{} --help' for the usage.\n", error.what(), meant_option(*app), command);
}

int complain(int code, const std::string& message) {
  std::fputs(("shadowgraph: " + terminal_text(message) + "\n").c_str(), stderr);
  return code;
}

// What is wrong with a first word that is no verb; CLI11 would only say that a command is missing.
std::optional<std::string> wrong_verb(const std::string& word) {
  std::vector<std::string> names;
  for (const Verb& verb : kVerbs) names.emplace_back(verb.name);
  if (word.starts_with('-') || std::ranges::find(names, word) != names.end()) return std::nullopt;
  const std::string near = closest(word, names);
  return fmt::format("there is no command '{}'{}; the commands are {}", word,
                     near.empty() ? "" : " (did you mean " + near + "?)", fmt::join(names, ", "));
}

// A full disk or a closed stdout shows here at the latest.
void flush_stdout() {
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    throw FileError("cannot write to the standard output: " + std::generic_category().message(errno));
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
    CLI::App* command = app.add_subcommand(verb.name, verb.answers);
    command->group("Verbs");
    works.emplace_back(command, verb.declare(*command));
    command->set_help_flag("-h,--help", "Print this");  // among the last group's, not before the first
  }
  if (argc > 1) {
    if (const auto message = wrong_verb(argv[1])) return complain(kUsage, *message);
  }
  try {
    app.parse(argc, argv);
    int code = 0;
    for (const auto& [command, work] : works) {
      if (*command) code = work();
    }
    flush_stdout();
    return code;
  } catch (const CLI::Success& success) {  // --help, --version
    return app.exit(success);
  } catch (const CLI::ParseError& error) {
    app.exit(error);
    return kUsage;
  }
}

}  // namespace

int run_tool(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const Error& error) {
    return complain(static_cast<int>(error.fault()), error.what());
  } catch (const std::invalid_argument& error) {
    return complain(kInputFault, error.what());
  } catch (const c10::Error& error) {
    // Its first lines are the message; what follows is for libtorch's developers.
    return complain(kInputFault, error.what_without_backtrace());
  } catch (const std::bad_alloc&) {
    return complain(kInputFault, "out of memory");
  } catch (const std::exception& error) {
    return complain(kOurFault, std::string("internal error: ") + error.what());
  }
}

Python& python() {
  static Python of_process;
  return of_process;
}

const Python& needed_python(const std::string& what) {
  if (python().ask == nullptr) {
    throw Error(what +
                ", which needs Python: the command shadowgraph of the package does it (pip install shadowgraph)");
  }
  return python();
}

}  // namespace shadowgraph::cli
