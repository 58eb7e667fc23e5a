#include "shadowgraph/parallel/engines.h"

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

}  // namespace shadowgraph
