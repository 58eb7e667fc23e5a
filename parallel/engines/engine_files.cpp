#include <nlohmann/json.hpp>

#include "shadowgraph/parallel/engines.h"
#include "support/json.h"

namespace shadowgraph {

std::vector<EngineFile> engine_files(const TrainingPlan& plan, const Graph& step, const EngineRequest& request) {
  struct Engine {
    const char* name;
    const char* file;
    EngineFile (*write)(const TrainingPlan&, const Graph&, const EngineRequest&);
  };
  constexpr Engine kEngines[] = {{"PyTorch", "train.py", pytorch_script},
                                 {"torchtitan", "torchtitan_recipe.py", torchtitan_recipe},
                                 {"Megatron-LM", "megatron.args", megatron_arguments},
                                 {"accelerate", "accelerate.yaml", accelerate_config}};
  std::vector<EngineFile> files;
  for (const Engine& engine : kEngines) {
    try {
      files.push_back(engine.write(plan, step, request));
    } catch (const CannotExpressError& error) {
      files.push_back({.engine = engine.name, .name = engine.file, .why_not = error.what()});
    }
  }
  return files;
}

TrainingPlan read_training_plan(std::string_view text) {
  const nlohmann::json json = parse_json(text, "plan");
  TrainingPlan plan;
  const auto read = [&](const char* name, auto& value) {
    if (json.contains(name)) json.at(name).get_to(value);
  };
  try {
    read("tensor", plan.tensor);
    read("context", plan.context);
    read("data", plan.data);
    read("pipeline", plan.pipeline);
    read("stages_per_rank", plan.stages_per_rank);
    read("experts", plan.experts);
    read("micro_batch", plan.micro_batch);
    read("microbatches", plan.microbatches);
    read("zero", plan.zero);
    read("schedule", plan.schedule);
    plan.layout = parse_tensor_layout(json.value("layout", "megatron"));
    plan.overlap = collective_overlap(json.value("overlap", "none"));
    read("data_outermost", plan.data_outermost);
    read("recomputed", plan.recomputed);
    read("selective", plan.selective);
    for (const nlohmann::json& part : json.value("in_part", nlohmann::json::array())) {
      plan.in_part.push_back(
          {part.at("layers").get<std::vector<std::string>>(), part.at("keeps").get<std::vector<std::string>>()});
    }
    read("offloaded", plan.offloaded);
    read("optimizer_on_host", plan.optimizer_on_host);
    plan.attention = parse_attention_kernel(json.value("attention", "device"));
    for (const nlohmann::json& stage : json.value("stages", nlohmann::json::array())) {
      plan.stages.push_back({.begins = stage.at("begins").get<std::string>(),
                             .units = stage.value("units", int64_t{0}),
                             .recomputed = stage.value("recomputed", int64_t{0}),
                             .selective = stage.value("selective", int64_t{0}),
                             .offloaded = stage.value("offloaded", int64_t{0})});
    }
  } catch (const nlohmann::json::exception& error) {
    throw ParseError(std::string("this is no plan: ") + error.what(), 1, 1);
  }
  if (plan.tensor < 1 || plan.context < 1 || plan.data < 1 || plan.pipeline < 1 || plan.micro_batch < 1 ||
      plan.microbatches < 1) {
    throw ParseError("this is no plan: a number of ranks, samples or micro-batches is below 1", 1, 1);
  }
  return plan;
}

}  // namespace shadowgraph
