// Tests collectives on fake process groups: results, graph nodes, parsing of the graph text, and replay.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "shadowgraph/capture/capture.h"
#include "shadowgraph/capture/process_group.h"
#include "shadowgraph/capture/replay.h"
#include "shadowgraph/graph/analysis.h"
#include "shadowgraph/graph/text.h"
#include "shadowgraph/graph/verify.h"

// DDP and FSDP still call functions that libtorch 2.13 deprecates.
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

namespace shadowgraph::collectives_test {
namespace {

using c10::IValue;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Tensors = std::vector<at::Tensor>;

torch::jit::Stack call(const char* name, torch::jit::Stack arguments) {
  c10::Dispatcher::singleton().findSchemaOrThrow(name, "").callBoxed(arguments);
  return arguments;
}
at::Tensor functional(const std::string& name, torch::jit::Stack arguments) {
  return call(("_c10d_functional::" + name).c_str(), std::move(arguments))[0].toTensor();
}
template <class F>
std::string error_of(F&& f) {
  try {
    f();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "nothing was thrown";
}

std::vector<NodeId> nodes_named(const Graph& graph, std::string_view name) {
  std::vector<NodeId> found;
  for (const NodeId node : graph.nodes()) {
    if (graph.target(node).name() == name) found.push_back(node);
  }
  return found;
}

TEST(FakeMesh, RanksOfAxes) {
  const FakeMesh mesh({{"pp", 2}, {"dp", 3}, {"tp", 4}}, 17);  // 17 = 1 * 12 + 1 * 4 + 1
  EXPECT_EQ(mesh.size(), 24);
  EXPECT_EQ(mesh.coordinate("pp"), 1);
  EXPECT_EQ(mesh.coordinate("dp"), 1);
  EXPECT_EQ(mesh.coordinate("tp"), 1);
  EXPECT_THAT(find_process_group("pp")->ranks, ElementsAre(5, 17));
  EXPECT_THAT(find_process_group("dp")->ranks, ElementsAre(13, 17, 21));
  EXPECT_THAT(find_process_group("tp")->ranks, ElementsAre(16, 17, 18, 19));
  EXPECT_EQ(mesh.group("dp")->getSize(), 3);
  EXPECT_EQ(mesh.group("dp")->getRank(), 1);
  EXPECT_EQ(mesh.world()->getSize(), 24);
  EXPECT_EQ(find_process_group("world")->ranks.size(), 24U);
  EXPECT_FALSE(find_process_group("cp").has_value());
}

TEST(FakeMesh, NamesAreFreeAgain) {
  { const FakeMesh mesh({{"dp", 2}}); }
  EXPECT_FALSE(find_process_group("dp").has_value());
  const FakeMesh mesh({{"dp", 4}});
  EXPECT_EQ(find_process_group("dp")->size, 4);
}

TEST(FakeMesh, RefusesWhatIsNoMesh) {
  EXPECT_THAT(error_of([] {
                FakeMesh({{"dp", 2}, {"tp", 2}}, 4);
              }),
              HasSubstr("rank 4 is not in the mesh of 4 processes"));
  EXPECT_THAT(error_of([] { FakeMesh({{"dp", 2}}, -1); }), HasSubstr("rank -1"));
  EXPECT_THAT(error_of([] { FakeMesh({{"dp", 0}}); }), HasSubstr("size of at least 1, not 0"));
  EXPECT_THAT(error_of([] { FakeMesh({{"dp", 2}, {"dp", 2}}); }), HasSubstr("is already in use"));
  EXPECT_THAT(error_of([] { FakeMesh({}); }), HasSubstr("needs at least one axis"));
  const FakeMesh mesh({{"dp", 2}});
  EXPECT_THAT(error_of([] { FakeMesh({{"tp", 2}, {"dp", 2}}); }), HasSubstr("'dp' already exists"));
  EXPECT_FALSE(find_process_group("tp").has_value());  // the mesh has unregistered its groups
  EXPECT_THAT(error_of([&] { mesh.group("tp"); }), HasSubstr("no axis 'tp'; its axes are dp"));
  EXPECT_THAT(error_of([] { fake_process_group({.name = "x", .size = 2, .rank = 2, .ranks = {}, .axis = {}}); }),
              HasSubstr("rank must be 0 to 1, not 2"));
  EXPECT_THAT(error_of([] { fake_process_group({.name = "x", .size = 2, .rank = 0, .ranks = {1}, .axis = {}}); }),
              HasSubstr("expected 2 ranks, got 1"));
}

TEST(FakeMesh, ReadsAxes) {
  const auto axes = parse_mesh("dp=8,tp=4");
  ASSERT_EQ(axes.size(), 2U);
  EXPECT_EQ(axes[0].name, "dp");
  EXPECT_EQ(axes[1].size, 4);
  for (const char* text : {"", "dp", "dp=", "dp=x", "=3", "dp=8,", "dp=0", "dp=8;tp=4"}) {
    EXPECT_THAT(error_of([&] { parse_mesh(text); }), HasSubstr("dp=8,tp=4")) << text;
  }
}

TEST(Collectives, ResultsOfFunctionalOperators) {
  const FakeMesh mesh({{"tp", 4}});
  const FakeTensorMode mode({.device = at::kCUDA});
  const at::Tensor x = at::empty({8, 6}, at::kBFloat16);
  const auto shape = [](const at::Tensor& t) { return t.sizes().vec(); };
  using Sizes = std::vector<int64_t>;
  EXPECT_EQ(shape(functional("all_reduce", {x, "sum", "tp"})), (Sizes{8, 6}));
  EXPECT_EQ(shape(functional("all_gather_into_tensor", {x, 4, "tp"})), (Sizes{32, 6}));
  EXPECT_EQ(shape(functional("all_gather_into_tensor", {at::empty({}), 4, "tp"})), (Sizes{4}));
  EXPECT_EQ(shape(functional("reduce_scatter_tensor", {x, "sum", 4, "tp"})), (Sizes{2, 6}));
  const IValue in(std::vector<int64_t>{1, 2, 2, 3}), out(std::vector<int64_t>{1, 1, 1, 2});
  EXPECT_EQ(shape(functional("all_to_all_single", {x, out, in, "tp"})), (Sizes{5, 6}));
  const at::Tensor sent = functional("broadcast", {x.t(), 1, "tp"});
  EXPECT_EQ(sent.strides().vec(), (Sizes{8, 1}));  // contiguous, whatever the strides of the operand
  EXPECT_EQ(sent.scalar_type(), at::kBFloat16);
  EXPECT_TRUE(sent.is_cuda());
  // The in-place form and wait_tensor return the operand itself.
  EXPECT_TRUE(functional("all_reduce_", {x, "sum", "tp"}).is_same(x));
  EXPECT_TRUE(functional("wait_tensor", {x}).is_same(x));
  const auto several = call("_c10d_functional::all_gather_into_tensor_coalesced",
                            {Tensors{at::empty({2}), at::empty({3, 5})}, 4, "tp"})[0]
                           .toTensorVector();
  EXPECT_EQ(shape(several[0]), (Sizes{8}));
  EXPECT_EQ(shape(several[1]), (Sizes{12, 5}));
}

// Operators added in 2.14 and 2.15, called by name because earlier libtorch has no methods for them.
TEST(Collectives, OperatorsOfLaterVersions) {
  const FakeMesh mesh({{"tp", 4}}, 1);
  const auto has = [](const char* name) { return c10::Dispatcher::singleton().findSchema({name, ""}).has_value(); };
  if (!has("c10d::gather_into_tensor_")) GTEST_SKIP() << "not in this libtorch";
  Capture session({.mode = {.device = at::kCUDA}});
  const at::Tensor part = at::empty({2, 3}), whole = at::empty({8, 3}), nothing = at::empty({0});
  const auto gather = [&](const at::Tensor& into, int64_t root) {
    return call("c10d::gather_into_tensor_", {into, part, mesh.group("tp"), root, true, int64_t{-1}});
  };
  EXPECT_TRUE(gather(whole, 1)[0].toTensor().is_same(whole));
  EXPECT_TRUE(gather(nothing, 2)[0].toTensor().is_same(nothing));
  EXPECT_THAT(error_of([&] { gather(part, 1); }), HasSubstr("expected 4 x 6 elements"));
  EXPECT_THAT(error_of([&] { gather(whole, 4); }), HasSubstr("root_rank 4 is not a rank"));
  Tensors results{whole};
  if (has("_c10d_functional::wait_tensors")) {
    const auto waited = call("_c10d_functional::wait_tensors", {Tensors{whole, part}})[0].toTensorVector();
    ASSERT_EQ(waited.size(), 2U);
    EXPECT_TRUE(waited[0].is_same(whole) && waited[1].is_same(part));
    results = waited;
  }
  const Graph graph = session.finish(results);
  verify(graph);
  const auto gathers = nodes_named(graph, "c10d::gather_into_tensor_");
  ASSERT_EQ(gathers.size(), 2U);
  const Effects effects = Effects::of(graph);
  EXPECT_EQ(effects.writes(gathers[0]).size() - 1, 1U);  // minus the write that orders collectives
  for (const NodeId n : graph.nodes()) EXPECT_FALSE(effects.unknown(n)) << to_text(graph, n);
}

TEST(Collectives, SizesThatDoNotFitAreRefused) {
  const FakeMesh mesh({{"tp", 4}});
  const FakeTensorMode mode;
  const at::Tensor x = at::empty({6, 6});
  at::Tensor y = at::empty({12, 6});
  auto& group = *mesh.group("tp");
  EXPECT_THAT(error_of([&] { functional("reduce_scatter_tensor", {x, "sum", 4, "tp"}); }), HasSubstr("not divisible"));
  EXPECT_THAT(error_of([&] { functional("all_gather_into_tensor", {x, 2, "tp"}); }), HasSubstr("has 4 processes"));
  EXPECT_THAT(error_of([&] { functional("all_gather_into_tensor", {x.t(), 4, "tp"}); }), HasSubstr("contiguous"));
  EXPECT_THAT(error_of([&] { functional("broadcast", {x, 4, "tp"}); }), HasSubstr("src 4 is not a rank"));
  EXPECT_THAT(error_of([&] {
                functional("all_reduce", {x, "sum", "dp"});
              }),
              AllOf(HasSubstr("no process group named 'dp'"), HasSubstr("FakeMesh")));
  at::Tensor input = x;
  EXPECT_THAT(error_of([&] { group._allgather_base(y, input); }), HasSubstr("expected 4 x 36 elements"));
  std::vector<int64_t> splits{1, 2, 3, 5}, none;
  EXPECT_THAT(error_of([&] { group.alltoall_base(y, input, none, splits); }), HasSubstr("input_split_sizes"));
  std::vector<Tensors> outputs{{x, x}};
  Tensors inputs{x};
  EXPECT_THAT(error_of([&] { group.allgather(outputs, inputs); }),
              HasSubstr("expected 4 tensors, one for each process, but got 2"));
  EXPECT_THAT(error_of([&] { group.send(inputs, 4, 0); }), HasSubstr("dst 4 is not a rank"));
}

// Calls every method of c10d::ProcessGroup that moves tensors and checks its node, its writes and the node of wait().
TEST(Collectives, ThroughProcessGroups) {
  const FakeMesh mesh({{"dp", 2}, {"tp", 4}}, 5);
  Capture session({.mode = {.device = at::kCUDA}});
  auto& group = *mesh.group("tp");
  at::Tensor part = at::empty({2, 3}), whole = at::empty({8, 3}), other = at::empty({8, 3});
  Tensors parts{part}, wholes{whole};
  std::vector<Tensors> lists{{at::empty({2, 3}), at::empty({2, 3}), at::empty({2, 3}), at::empty({2, 3})}}, no_lists;
  std::vector<int64_t> none;
  group.allreduce(parts)->wait();
  group.allreduce_coalesced(parts)->wait();
  group.broadcast(parts)->wait();
  group.reduce(parts)->wait();
  group.allgather(lists, parts)->wait();
  group._allgather_base(whole, part)->wait();
  group.allgather_into_tensor_coalesced(wholes, parts)->wait();
  group.reduce_scatter(parts, lists)->wait();
  group._reduce_scatter_base(part, whole)->wait();
  group.reduce_scatter_tensor_coalesced(parts, wholes)->wait();
  group.alltoall_base(other, whole, none, none)->wait();
  group.alltoall(lists[0], lists[0])->wait();
  group.scatter(parts, no_lists)->wait();  // only the root (rank 0) passes the tensors to send
  group.gather(no_lists, parts)->wait();
  group.send(parts, 2, 7)->wait();
  group.recv(parts, 2, 7)->wait();
  group.barrier()->wait();
  const Graph graph = session.finish({part, whole, other, lists[0][3]});
  verify(graph);
  const Effects effects = Effects::of(graph);
  for (const NodeId n : graph.nodes()) EXPECT_FALSE(effects.unknown(n)) << to_text(graph, n);
  const auto writes = [&](const char* name) {
    const auto nodes = nodes_named(graph, std::string("c10d::") + name);
    EXPECT_EQ(nodes.size(), 1U) << name;
    if (nodes.empty()) return size_t{99};
    EXPECT_TRUE(effects.collective(nodes[0])) << name;
    EXPECT_EQ(process_group_of(graph, nodes[0]), "tp") << name;
    return effects.writes(nodes[0]).size() - 1;  // minus the write that orders collectives
  };
  for (const char* one : {"allreduce_", "allreduce_coalesced_", "broadcast_", "reduce_", "_allgather_base_",
                          "allgather_into_tensor_coalesced_", "reduce_scatter_", "_reduce_scatter_base_",
                          "reduce_scatter_tensor_coalesced_", "alltoall_base_", "scatter_", "recv_"}) {
    EXPECT_EQ(writes(one), 1U) << one;
  }
  EXPECT_EQ(writes("allgather_"), 4U);
  EXPECT_EQ(writes("alltoall_"), 4U);
  for (const char* zero : {"gather_", "send", "barrier"}) EXPECT_EQ(writes(zero), 0U) << zero;

  // Each group is listed once, however often it is used.
  const auto groups = process_groups(graph);
  ASSERT_EQ(groups.size(), 1U);
  EXPECT_EQ(groups[0], (ProcessGroupInfo{.name = "tp", .size = 4, .rank = 1, .ranks = {4, 5, 6, 7}, .axis = "tp"}));

  const std::string text = to_text(graph);
  EXPECT_THAT(text, HasSubstr("process_group=\"tp\", reduce_op=\"sum\""));
  EXPECT_EQ(to_text(parse(text)), text);
}

TEST(Collectives, WaitingIsANodeOnlyOfAsynchronousCalls) {
  const FakeMesh mesh({{"dp", 2}});
  for (const bool asynchronous : {false, true}) {
    Capture session;
    Tensors tensors{at::empty({4})};
    c10d::AllreduceOptions options;
    options.asyncOp = asynchronous;
    const auto work = mesh.group("dp")->allreduce(tensors, options);
    EXPECT_TRUE(work->isCompleted());
    work->wait();
    work->wait();
    EXPECT_TRUE(work->result()[0].is_same(tensors[0]));
    const Graph graph = session.finish({tensors[0]});
    EXPECT_EQ(nodes_named(graph, "_c10d_functional::wait_tensor").size(), asynchronous ? 1U : 0U);
  }
}

// Gradient formulas as registered in PyTorch's Python code; C++ has none for these operators.
struct Gather : torch::autograd::Function<Gather> {
  static at::Tensor forward(torch::autograd::AutogradContext* /*context*/, const at::Tensor& part) {
    return functional("wait_tensor", {functional("all_gather_into_tensor", {part, 4, "tp"})});
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* /*context*/,
                                                 const torch::autograd::variable_list& gradients) {
    return {functional("wait_tensor", {functional("reduce_scatter_tensor", {gradients[0], "sum", 4, "tp"})})};
  }
};

TEST(Collectives, BackwardOnesBelongToForwardOnes) {
  const FakeMesh mesh({{"tp", 4}});
  Capture session;
  const at::Tensor x = at::empty({8, 6}).requires_grad_();
  session.name_parameter(x, "x");
  Gather::apply(x).square().sum().backward();
  EXPECT_EQ(x.grad().sizes(), x.sizes());
  const Graph graph = session.finish({});
  verify(graph);
  const auto scatter = nodes_named(graph, "_c10d_functional::reduce_scatter_tensor");
  ASSERT_EQ(scatter.size(), 1U);
  EXPECT_EQ(graph.node(scatter[0]).phase, Graph::kBackward);
  EXPECT_THAT(nodes_named(graph, "_c10d_functional::all_gather_into_tensor"),
              ElementsAre(graph.node(scatter[0]).forward));
  EXPECT_EQ(functional("all_gather_into_tensor", {x.detach(), 4, "tp"}).size(0), 32);
  EXPECT_EQ(call("_c10d_functional_autograd::all_gather_into_tensor", {x.detach(), 4, "tp"})[0].toTensor().size(0), 32);
}

// After a collective writes to a tensor, its contents are no longer known.
TEST(Collectives, ContentsAreForgotten) {
  const FakeMesh mesh({{"dp", 2}});
  const FakeTensorMode mode;
  Tensors tensors{at::ones({3})};
  ASSERT_TRUE(known_contents(tensors[0]).has_value());
  mesh.group("dp")->allreduce(tensors);
  EXPECT_FALSE(known_contents(tensors[0]).has_value());
  std::vector<Tensors> lists{{at::ones({3}), at::ones({3})}};
  Tensors input{at::ones({3})};
  mesh.group("dp")->allgather(lists, input);
  EXPECT_FALSE(known_contents(lists[0][0]).has_value());
  EXPECT_TRUE(known_contents(input[0]).has_value());
}

Graph sum_over(const char* group) {
  FakeTensorMode mode;
  const at::Tensor x = at::empty({4});
  Capture session;
  session.name_input(x, "x");
  return session.finish({functional("wait_tensor", {functional("all_reduce", {x, "sum", group})})});
}

// A process group of size one that runs collectives for real without a network.
class Alone final : public c10d::Backend {
 public:
  Alone() : Backend(0, 1) {}
  const std::string getBackendName() const override { return "alone"; }
  c10::intrusive_ptr<c10d::Work> allreduce(Tensors& /*tensors*/, const c10d::AllreduceOptions& /*options*/) override {
    struct Done final : c10d::Work {
      bool wait(std::chrono::milliseconds /*timeout*/) override {
        ++waited;
        return true;
      }
    };
    return c10::make_intrusive<Done>();
  }
  static inline int waited = 0;
};

TEST(Collectives, ReplayOnARealGroupAndRefusalWithoutOne) {
  Graph functional_graph, group_graph;
  {
    const FakeMesh mesh({{"dp", 1}});
    functional_graph = sum_over("dp");
    FakeTensorMode mode;
    Tensors tensors{at::empty({4})};
    Capture session;
    session.name_input(tensors[0], "x");
    mesh.group("dp")->allreduce(tensors)->wait();
    group_graph = session.finish({tensors[0]});
  }
  const at::Tensor x = at::arange(4, at::kFloat);
  const auto run = [&](const Graph& graph) { return Interpreter(graph).run(Bindings().bind("x", x)).outputs[0]; };
  EXPECT_THAT(error_of([&] { run(functional_graph); }), HasSubstr("does not exist"));
  EXPECT_THAT(error_of([&] { run(group_graph); }), HasSubstr("no process group named 'dp'"));

  const auto group = c10::make_intrusive<c10d::ProcessGroup>(0, 1);
  group->setBackend(c10::kCPU, c10d::ProcessGroup::CUSTOM, c10::make_intrusive<Alone>());
  c10d::register_process_group("dp", group);
  Alone::waited = 0;
  EXPECT_TRUE(run(functional_graph).equal(x));
  EXPECT_EQ(Alone::waited, 1);
  EXPECT_TRUE(run(group_graph).equal(x));
  EXPECT_EQ(Alone::waited, 2);
  c10d::unregister_process_group("dp");
}

TEST(Collectives, ReplayRefusesAGroupOfAnotherSize) {
  Graph graph;
  {
    const FakeMesh mesh({{"dp", 8}});
    graph = sum_over("dp");
  }
  const FakeMesh mesh({{"dp", 4}});
  const at::Tensor x = at::zeros(4);
  EXPECT_THAT(error_of([&] { Interpreter(graph).run(Bindings().bind("x", x)); }), HasSubstr("has size 4"));
}

TEST(Collectives, RealTensorsAreRefused) {
  const FakeMesh mesh({{"dp", 2}});
  Tensors tensors{at::zeros({3})};
  EXPECT_THAT(error_of([&] { mesh.group("dp")->allreduce(tensors); }), HasSubstr("fake tensors only"));
}

}  // namespace
}  // namespace shadowgraph::collectives_test
