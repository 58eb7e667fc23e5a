// Predicts and measures peak bytes and seconds of one model's step on the CPU. Prints one JSON object;
// bench/accuracy.py runs it for many models (`make accuracy`).
//
//     step_accuracy resnet50 --mode adamw --batch 4 [--spec this-machine.json]
//     step_accuracy whisper.pt --mode infer --input f32[1,80,3000]
#include <caffe2/serialize/inline_container.h>
#include <nlohmann/json.hpp>
#include <torch/nn/module.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <torch/script.h>

#include <chrono>
#include <filesystem>
#include <iostream>

#include "models/program.h"
#include "models/registry.h"
#include "profiler/measure/allocation_counter.h"
#include "shadowgraph/capture/activation_checkpoint.h"
#include "shadowgraph/capture/capture.h"
#include "shadowgraph/capture/replay.h"
#include "shadowgraph/passes/functional.h"
#include "shadowgraph/passes/pass.h"
#include "shadowgraph/passes/pipeline.h"
#include "shadowgraph/passes/recompute.h"
#include "shadowgraph/passes/shapes.h"
#include "shadowgraph/passes/simplify.h"
#include "shadowgraph/passes/structure.h"
#include "shadowgraph/passes/symbolic.h"
#include "shadowgraph/profile/device_spec.h"
#include "shadowgraph/profile/measure.h"
#include "shadowgraph/profile/profile.h"
#include "shadowgraph/profile/step_time.h"

