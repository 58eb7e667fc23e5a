#include "models/program.h"

#include <c10/core/GradMode.h>
#include <torch/nn/module.h>

#include <chrono>
#include <stdexcept>

#include "models/batch.h"

namespace shadowgraph::models {

ProgramToCapture program_of(const BuiltModel& model, torch::optim::Optimizer* optimizer) {
  ProgramToCapture program;
  program.module = model.module.get();
  program.inputs = model.inputs;
  program.input_names = model.input_names;
  program.forward = model.forward;
  program.loss = [loss = model.loss, inputs = model.inputs](const Tensors& outputs) { return loss(outputs, inputs); };
  program.optimizer = optimizer;
  return program;
}

CaptureResult capture_generation(const BuiltModel& model, const GenerationStep& step) {
  if (!model.cache || !model.next) {
    throw std::invalid_argument(
        "this model has no key-value cache; prefill and decode require a generative language model, gpt2 or llama3");
  }
  if (!step.prefill && step.context < 1) {
    throw std::invalid_argument("decode requires a context of at least 1 token, got " + std::to_string(step.context));
  }
  const CacheShape& shape = *model.cache;
  at::Tensor ids = model.inputs.at(0);
  if (!step.prefill) ids = ids.slice(/*dim=*/1, 0, 1).clone();
  const int64_t past = step.prefill ? 0 : step.context;
  const int64_t tokens = past + ids.size(1);
  if (shape.positions_limit) check_seq(tokens, shape.positions);
  const at::ScalarType dtype = model.module->parameters().at(0).scalar_type();

  const at::NoGradGuard no_grad;
  const auto options = ids.options().dtype(dtype);
  KeyValueCache cache = step.static_cache || past > 0
                            ? KeyValueCache(shape, ids.size(0), past, step.static_cache ? tokens : 0, options)
                            : KeyValueCache(shape);
  const auto begin = std::chrono::steady_clock::now();
  Capture session(*model.module);
  session.name_input(ids, "input_ids");
  if (step.static_cache || past > 0) {
    for (const auto& [name, tensor] : cache.tensors()) session.name_input(tensor, name);
  }
  Tensors outputs{model.next(ids, cache)};
  int64_t bytes = 0;
  for (const auto& [name, tensor] : cache.tensors()) {
    outputs.push_back(tensor);
    bytes += static_cast<int64_t>(tensor.storage().nbytes());
  }
  Graph graph = session.finish(outputs);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  auto& notes = graph.metadata.other;
  notes["generation"] = step.prefill ? "prefill" : "decode";
  notes["context"] = std::to_string(tokens);
  notes["cache"] = step.static_cache ? "static" : "grown";
  notes["cache_bytes"] = std::to_string(bytes);
  notes["cache_bytes_per_token"] = std::to_string(bytes / ids.size(0) / tokens);
  notes["positions"] = std::to_string(shape.positions);
  return {std::move(graph), seconds.count()};
}

}  // namespace shadowgraph::models
