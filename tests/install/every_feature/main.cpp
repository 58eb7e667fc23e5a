// Uses each feature of README.md and docs/ once, from the installed package. Results are checked briefly here and in
// detail in each component's tests.
#include <nlohmann/json.hpp>
#include <shadowgraph/capture/graph_module.h>
#include <shadowgraph/draw/draw.h>
#include <shadowgraph/graph/bgl.h>
#include <shadowgraph/shadowgraph.h>
#include <torch/torch.h>

#include <iostream>

namespace {

int failures = 0;

void expect(bool right, const char* what) {
  if (right) return;
  ++failures;
  std::cerr << "not as expected: " << what << "\n";
}

struct Net : torch::nn::Module {
  Net() {
    fc1 = register_module("fc1", torch::nn::Linear(8, 16));
    fc2 = register_module("fc2", torch::nn::Linear(16, 4));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const sg::ModuleScope scope(*this);
    return fc2->forward(torch::relu(fc1->forward(x)));
  }
  torch::nn::Linear fc1{nullptr}, fc2{nullptr};
};

at::Tensor sum_of(const sg::Tensors& outputs) { return outputs[0].sum(); }

sg::Graph training_step(int64_t batch) {
  const sg::FakeTensorMode mode({.device = at::kCUDA});
  Net net;
  torch::optim::AdamW adamw(net.parameters());
  return sg::capture_training_step(net, {torch::randn({batch, 8})}, &sum_of, adamw).graph;
}

sg::Graph forward_of(const std::shared_ptr<Net>& net, const at::Tensor& x) {
  const torch::NoGradGuard no_grad;
  sg::FakeTensorMode mode;
  const sg::FakeModule fake = sg::fakeify(mode, *net);
  return sg::capture_forward(*net, {mode.from_real(x)}).graph;
}

void text_and_files(const sg::Graph& graph) {
  const std::string text = sg::to_text(graph);
  expect(!sg::first_difference(sg::parse(text), graph), "the text form comes back");
  expect(!sg::first_difference(sg::from_json(sg::to_json(graph)), graph), "JSON comes back");
  sg::write_graph_file("step.sg", graph);
  const sg::Graph again = sg::read_graph_file("step.sg");
  sg::verify(again);
  expect(sg::GraphDiff::of(graph, again).empty(), "no difference to what was written");
  try {
    sg::parse("nonsense");
    expect(false, "nonsense is refused");
  } catch (const sg::ParseError&) {}
}

void analyses(const sg::Graph& graph) {
  const sg::Effects effects = sg::Effects::of(graph);
  const sg::Dependences order = sg::Dependences::of(graph, effects);
  expect(sg::topological_order(graph, order).size() == graph.node_count(), "an order of all nodes");
  const sg::AliasAnalysis aliases = sg::AliasAnalysis::of(graph);
  const sg::ValueId first = graph.results(graph.first())[0].ref.value;
  expect(aliases.relation(first, first) == sg::Overlap::kSame, "aliases");
  expect(!sg::nodes_calling(graph, "aten::relu").empty(), "nodes by operator");
  expect(num_vertices(sg::def_use_graph(graph)) == graph.node_count(), "a graph for Boost");
}

void edits(const sg::Graph& graph) {
  sg::Graph edited = sg::clone(graph);
  const sg::NodeId relu = sg::nodes_calling(edited, "aten::relu").front();
  edited.set_note(relu, "mark", "here");
  expect(edited.note(relu, "mark") == "here", "notes");
  edited.set_region(relu, sg::Graph::kRootRegion);
  sg::verify(edited);
  expect(sg::first_difference(edited, graph).has_value(), "an edit shows");
}

void passes() {
  sg::Graph graph = training_step(4);
  sg::functionalize(graph);
  sg::dce(graph);
  sg::cse(graph);
  sg::Pipeline::parse("canonicalize,reinplace").run(graph);
  sg::verify(graph);
  expect(!sg::fx_text(graph).empty(), "as torch.fx prints it");
  sg::Graph checkpointed = training_step(4);
  sg::checkpoint_modules(checkpointed, {});
  std::vector<sg::SizedGraph> captures;
  for (const int64_t batch : {4, 6, 10}) captures.push_back({{{"batch", batch}}, training_step(batch)});
  const sg::SymbolicGraph symbolic = sg::SymbolicGraph::fit(std::move(captures));
  sg::SizeSweep sweep(symbolic);
  const int64_t peak = sg::profile(training_step(32)).leading_peak().bytes;
  expect(sweep.at({{"batch", 32}}).peak_bytes == peak, "a size never captured");
}

void profiles_and_pictures(const sg::Graph& graph) {
  const sg::Profile costs = sg::profile(graph);
  expect(costs.size.parameters == 8 * 16 + 16 + 16 * 4 + 4, "parameters");
  expect(costs.flops.at("forward").matmul == 2 * 4 * (8 * 16 + 16 * 4), "FLOPs");
  expect(costs.timeline().peak().bytes == costs.peak.bytes, "one peak");
  expect(!sg::to_text(costs.summary()).empty() && sg::to_json(costs).contains("peak"), "report");
  const std::string dot = sg::write_dot(sg::ViewModel::of(graph));
  expect(sg::render_svg(dot).find("<svg") != std::string::npos, "a picture");
}

void memory_and_time(const sg::Graph& graph) {
  const sg::DeviceMemory memory = sg::device_memory(graph);
  expect(memory.reserved_peak >= memory.allocated_peak, "reserved");
  const sg::MemoryLayout plan = sg::memory_layout(graph);
  expect(plan.bytes >= plan.bound && plan.bound > 0, "a static plan");
  for (const sg::FragmentationCause& pinned : sg::fragmentation_causes(graph))
    expect(pinned.stuck > 0, "who is to blame");
  sg::GraphProfiler profilers;
  profilers.add(sg::FlopProfiler()).add(sg::MemoryProfiler()).add(sg::TimeProfiler());
  profilers.add("calls", "", [](const sg::Profile&, sg::NodeId) { return std::optional(1.0); });
  const sg::Profile plain = sg::profile(graph);
  const sg::NodeTable table = profilers.run(plain);
  expect(table.at(table.nodes().front(), "calls").forward == 1, "figures of nodes");
  expect(!sg::to_csv(table).empty(), "figures of nodes as lines");
  sg::CachingAllocator allocator(sg::AllocatorSettings::parse("expandable_segments:True"));
  allocator.free(allocator.allocate(1000));
  expect(allocator.stats().reserved.current > 0, "an allocator");
  sg::MeasuredCalls calls;
  sg::measure_calls(graph, calls, {.repeats = 0});
  const sg::DeviceSpec spec = sg::DeviceSpec::named("h100");
  const sg::Profile costs = sg::profile(graph, {.measured = &calls, .spec = &spec});
  expect(costs.time() != nullptr && costs.time()->seconds() > 0, "time");
  expect(costs.peak_with_scratch.bytes >= costs.peak.bytes, "scratch");
}

void replay_and_code() {
  torch::manual_seed(0);
  const auto net = std::make_shared<Net>();
  const at::Tensor x = torch::randn({4, 8});
  const torch::NoGradGuard no_grad;
  const at::Tensor wanted = net->forward(x);
  const sg::Graph graph = forward_of(net, x);
  sg::Interpreter interpreter(graph);
  const sg::ReplayResult result = interpreter.run(sg::Bindings().module(*net).bind("input0", x));
  expect(at::equal(result.outputs[0], wanted), "replay");
  sg::GraphModule module(sg::clone(graph), *net);
  expect(at::equal(module.forward({x})[0], wanted), "a graph as a module");
  expect(!sg::emit_cpp(graph).files.empty() && !sg::emit_python(graph).files.empty(), "code");
}

void deferred() {
  torch::manual_seed(1);
  const auto eager = std::make_shared<Net>();
  torch::manual_seed(1);
  const auto net = sg::deferred_init([] { return std::make_shared<Net>(); });
  expect(sg::is_deferred(*net), "nothing is made yet");
  sg::materialize_module(*net->fc2);
  sg::materialize_module(*net);
  expect(at::equal(net->fc2->weight, eager->fc2->weight), "the very numbers");
  sg::write_weights("weights.pt", {{"fc1.weight", net->fc1->weight}});
}

void checkpoints() {
  const at::Tensor x = torch::randn({3, 3}).set_requires_grad(true);
  sg::checkpoint([](const at::Tensor& in) { return at::relu(in) * 2; }, x).sum().backward();
  expect(x.grad().defined(), "a checkpoint in eager");
}

}  // namespace