namespace shadowgraph {
namespace {

using Clock = std::chrono::steady_clock;

struct Request {
  std::string source;
  std::string mode = "sgd";  // infer | sgd | adamw
  std::string dtype = "f32";
  int64_t batch = 0;
  int64_t seq = 0;
  std::vector<std::string> inputs;
  std::string spec;
  std::string checkpoint;  // modules whose activations are recomputed in backward, in the pass's syntax
  int steps = 3;
  bool trains() const { return mode != "infer"; }
  c10::ScalarType scalar() const { return dtype == "bf16" ? c10::kBFloat16 : c10::kFloat; }
};

std::unique_ptr<torch::optim::Optimizer> optimizer_of(const Request& request, const Tensors& all) {
  Tensors parameters;
  std::unordered_set<const c10::TensorImpl*> seen;
  for (const at::Tensor& parameter : all) {
    if (parameter.requires_grad() && seen.insert(parameter.unsafeGetTensorImpl()).second)
      parameters.push_back(parameter);
  }
  if (request.mode == "adamw") {
    return std::make_unique<torch::optim::AdamW>(parameters, torch::optim::AdamWOptions(1e-3));
  }
  return std::make_unique<torch::optim::SGD>(parameters, torch::optim::SGDOptions(1e-2));
}

// A model as the tool captures it: fake inside a mode, real outside.
struct Subject {
  ProgramToCapture program;
  Tensors parameters;
  std::shared_ptr<void> keeps;
};

bool is_file(const Request& request) { return std::filesystem::is_regular_file(request.source); }

Subject subject_of(const Request& request, FakeTensorMode* mode) {
  if (!is_file(request)) {
    auto model = std::make_shared<models::BuiltModel>(models::build(
        request.source,
        {.batch = request.batch, .seq = request.seq, .dtype = request.scalar(), .training = request.trains()}));
    return {models::program_of(*model), model->module->parameters(), model};
  }
  auto script = std::make_shared<ScriptProgram>(ScriptProgram::load(request.source));
  const auto dtype = request.dtype == "bf16" ? std::optional(c10::kBFloat16) : std::nullopt;
  if (mode != nullptr) {
    script->make_fake(*mode, dtype);
  }
  script->train(request.trains());
  Tensors inputs;
  for (const std::string& text : request.inputs) {
    at::Tensor input = parse_tensor_spec(text).make();
    if (mode == nullptr) input = c10::isFloatingType(input.scalar_type()) ? at::rand_like(input) : at::ones_like(input);
    inputs.push_back(input);
  }
  return {script->program(std::move(inputs)), script->parameters(), script};
}

// Counts the debug records of a loaded TorchScript file (its Python source lines), which CPU memory holds but which are
// not tensors of the step.
int64_t source_records(const Request& request) {
  if (!is_file(request)) return 0;
  caffe2::serialize::PyTorchStreamReader reader(request.source);
  int64_t bytes = 0;
  for (const std::string& name : reader.getAllRecords()) {
    if (name.ends_with(".debug_pkl")) bytes += static_cast<int64_t>(reader.getRecordSize(name));
  }
  return bytes;
}

Graph captured(const Request& request, bool steady) {
  FakeTensorMode mode({.device = at::kCPU,
                       .map_devices_to_default = is_file(request),
                       .real_tensors = is_file(request) ? std::optional(RealTensors::kConstant) : std::nullopt});
  Subject subject = subject_of(request, &mode);
  if (!request.trains()) {
    const at::NoGradGuard no_grad;
    return capture_forward(subject.program).graph;
  }
  const auto optimizer = optimizer_of(request, subject.parameters);
  subject.program.optimizer = optimizer.get();
  subject.program.warmup_steps = steady ? 1 : 0;
  return capture_training_step(subject.program).graph;
}

// A step with checkpoints is a graph rewritten by the pass; it is predicted from the graph and run by the interpreter.
nlohmann::json run_with_checkpoints(const Request& request) {
  Graph graph = captured(request, false);
  run_pass(graph, "checkpoint", {{"modules", request.checkpoint}});
  const auto counter = std::make_shared<AllocationCounter>();
  nlohmann::json row{{"model", request.source},         {"mode", request.mode}, {"dtype", request.dtype},
                     {"batch", request.batch},          {"seq", request.seq},   {"threads", at::get_num_threads()},
                     {"checkpoint", request.checkpoint}};
  {
    const c10::DebugInfoGuard count(c10::DebugInfoKind::PROFILER_STATE, counter);
    auto model = std::make_shared<models::BuiltModel>(models::build(
        request.source, {.batch = request.batch, .seq = request.seq, .dtype = request.scalar(), .training = true}));
    const ProgramToCapture program = models::program_of(*model);
    Bindings bindings = Bindings().module(*model->module);
    for (size_t i = 0; i < program.inputs.size(); ++i) bindings.bind(program.input_names.at(i), program.inputs[i]);
    Interpreter interpreter(graph);
    counter->most = counter->live;
    const auto start = Clock::now();
    interpreter.run(bindings);
    row["real_seconds"] = std::chrono::duration<double>(Clock::now() - start).count();
    row["real_peak"] = counter->most;
  }
  MeasuredCalls calls = MeasuredCalls::read_file(MeasuredCalls::default_file());
  const MeasureReport report = measure_calls(graph, calls, {.bytes = int64_t{12} << 30, .seconds = 300});
  calls.write_file(MeasuredCalls::default_file());
  const Profile measured = profile(graph, {.measured = &calls});
  row["live_peak"] = measured.peak.bytes;
  row["peak"] = measured.peak_with_scratch.bytes;
  row["peak_op"] = measured.peak_with_scratch.op;
  row["not_measured"] = nlohmann::json::array();
  for (const auto& left : report.left_out) row["not_measured"].push_back({left.op, left.calls, left.reason});
  return row;
}

nlohmann::json run(const Request& request) {
  if (!request.checkpoint.empty()) return run_with_checkpoints(request);
  nlohmann::json row{{"model", std::filesystem::path(request.source).stem().string()},
                     {"mode", request.mode},
                     {"dtype", request.dtype},
                     {"batch", request.batch},
                     {"seq", request.seq},
                     {"threads", at::get_num_threads()}};
  // Real steps run first, because measuring calls changes the state of the heap.
  const auto counter = std::make_shared<AllocationCounter>();
  {
    const c10::DebugInfoGuard count(c10::DebugInfoKind::PROFILER_STATE, counter);
    Subject subject = subject_of(request, nullptr);
    const auto optimizer = request.trains() ? optimizer_of(request, subject.parameters) : nullptr;
    std::vector<double> seconds;
    for (int i = 0; i < request.steps; ++i) {
      if (i == 0) counter->most = counter->live;
      const auto start = Clock::now();
      if (request.trains()) {
        optimizer->zero_grad();
        Tensors outputs = subject.program.forward(subject.program.inputs);
        at::Tensor loss = subject.program.loss(outputs);
        outputs.clear();
        loss.backward();
        optimizer->step();
      } else {
        const at::NoGradGuard no_grad;
        const Tensors outputs = subject.program.forward(subject.program.inputs);
      }
      if (i == 0) row["real_peak"] = counter->most - source_records(request);
      seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count());
    }
    row["first_seconds"] = seconds.front();
    seconds.erase(seconds.begin());
    if (!seconds.empty()) row["real_seconds"] = *std::min_element(seconds.begin(), seconds.end());
  }

