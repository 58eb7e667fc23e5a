#include "shadowgraph/capture/exported_program.h"

#include <gmock/gmock.h>

#include <fstream>

#include "shadowgraph/graph/text.h"
#include "tests/core/capture/exported/archive_writer.h"

namespace shadowgraph {
namespace {

using ::testing::HasSubstr;
using testing::input;
using testing::Json;
using testing::linear_archive;
using testing::named;
using testing::node;
using testing::size_json;
using testing::tensor_json;
using testing::TestArchive;

struct CapturedProgram {
  Graph graph;
  size_t parameters = 0;
};

CapturedProgram run(const std::string& path, const std::vector<std::string>& inputs = {}, bool train = false,
                    std::optional<c10::ScalarType> dtype = std::nullopt) {
  ExportedProgram program = ExportedProgram::load(path);
  FakeTensorMode mode({.device = at::kCPU, .map_devices_to_default = true});
  program.make_fake(mode, dtype);
  std::vector<TensorSpec> specs;
  for (const std::string& text : inputs) specs.push_back(parse_tensor_spec(text));
  const ProgramToCapture capture = program.program(program.make_inputs(specs));
  const c10::AutoGradMode grad(train);
  return {(train ? capture_training_step(capture) : capture_forward(capture)).graph, program.parameters().size()};
}

std::string error_of(const TestArchive& archive, const std::vector<std::string>& inputs = {}) {
  const std::string path = archive.write("refused.pt2");
  try {
    run(path, inputs);
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr(path));
    return error.what();
  }
  return "no error";
}

std::string text_of(const TestArchive& archive, const std::vector<std::string>& inputs = {}) {
  return to_text(run(archive.write("run.pt2"), inputs).graph);
}

TEST(ExportedProgram, RunsWithTheSizesOfTheExample) {
  const std::string path = linear_archive().write("linear.pt2");
  EXPECT_TRUE(ExportedProgram::is_archive(path));
  EXPECT_EQ(ExportedProgram::load(path).inputs(), std::vector<std::string>{"x f32[s0 = 2 (2 to 8), 3]"});
  const std::string text = to_text(run(path).graph);
  EXPECT_THAT(text, HasSubstr("sg::parameter(name=\"fc.weight\") : f32[4,3]"));
  EXPECT_THAT(text, HasSubstr("sg::input(name=\"x\") : f32[2,3]"));
  EXPECT_THAT(text, HasSubstr("f32[2,4]"));
  // Module names with their classes, and the innermost source line outside PyTorch.
  EXPECT_THAT(text, HasSubstr("module \"fc\" \"Linear\""));
  EXPECT_THAT(text, HasSubstr("\"/net.py:7\""));
}

TEST(ExportedProgram, ANodeWithoutATraceHasNoLine) {
  TestArchive archive = linear_archive();
  archive.graph()["nodes"][1]["metadata"].erase("stack_trace");
  const std::string text = text_of(archive);
  const size_t relu = text.find("= aten::relu(");
  ASSERT_NE(relu, std::string::npos) << text;
  EXPECT_EQ(text.find("/net.py:7", relu), std::string::npos) << text;
  EXPECT_NE(text.find("/net.py:7"), std::string::npos) << text;
}

TEST(ExportedProgram, RunsWithOtherSizes) {
  EXPECT_THAT(text_of(linear_archive(), {"f32[8,3]"}), HasSubstr("f32[8,4]"));
}

TEST(ExportedProgram, TrainsItsParameters) {
  const CapturedProgram trained = run(linear_archive().write("train.pt2"), {}, /*train=*/true);
  EXPECT_EQ(trained.parameters, 2);
  const std::string text = to_text(trained.graph);
  EXPECT_THAT(text, HasSubstr("aten::threshold_backward"));
  EXPECT_THAT(text, HasSubstr("sg::gradient"));
}

TEST(ExportedProgram, NamesTheDimensionThatCannotBe) {
  EXPECT_THAT(error_of(linear_archive(), {"f32[2,4]"}), HasSubstr("dimension 1 of input 'x' cannot be 4"));
  EXPECT_THAT(error_of(linear_archive(), {"f32[9,3]"}), HasSubstr("s0 must be 2 to 8"));
  EXPECT_THAT(error_of(linear_archive(), {"f32[2,3,1]"}), HasSubstr("must have 2 dimensions, not 3"));
  EXPECT_THAT(error_of(linear_archive(), {"i64[2,3]"}), HasSubstr("'x' must be f32, not i64"));
  EXPECT_THAT(error_of(linear_archive(), {"f32[2,3]", "f32[2,3]"}), HasSubstr("takes 1 inputs"));
}

TEST(ExportedProgram, ConvertsFloatingPoint) {
  const std::string path = linear_archive().write("bf16.pt2");
  EXPECT_THAT(to_text(run(path, {}, false, at::kBFloat16).graph), HasSubstr("sg::input(name=\"x\") : bf16[2,3]"));
}

TEST(ExportedProgram, KeepsTiedWeightsTied) {
  TestArchive archive = linear_archive();
  // One alias of the same bytes with the same geometry, and one of a part of them.
  archive.weights["config"]["head.weight"] = archive.weights["config"]["fc.weight"];
  archive.weights["config"]["rows"] = archive.weights["config"]["fc.weight"];
  archive.weights["config"]["rows"]["tensor_meta"]["sizes"][0] = size_json(2);
  archive.weights["config"]["rows"]["is_param"] = false;
  const std::string text = text_of(archive);
  EXPECT_THAT(text, HasSubstr("s0 = 48 cpu parameter"));
  EXPECT_THAT(text, Not(HasSubstr("head.weight"))) << "the first name is used";
  EXPECT_THAT(text, HasSubstr("sg::alias(source=%0) : f32[2,3] @s0"));
}

// The bytes before the weight's offset also stay allocated, even if no other weight refers to them.
TEST(ExportedProgram, AWeightThatBeginsLaterHoldsItsWholeRecord) {
  TestArchive archive = linear_archive();
  archive.weights["config"]["fc.weight"]["tensor_meta"]["storage_offset"] = size_json(2);
  archive.records["data/weights/weight_0"] = std::string(56, '\1');
  const std::string text = text_of(archive);
  EXPECT_THAT(text, HasSubstr("s0 = 56 cpu parameter"));
  EXPECT_THAT(text, HasSubstr("sg::parameter(name=\"fc.weight\") : f32[4,3] @s0+2"));
}

// Bytes of floating-point weights are never read, not even to verify their checksum.
TEST(ExportedProgram, DoesNotReadWeights) {
  TestArchive archive = linear_archive();
  archive.records["data/weights/weight_0"] = std::string(24, 'w') + "here" + std::string(20, 'w');
  const std::string path = archive.write("unread.pt2");
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  file.seekp(static_cast<std::streamoff>(bytes.find("here")));
  file << "lost";
  file.close();
  EXPECT_THAT(to_text(run(path).graph), HasSubstr("aten::addmm"));
}

// A small integer buffer is read because its value determines the size of a result.
TEST(ExportedProgram, KnowsSmallIntegers) {
  TestArchive archive = linear_archive();
  const Json count = tensor_json(5, {size_json(2)}, {1});
  const std::string bytes("\5\0\0\0\0\0\0\0\7\0\0\0\0\0\0\0", 16);  // 5 and 7
  archive.add_weight("count", "weight_2", count, bytes, /*is_parameter=*/false);
  archive.graph()["inputs"].insert(archive.graph()["inputs"].begin(), named("n"));
  archive.graph()["tensor_values"]["n"] = count;
  auto& specs = archive.signature()["input_specs"];
  Json spec;
  spec["buffer"] = {{"arg", {{"name", "n"}}}, {"buffer_name", "count"}, {"persistent", true}};
  specs.insert(specs.begin(), spec);
  Json select =
      node("torch.ops.aten.select.int",
           {input("self", named("n")), input("dim", {{"as_int", 0}}), input("index", {{"as_int", 1}})}, "one");
  Json item = node("torch.ops.aten.item.default", {input("self", named("one"))}, "size");
  item["outputs"] = {{{"as_sym_int", {{"as_name", "size"}}}}};
  Json ones = node("torch.ops.aten.ones.default",
                   {input("size", {{"as_sym_ints", {{{"as_name", "size"}}, {{"as_int", 3}}}}})}, "ones");
  archive.graph()["nodes"].push_back(select);
  archive.graph()["nodes"].push_back(item);
  archive.graph()["nodes"].push_back(ones);
  archive.graph()["outputs"] = {named("ones")};
  archive.signature()["output_specs"] = {{{"user_output", {{"arg", named("ones")}}}}};
  EXPECT_THAT(text_of(archive), HasSubstr("aten::ones(size=[7, 3]) : f32[7,3]"));
}

TEST(ExportedProgram, WritesMutatedBuffersBack) {
  TestArchive archive = linear_archive();
  const Json state = tensor_json(7, {size_json(2), size_json(4)}, {4, 1});
  archive.add_weight("state", "weight_2", state, std::string(32, '\0'), /*is_parameter=*/false);
  archive.graph()["inputs"].insert(archive.graph()["inputs"].begin(), named("st"));
  archive.graph()["tensor_values"]["st"] = state;
  auto& specs = archive.signature()["input_specs"];
  Json spec;
  spec["buffer"] = {{"arg", {{"name", "st"}}}, {"buffer_name", "state"}, {"persistent", true}};
  specs.insert(specs.begin(), spec);
  archive.graph()["outputs"] = {named("relu"), named("linear")};
  archive.signature()["output_specs"] = {{{"buffer_mutation", {{"arg", {{"name", "relu"}}}, {"buffer_name", "state"}}}},
                                         {{"user_output", {{"arg", named("linear")}}}}};
  EXPECT_THAT(text_of(archive), HasSubstr("aten::copy_(self=%2, src=%6"));
  archive.signature()["output_specs"][0]["buffer_mutation"]["buffer_name"] = "absent";
  EXPECT_THAT(error_of(archive), HasSubstr("writes to 'absent'"));
}

TEST(ExportedProgram, NamesTheNodeThatCannotRun) {
  TestArchive archive = linear_archive();
  Json& relu = archive.graph()["nodes"][1];
  relu["target"] = "torch.ops.mylib.sparkle.default";
  EXPECT_THAT(error_of(archive),
              AllOf(HasSubstr("node 'relu'"), HasSubstr("/net.py:7"), HasSubstr("mylib::sparkle is not registered")));
  relu["target"] = "torch.ops.higher_order.while_loop";
  EXPECT_THAT(error_of(archive), HasSubstr("higher-order operator is not supported"));
  relu["target"] = "numpy.tile";
  EXPECT_THAT(error_of(archive), HasSubstr("Python function"));
  relu["target"] = "torch.ops.aten.mm.default";
  EXPECT_THAT(error_of(archive), HasSubstr("argument 'mat2' is missing"));
  relu =
      node("torch.ops.aten.view.default", {input("self", named("linear")), input("size", {{"as_ints", {5}}})}, "relu");
  EXPECT_THAT(error_of(archive), HasSubstr("shape '[5]' is invalid"));
  relu = node("torch.ops.aten.to.dtype", {input("self", named("linear")), input("dtype", {{"as_int", 99}})}, "relu");
  EXPECT_THAT(error_of(archive), HasSubstr("argument 'dtype'"));
  relu =
      node("torch.ops.aten.add.Tensor",
           {input("self", named("linear")), input("other", {{"as_custom_obj", {{"name", "o"}, {"class_fqn", "C"}}}})},
           "relu");
  EXPECT_THAT(error_of(archive), HasSubstr("an object of class C"));
}

TEST(ExportedProgram, SaysWhereAnArchiveIsDamaged) {
  const auto with = [](auto change) {
    TestArchive archive = linear_archive();
    change(archive);
    return error_of(archive);
  };
  EXPECT_THAT(with([](TestArchive& a) { a.graph()["nodes"][1].erase("target"); }),
              HasSubstr("models/model.json: graph_module.graph.nodes[1].target is missing"));
  EXPECT_THAT(with([](TestArchive& a) { a.graph()["nodes"][1]["inputs"][0]["arg"] = named("later"); }),
              HasSubstr("is 'later', which no earlier node defines"));
  EXPECT_THAT(with([](TestArchive& a) { a.graph()["tensor_values"]["x"]["dtype"] = 99; }),
              HasSubstr("99, which is not a known dtype"));
  EXPECT_THAT(with([](TestArchive& a) { a.graph()["tensor_values"]["x"]["sizes"][1] = size_json(-3); }),
              HasSubstr("sizes[1] is a negative size"));
  EXPECT_THAT(with([](TestArchive& a) { a.graph()["tensor_values"]["x"]["layout"] = 1; }), HasSubstr("strided"));
  EXPECT_THAT(with([](TestArchive& a) { a.program["schema_version"]["major"] = 9; }),
              AllOf(HasSubstr("schema version 9"), HasSubstr("PyTorch 2.13.0")));
  EXPECT_THAT(with([](TestArchive& a) { a.weights["config"].erase("fc.bias"); }),
              HasSubstr("weight 'fc.bias' is missing"));
  EXPECT_THAT(with([](TestArchive& a) { a.records.erase("data/weights/weight_1"); }),
              HasSubstr("no record data/weights/weight_1"));
  EXPECT_THAT(with([](TestArchive& a) { a.records["data/weights/weight_1"] = "abc"; }),
              HasSubstr("'fc.bias' is larger than its record"));
  EXPECT_THAT(with([](TestArchive& a) { a.format = "exe"; }),
              HasSubstr("record 'archive_format' is missing or is not 'pt2'"));
  EXPECT_THAT(with([](TestArchive& a) {
                a.signature()["output_specs"][0] = {
                    {"gradient_to_parameter", {{"arg", {{"name", "relu"}}}, {"parameter_name", "fc.bias"}}}};
              }),
              HasSubstr("a joint forward-backward graph"));
}

TEST(ExportedProgram, RefusesTornFilesAndOthers) {
  const std::string whole = linear_archive().write("whole.pt2");
  std::ifstream file(whole, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const std::string torn = ::testing::TempDir() + "torn.pt2";
  for (size_t size = 0; size < bytes.size(); size += 97) {
    std::ofstream(torn, std::ios::binary) << bytes.substr(0, size);
    EXPECT_THROW(ExportedProgram::load(torn), Error) << size;
    EXPECT_EQ(ExportedProgram::is_archive(torn), size >= 64) << size << ": the first record's name is there or not";
  }
  EXPECT_THROW(ExportedProgram::load(::testing::TempDir() + "absent.pt2"), FileError);
  EXPECT_FALSE(ExportedProgram::is_archive(::testing::TempDir() + "absent.pt2"));
}

}  // namespace
}  // namespace shadowgraph
