// A Serving as text and as JSON.
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "shadowgraph/profile/serving.h"
#include "shadowgraph/units.h"

namespace shadowgraph {

nlohmann::json to_json(const Serving& serving) {
  auto rows = nlohmann::json::array();
  for (const ServingRow& row : serving.rows) {
    rows.push_back({{"requests", row.requests},
                    {"next_token_seconds", row.next_token},
                    {"tokens_per_second", row.tokens_per_second}});
  }
  nlohmann::json answer{{"fits", serving.fits()},
                        {"device", serving.device},
                        {"memory_bytes", serving.memory},
                        {"engine_bytes", serving.engine},
                        {"weights_bytes", serving.weights},
                        {"weights_bytes_as_made", serving.weights_made},
                        {"quantised_parameters", serving.quantised},
                        {"activations_bytes", serving.activations},
                        {"context_bytes", serving.context_bytes},
                        {"pages", serving.pages},
                        {"cache_bytes", serving.cache},
                        {"bytes_per_token", serving.token_bytes},
                        {"bytes_per_request", serving.request_bytes},
                        {"tokens", serving.tokens},
                        {"prompt", serving.prompt},
                        {"requests", serving.requests},
                        {"longest_request", serving.longest},
                        {"rows", rows},
                        {"assumptions", serving.assumptions}};
  if (!serving.format.empty()) answer["weights"] = serving.format;
  if (!serving.links.empty()) answer["interconnect"] = serving.links;
  if (serving.fits()) answer["first_token_seconds"] = serving.first_token;
  return answer;
}

std::string to_text(const Serving& serving) {
  std::string text = serving.fits()
                         ? fmt::format("fits: {} requests of {} tokens at once on {}\n", exact_count(serving.requests),
                                       exact_count(serving.tokens), serving.device)
                         : fmt::format("does not fit: not one request of {} tokens on {}\n",
                                       exact_count(serving.tokens), serving.device);
  if (!serving.fits() && serving.longest > 0) {
    text += fmt::format("  the longest that fits has {} tokens\n", exact_count(serving.longest));
  } else if (!serving.fits()) {
    text += "  not even one token: fewer bits a weight, more devices, or a larger share of the device may do\n";
  }
  const auto line = [&](const char* what, int64_t bytes, const std::string& more) {
    text += fmt::format("  {:<12} {:>11}{}{}\n", what, human_bytes(bytes), more.empty() ? "" : "  ", more);
  };
  line("device", serving.memory, "of which the engine takes " + human_bytes(serving.engine));
  line("weights", serving.weights,
       serving.format.empty() ? std::string()
                              : fmt::format("{} parameters in {}; {} as made", human_count(serving.quantised),
                                            serving.format, human_bytes(serving.weights_made)));
  line("activations", serving.activations, "of a pass");
  line("context", serving.context_bytes, serving.links.empty() ? "CUDA's" : "CUDA's, with NCCL's buffers");
  line("cache", serving.cache,
       fmt::format("{} pages; a request takes {}, one more token {}", exact_count(serving.pages),
                   human_bytes(serving.request_bytes), human_bytes(serving.token_bytes)));
  if (serving.fits()) {
    text += fmt::format("  first token after {} (prompt of {} tokens)\n", human_seconds(serving.first_token),
                        exact_count(serving.prompt));
    text += fmt::format("\n{:>10} {:>12} {:>12}\n", "requests", "next token", "tokens/s");
    for (const ServingRow& row : serving.rows) {
      text += fmt::format("{:>10} {:>12} {:>12.1f}\n", exact_count(row.requests), human_seconds(row.next_token),
                          row.tokens_per_second);
    }
  }
  text += "\nassumed\n";
  for (const std::string& assumption : serving.assumptions) text += "  " + assumption + "\n";
  return text;
}

}  // namespace shadowgraph