  const Graph first = captured(request, false);
  MeasuredCalls calls = MeasuredCalls::read_file(MeasuredCalls::default_file());
  const MeasureReport report = measure_calls(first, calls, {.bytes = int64_t{12} << 30, .seconds = 300});
  const Profile bare = profile(first);
  const Profile measured = profile(first, {.measured = &calls});
  row["live_peak"] = bare.peak.bytes;
  row["rule_peak"] = bare.peak_with_scratch.bytes;
  row["unknown_calls"] = nlohmann::json::array();
  for (const auto& unknown : bare.unknown_scratch) row["unknown_calls"].push_back({unknown.op, unknown.count});
  row["peak"] = measured.peak_with_scratch.bytes;
  row["peak_op"] = measured.peak_with_scratch.op;
  row["not_measured"] = nlohmann::json::array();
  for (const auto& left : report.left_out) row["not_measured"].push_back({left.op, left.calls, left.reason});

  const Graph steady = request.trains() ? captured(request, true) : captured(request, false);
  measure_calls(steady, calls, {.bytes = int64_t{12} << 30, .seconds = 300});
  calls.write_file(MeasuredCalls::default_file());
  if (!request.spec.empty()) {
    const DeviceSpec spec = DeviceSpec::read_file(request.spec);
    const StepTime estimate = StepTime::of(steady, spec);
    row["estimated_seconds"] = estimate.seconds();
    const StepTime known = StepTime::of(steady, spec, &calls);
    row["measured_calls_seconds"] = known.seconds();
    for (int i = 0; i < kKernelClassCount; ++i) {
      const auto kind = static_cast<KernelClass>(i);
      if (known.seconds(kind) > 0) {
        row["classes"][std::string(to_string(kind))] = {estimate.seconds(kind), known.seconds(kind)};
      }
    }
  }
  return row;
}

}  // namespace
}  // namespace shadowgraph

int main(int argc, char** argv) {
  shadowgraph::Request request;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    const auto value = [&] { return i + 1 < argc ? std::string(argv[++i]) : std::string(); };
    if (name == "--mode")
      request.mode = value();
    else if (name == "--dtype")
      request.dtype = value();
    else if (name == "--batch")
      request.batch = std::stoll(value());
    else if (name == "--seq")
      request.seq = std::stoll(value());
    else if (name == "--input")
      request.inputs.push_back(value());
    else if (name == "--spec")
      request.spec = value();
    else if (name == "--checkpoint")
      request.checkpoint = value();
    else if (name == "--steps")
      request.steps = std::stoi(value());
    else if (name == "--threads")
      at::set_num_threads(std::stoi(value()));
    else
      request.source = name;
  }
  try {
    std::cout << shadowgraph::run(request).dump() << std::endl;
  } catch (const std::exception& error) {
    std::cerr << request.source << ": " << error.what() << "\n";
    return 1;
  }
}