void sharding(const sg::Graph& step) {
  const sg::DeviceSpec h100 = sg::DeviceSpec::named("h100");
  const sg::Interconnect links = sg::Interconnect::named("h100");
  const sg::ShardingOptions options{.mesh = sg::DeviceMesh::parse("dp=2"), .device = &h100, .interconnect = &links};
  const sg::ShardingProblem problem = sg::ShardingProblem::of(step, options);
  const sg::AssignmentSolution solution = sg::solve(problem.assignment());
  expect(solution.feasible && solution.cost >= solution.lower_bound, "a plan, and a bound below it");
  const sg::GraphLayouts plan = problem.plan(solution.choice);
  const sg::ShardedGraph mine = sg::apply(step, plan, 1);
  expect(mine.rank == 1 && !sg::to_json(plan, step).empty(), "one device's graph of it");
  expect(sg::apply_to_all(step, plan).size() == 2, "and all of them");
  const sg::ShardingResult answer = sg::shard(step, options, {.compare = true});
  expect(answer.compared.size() == 3 && !sg::to_text(answer).empty(), "beside the plans that people write by hand");
}

void recompute(const sg::Graph& step) {
  const sg::CheckpointCurve curve = sg::CheckpointCurve::of(step);
  const sg::RecomputeCurve figures = sg::RecomputeCurve::of(step, curve);
  expect(!figures.points.empty() && !sg::to_svg(figures, "net").empty(), "the curve of peak against recomputing");
}

int main() {
  const sg::Graph step = training_step(4);
  text_and_files(step);
  analyses(step);
  edits(step);
  passes();
  profiles_and_pictures(step);
  memory_and_time(step);
  replay_and_code();
  deferred();
  checkpoints();
  sharding(step);
  recompute(step);
  std::cout << (failures == 0 ? "every feature as expected\n" : "failed\n");
  return failures == 0 ? 0 : 1;
}
