#include "cli/weights.h"

#include <ATen/Context.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <fnmatch.h>

#include "cli/progress.h"
#include "cli/suggestion.h"
#include "models/registry.h"
#include "shadowgraph/deferred.h"
#include "shadowgraph/profile.h"

namespace shadowgraph::cli {
namespace {

// fnmatch takes an unclosed bracket as the character itself, which nobody means.
void check_glob(const std::string& glob) {
  if (glob.empty()) throw Error("--only is empty; a pattern such as '*layer.3.*' is wanted");
  bool escaped = false;
  size_t open = std::string::npos;
  for (size_t i = 0; i < glob.size(); ++i) {
    if (escaped) {
      escaped = false;
    } else if (glob[i] == '\\') {
      escaped = true;
    } else if (glob[i] == '[' && open == std::string::npos) {
      open = i;
    } else if (glob[i] == ']' && open != std::string::npos && i > open + 1) {
      open = std::string::npos;
    }
  }
  if (open != std::string::npos) {
    throw Error(fmt::format("--only '{}': the bracket at character {} is not closed", glob, open + 1));
  }
  if (escaped) throw Error(fmt::format("--only '{}' ends with a backslash that escapes nothing", glob));
}

std::string known_models(const std::string& name) {
  std::vector<std::string> names;
  for (const auto& info : models::available()) names.push_back(info.name);
  const std::string near = closest(name, names);
  return fmt::format("there is no built-in model '{}'{}; there are {}", name,
                     near.empty() ? "" : " (did you mean " + near + "?)", fmt::join(names, ", "));
}

}  // namespace

void write_weights_of(const WeightsRequest& request) {
  for (const std::string& glob : request.only) check_glob(glob);
  const auto& available = models::available();
  if (std::ranges::none_of(available, [&](const auto& info) { return info.name == request.model; })) {
    throw Error(known_models(request.model));
  }
  const Progress progress("materialising " + request.model);
  at::manual_seed(static_cast<uint64_t>(request.seed));
  models::ModelOptions options;
  options.dtype = request.dtype == "bf16" ? at::kBFloat16 : at::kFloat;
  const models::BuiltModel model = deferred_init([&] { return models::build(request.model, options); });

  std::vector<std::pair<std::string, at::Tensor>> chosen;
  std::vector<std::string> names;
  const auto add = [&](const auto& items) {
    for (const auto& item : items) {
      if (!item.value().defined()) continue;
      names.push_back(item.key());
      const bool wanted = request.only.empty() || std::ranges::any_of(request.only, [&](const std::string& glob) {
                            return fnmatch(glob.c_str(), item.key().c_str(), 0) == 0;
                          });
      if (wanted) chosen.emplace_back(item.key(), item.value());
    }
  };
  add(model.module->named_parameters());
  add(model.module->named_buffers());
  if (chosen.empty()) {
    const std::string near = closest(request.only.front(), names);
    throw Error(fmt::format("no parameter or buffer of {} matches {}; it has {} of them, such as '{}'{}", request.model,
                            fmt::join(request.only, " or "), names.size(), names.front(),
                            near.empty() ? "" : " (did you mean '" + near + "'?)"));
  }
  const WrittenWeights written = write_weights(request.output, chosen);
  std::fputs(fmt::format("{}: {} of {} tensors of {}, {}, seed {}\n", request.output, written.tensors, names.size(),
                         request.model, human_bytes(static_cast<int64_t>(written.bytes)), request.seed)
                 .c_str(),
             stderr);
}

}  // namespace shadowgraph::cli
