// Round trips of the text format: hand-built graphs with every kind of argument, presets, goldens.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>

#include "ir/records.h"
#include "ir/text/words.h"
#include "shadowgraph/graph/libtorch.h"
#include "tests/ir/samples.h"

namespace shadowgraph {
namespace {

using samples::expect_round_trip;

// Appends a call of a function that accepts any argument: `f(<type> x) -> ()`.
NodeId call(Graph& graph, const std::string& type, const Argument& argument) {
  const TargetId target = graph.intern_target(Target(TargetKind::kFunction, "test::f(" + type + " x) -> ()"));
  return graph.append(target, {argument});
}

std::string argument_text(Graph& graph, const std::string& type, const Argument& argument) {
  const std::string line = to_text(graph, call(graph, type, argument));
  const size_t begin = line.find("(x=") + 3;
  return line.substr(begin, line.rfind(')') - begin);
}

TEST(IrText, FactsAtTheHeadAreFields) {
  const std::string text =
      "shadowgraph 1 libtorch " TORCH_VERSION
      "\n"
      "meta \"author\" = \"nobody\"\nmeta \"batch\" = \"8\"\nmeta \"device\" = \"cuda:0\"\nmeta \"dtype\" = \"bf16\"\n"
      "meta \"mode\" = \"train\"\nmeta \"seq\" = \"-3\"\nmeta \"step\" = \"steady\"\n";
  const Graph graph = parse(text);
  EXPECT_EQ(graph.metadata.batch, 8);
  EXPECT_EQ(graph.metadata.seq, -3);
  EXPECT_EQ(graph.metadata.device, c10::Device(c10::kCUDA, 0));
  EXPECT_EQ(graph.metadata.dtype, at::kBFloat16);
  EXPECT_EQ(graph.metadata.mode, ProgramMode::kTrain);
  EXPECT_EQ(graph.metadata.step, TrainingStep::kSteady);
  EXPECT_EQ(graph.metadata.model, std::nullopt);
  EXPECT_EQ(graph.metadata.other, (std::map<std::string, std::string>{{"author", "nobody"}}));
  EXPECT_EQ(to_text(graph), text);
  expect_round_trip(graph);
  // Invalid and non-canonical values are refused, with their position.
  for (const char* line : {"meta \"device\" = \"gpu\"", "meta \"batch\" = \"08\"", "meta \"mode\" = \"\"",
                           "meta \"step\" = \"second\"", "meta \"dtype\" = \"float\""}) {
    try {
      parse("shadowgraph 1 libtorch 2.13.0\n" + std::string(line) + "\n");
      ADD_FAILURE() << line;
    } catch (const ParseError& error) {
      EXPECT_EQ(error.line(), 2) << line;
      EXPECT_NE(std::string(error.what()).find("is not"), std::string::npos) << error.what();
    }
  }
}

TEST(IrText, TrainingSampleIsCanonicalAndValid) {
  const Graph graph = parse(samples::kTraining);
  EXPECT_EQ(to_text(graph), samples::kTraining);
  EXPECT_NO_THROW(verify(graph));
  expect_round_trip(graph);
}

TEST(IrText, ArgumentsOfEveryKind) {
  Graph graph;
  const auto text = [&](const char* type, const Argument& a) { return argument_text(graph, type, a); };
  EXPECT_EQ(text("Tensor?", Argument::none()), "None");
  EXPECT_EQ(text("int", Argument::of_int(1)), "1");
  EXPECT_EQ(text("Scalar", Argument::of_float(1)), "1.0");
  EXPECT_EQ(text("Scalar", Argument::of_bool(true)), "true");
  EXPECT_EQ(text("Scalar", graph.complex_argument(1, -0.0)), "complex(1.0, -0.0)");
  EXPECT_EQ(text("str", graph.string_argument("a\"\n\x01\xc3\xa9\\")), R"("a\"\n\x01\xc3\xa9\\")");
  EXPECT_EQ(text("Device", Argument::of_device(c10::Device(c10::kCUDA, 1))), "cuda:1");
  EXPECT_EQ(text("Device", Argument::of_device(c10::Device(c10::kCPU))), "cpu");
  EXPECT_EQ(text("Generator?", Argument::of_device(c10::Device(c10::kCPU), ArgumentKind::kGenerator)),
            "generator(cpu)");
  EXPECT_EQ(text("int[]", graph.int_list(std::vector<int64_t>{1, -2})), "[1, -2]");
  EXPECT_EQ(text("int[]", graph.int_list({})), "[]");
  EXPECT_EQ(text("int[]", graph.make_list({})), "list[]");
  EXPECT_EQ(text("float[]", graph.int_list({})), "ints[]");
  EXPECT_EQ(text("float[]", graph.make_list({})), "[]");
  EXPECT_EQ(text("bool[]", graph.make_list(std::vector{Argument::of_bool(true), Argument::of_bool(false)})),
            "[true, false]");
  EXPECT_EQ(text("Tensor?[]", graph.make_list(std::vector{Argument::none()})), "[None]");
  const auto inner = graph.make_list(std::vector{graph.string_argument("a")});
  EXPECT_EQ(text("str[][]", graph.make_list(std::vector{inner, inner})), "[[\"a\"], [\"a\"]]");
  Argument opaque = graph.string_argument("torch.Thing");
  opaque.kind = ArgumentKind::kOpaque;
  EXPECT_EQ(text("Any", opaque), "opaque(\"torch.Thing\")");
  // Enum values are printed as words if the schema has the type, and as numbers otherwise or if out of range.
  EXPECT_EQ(text("ScalarType?", Argument::of_int(6)), "f32");
  EXPECT_EQ(text("ScalarType", Argument::of_int(15)), "bf16");
  EXPECT_EQ(text("ScalarType", Argument::of_int(1000)), "1000");
  EXPECT_EQ(text("ScalarType", Argument::of_int(262)), "262");
  EXPECT_EQ(text("Layout?", Argument::of_int(0)), "strided");
  EXPECT_EQ(text("MemoryFormat?", Argument::of_int(2)), "channels_last");
  EXPECT_EQ(text("int", Argument::of_int(6)), "6");
  EXPECT_EQ(text("int", Argument::of_int(std::numeric_limits<int64_t>::min())), "-9223372036854775808");
  const ConstantId constant = graph.add_constant(at::tensor({1.5F, -0.0F}));
  EXPECT_EQ(text("Tensor", Argument::of_constant(constant)), "c0");
  expect_round_trip(graph);
}

TEST(IrText, ComplexNumbersDifferInBothParts) {
  const auto graph_with = [](double real, double imaginary) {
    Graph graph;
    call(graph, "Scalar", graph.complex_argument(real, imaginary));
    return graph;
  };
  EXPECT_FALSE(first_difference(graph_with(1, 2), graph_with(1, 2)));
  EXPECT_TRUE(first_difference(graph_with(1, 2), graph_with(1, 3)));
  EXPECT_TRUE(first_difference(graph_with(1, 2), graph_with(0, 2)));
  EXPECT_TRUE(first_difference(graph_with(1, 0.0), graph_with(1, -0.0)));
}

TEST(IrText, FloatsKeepTheirBits) {
  Graph graph;
  const double quiet = std::numeric_limits<double>::quiet_NaN();
  for (const double value :
       {0.0, -0.0, 1.0, 0.1, 1e300, 5e-324, -1.7976931348623157e308, quiet, -quiet,
        std::bit_cast<double>(uint64_t{0x7ff8000000000001}), std::numeric_limits<double>::infinity(),
        -std::numeric_limits<double>::infinity(), 1e16, 123456789012345680.0}) {
    call(graph, "float", Argument::of_float(value));
  }
  const Graph back = parse(to_text(graph));
  NodeId b = back.first();
  for (NodeId n : graph.nodes()) {
    ASSERT_EQ(back.arguments(b)[0].kind, ArgumentKind::kFloat);
    EXPECT_EQ(std::bit_cast<uint64_t>(back.arguments(b)[0].d), std::bit_cast<uint64_t>(graph.arguments(n)[0].d))
        << to_text(graph, n);
    b = back.node(b).next;
  }
  expect_round_trip(graph);
}

TEST(IrText, EveryDtypeLayoutAndDeviceHasItsWord) {
  for (int i = 0; i <= static_cast<int>(c10::ScalarType::Undefined); ++i) {
    const auto dtype = static_cast<c10::ScalarType>(i);
    EXPECT_EQ(parse_dtype(dtype_word(dtype)), dtype);
  }
  EXPECT_EQ(dtype_word(c10::kFloat), "f32");
  EXPECT_EQ(dtype_word(c10::kBFloat16), "bf16");
  EXPECT_EQ(dtype_word(c10::kLong), "i64");
  EXPECT_EQ(dtype_word(c10::kBool), "bool");
  EXPECT_EQ(dtype_word(c10::kFloat8_e4m3fn), "f8e4m3fn");
  EXPECT_EQ(dtype_word(c10::kComplexFloat), "c64");
  EXPECT_EQ(dtype_word(c10::kUInt16), "u16");
  for (int i = 0; i < 8; ++i) {
    EXPECT_EQ(parse_layout(layout_word(static_cast<c10::Layout>(i))), static_cast<c10::Layout>(i));
  }
  EXPECT_EQ(layout_word(c10::kJagged), "jagged");
  for (const char* name : {"cpu", "cuda:0", "cuda:127", "meta", "xla:3", "privateuseone:1"}) {
    const auto device = parse_device(name);
    ASSERT_TRUE(device) << name;
    EXPECT_EQ(*device, c10::Device(name));
    std::string text;
    append_device(text, *device);
    EXPECT_EQ(text, name);
  }
  for (const char* name : {"cpu:1", "cuda:", "cuda:-1", "cuda:200", "gpu", ""})
    EXPECT_FALSE(parse_device(name)) << name;
}

TEST(IrText, ConstantsComeBackBitByBit) {
  Graph graph;
  const at::Tensor base = at::arange(12, at::kFloat).reshape({3, 4});
  const std::vector<at::Tensor> tensors = {
      base,
      base.t(),                                     // other strides
      base.slice(1, 0, 4, 2),                       // gaps between elements
      at::scalar_tensor(3.5).expand({1000, 1000}),  // stride 0: one element in the text
      at::empty({0, 7}),
      at::scalar_tensor(true),
      at::full({2}, std::nan(""), at::kDouble),
      at::ones({3}, at::kBFloat16),
      at::complex(base, -base),
      at::complex(base, -base).conj(),  // the conjugate bit is not part of the bytes
      at::_neg_view(base),
  };
  for (const at::Tensor& tensor : tensors) call(graph, "Tensor", Argument::of_constant(graph.add_constant(tensor)));
  const std::string text = to_text(graph);
  EXPECT_LT(text.size(), 2500U) << "the expanded tensor was printed element by element";
  const Graph back = parse(text);
  ASSERT_EQ(back.constant_count(), tensors.size());
  for (uint32_t i = 0; i < tensors.size(); ++i) {
    const at::Tensor& tensor = back.constant(ConstantId(i));
    EXPECT_EQ(tensor.sizes(), tensors[i].sizes());
    EXPECT_EQ(tensor.strides(), tensors[i].strides());
    EXPECT_TRUE(at::allclose(tensor.to(at::kComplexDouble), tensors[i].to(at::kComplexDouble), 0, 0, true)) << i;
  }
  expect_round_trip(graph);
}

// Base64 is canonical: unused bits before the padding must be 0.
TEST(IrText, Base64HasOneTextForSomeBytes) {
  using Bytes = std::vector<uint8_t>;
  EXPECT_EQ(parse_base64("QQ=="), Bytes{'A'});
  EXPECT_EQ(parse_base64("QUI="), (Bytes{'A', 'B'}));
  EXPECT_EQ(parse_base64("QUJD"), (Bytes{'A', 'B', 'C'}));
  for (const char* text : {"QR==", "QUJ=", "QQ", "QQ=", "Q===", "QQ==QQ==", "QU=D", "Q\n=="}) {
    EXPECT_EQ(parse_base64(text), std::nullopt) << text;
  }
}

TEST(IrText, UnreadableConstantsAreSaidToBe) {
  Graph graph;
  call(graph, "Tensor", Argument::of_constant(graph.add_constant(at::empty({2}, at::kMeta))));
  EXPECT_NE(to_text(graph).find("c0 = unreadable\n"), std::string::npos);
  EXPECT_FALSE(parse(to_text(graph)).constant(ConstantId(0)).defined());
}

TEST(IrText, DefaultsAreLeftOutAndRestored) {
  Graph graph;
  const TargetId sum = graph.intern_operator("aten::max_pool2d");
  const auto pair = [&](int64_t i) { return graph.int_list(std::vector<int64_t>{i, i}); };
  graph.append(sum, {Argument::none(), pair(2), graph.int_list({}), pair(0), pair(1), Argument::of_bool(false)});
  graph.append(sum, {Argument::none(), pair(2), pair(2), pair(1), pair(1), Argument::of_bool(true)});
  const TargetId add = graph.intern_operator("aten::add.Tensor");
  graph.append(add, {Argument::none(), Argument::none(), Argument::of_int(1)});
  graph.append(add, {Argument::none(), Argument::none(), Argument::of_float(1)});  // not the default 1
  EXPECT_NE(to_text(graph).find("n0: aten::max_pool2d(self=None, kernel_size=[2, 2])\n"), std::string::npos)
      << to_text(graph);
  EXPECT_NE(to_text(graph).find("n1: aten::max_pool2d(self=None, kernel_size=[2, 2], stride=[2, 2], padding=[1, 1], "
                                "ceil_mode=true)\n"),
            std::string::npos);
  EXPECT_NE(to_text(graph).find("n2: aten::add.Tensor(self=None, other=None)\n"), std::string::npos);
  EXPECT_NE(to_text(graph).find("n3: aten::add.Tensor(self=None, other=None, alpha=1.0)\n"), std::string::npos);
  expect_round_trip(graph);
}

// Every schema of libtorch round-trips, in a call with only None and defaults.
TEST(IrText, EveryRegisteredSchemaComesBack) {
  Graph graph;
  size_t count = 0;
  for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const auto op = c10::Dispatcher::singleton().findSchema(name);
    // toString prints an alias set (b|a) in the order of a hash set.
    if (!op || toString(op->schema()).find('|') != std::string::npos) continue;
    const TargetId target = intern_operator(graph, *op);
    std::vector<Argument> arguments(op->schema().arguments().size());
    graph.append(target, arguments);
    ++count;
  }
  EXPECT_GT(count, 3000U);
  expect_round_trip(graph);
}

TEST(IrText, ResultsStructureAndTypes) {
  Graph graph;
  const TargetId f = graph.intern_target(
      Target(TargetKind::kFunction, "test::g(Tensor x) -> (Tensor, Tensor[], Tensor, int, float, bool)"));
  const NodeId n = graph.append(f, {Argument::none()});
  const StorageId s = graph.add_storage({.bytes = 1000, .device_type = c10::kCUDA, .device_index = 0, .born = n});
  const std::vector<int64_t> sizes{2, 3}, strides{1, 2}, none;
  const auto a = graph.new_tensor(n, {.sizes = sizes,
                                      .strides = strides,
                                      .storage = s,
                                      .offset = 4,
                                      .device = c10::Device(c10::kCUDA, 0),
                                      .requires_grad = true});
  const auto b = graph.new_tensor(n, {.dtype = at::kBool, .sizes = none, .strides = none, .storage = s});
  const auto c = graph.new_tensor(n, {.sizes = none, .strides = none, .offset = 7, .layout = c10::kSparse});
  const auto list = graph.make_list(std::vector{Argument::of_value(b), Argument::none(), Argument::of_value(c)});
  graph.set_results(n, std::vector{Argument::of_value(a), list, Argument::none(),
                                   Argument::of_value(graph.new_scalar(n, ValueKind::kInt)),
                                   Argument::of_value(graph.new_scalar(n, ValueKind::kFloat)),
                                   Argument::of_value(graph.new_scalar(n, ValueKind::kBool))});
  EXPECT_EQ(to_text(graph, n),
            "n0: %0, [%1, None, %2], None, %3, %4, %5 = test::g(x=None) : f32[2,3]{1,2} @s0+4 grad, "
            "[bool[] @s0 cpu, None, f32[] @none+7 cpu sparse_coo], None, int, float, bool");
  expect_round_trip(graph);
}

TEST(IrText, ErasedThingsVanishAndTheRestIsRenumbered) {
  Graph graph = parse(samples::kTraining);
  // The text is canonical, whatever the creation order and whatever was erased.
  graph.intern("unused");
  graph.intern_target(Target(TargetKind::kFunction, "test::unused(Tensor x) -> Tensor"));
  graph.add_storage({.bytes = 77});
  graph.add_constant(at::ones({3}));
  NodeId dropout;
  for (NodeId n : graph.nodes()) {
    if (graph.target(n).name() == "aten::native_dropout") dropout = n;
  }
  graph.erase(dropout);
  const std::string text = to_text(graph);
  EXPECT_EQ(text.find("dropout"), std::string::npos);
  EXPECT_EQ(text.find("77"), std::string::npos);
  EXPECT_EQ(text.find("c0"), std::string::npos);
  EXPECT_NE(text.find("n6: %6 = aten::t(self=%2) : f32[3,4]{1,3} @s2 | backward of n4"), std::string::npos) << text;
  expect_round_trip(graph);
}

TEST(IrText, TargetsOfOneNameAreKeptApart) {
  Graph graph;
  const auto target = [&](const char* schema) { return graph.intern_target(Target(TargetKind::kFunction, schema)); };
  graph.append(target("test::f(Tensor x) -> ()"), {Argument::none()});
  graph.append(target("test::f(Tensor x, int y) -> ()"), {Argument::none(), Argument::of_int(3)});
  graph.append(target("sg::input(int z) -> ()"), {Argument::of_int(3)});
  EXPECT_NE(to_text(graph).find("n1: test::f#2(x=None, y=3)\nn2: sg::input#2(z=3)\n"), std::string::npos)
      << to_text(graph);
  expect_round_trip(graph);
}

TEST(IrText, VariadicArgumentsFollowByPosition) {
  Graph graph;
  const TargetId f = graph.intern_target(Target(TargetKind::kFunction, "test::v(int x, ...) -> ..."));
  graph.append(f, {Argument::of_int(1), Argument::of_float(2), graph.string_argument("three")});
  EXPECT_EQ(to_text(graph, graph.first()), "n0: test::v(x=1, 2.0, \"three\")");
  expect_round_trip(graph);
}

TEST(IrText, MetadataDependenciesAndRegionsRoundTrip) {
  Graph graph = parse(samples::kTraining);
  graph.metadata.other["line\nbreak"] = std::string("\0\xff", 2);
  graph.guards.push_back({Guard::Kind::kHostValue, ValueId(3), -1, "nan"});
  graph.guards.push_back({Guard::Kind::kRank, ValueId(77), -1, "of a value that is gone"});
  mutable_region(graph, Graph::kRootRegion).class_name = graph.intern("Net");
  Region region;
  region.kind = RegionKind::kCheckpoint;
  region.parent = RegionId(2);
  region.name = graph.intern("in");  // a keyword of the grammar
  region.call = 4;
  graph.add_region(region);
  region.kind = RegionKind::kComposite;
  region.target = graph.intern_operator("aten::linear");
  graph.add_region(region);  // a name different from the operator's
  expect_round_trip(graph);
}

TEST(IrText, Short) {
  const Graph graph = parse(samples::kTraining);
  const std::string text = to_text(graph, PrintPreset::kShort);
  EXPECT_NE(text.find("%4 = mm(%2, %3) : f32[4,2]\n"), std::string::npos) << text;
  EXPECT_EQ(text.find("@s"), std::string::npos);
}

// Lists up to four elements are printed in full; of longer ones the first three.
TEST(IrText, ShortListsAreWhole) {
  const auto shown = [](const std::string& list) {
    const Graph graph = parse("shadowgraph 1 libtorch 2.13.0\noperator aten::view(Tensor(a) self, SymInt[] size) -> " +
                              ("Tensor(a)\ns0 = 4 cpu input\n%0 = sg::input(name=\"x\") : f32[1] @s0\n"
                               "%1 = aten::view(self=%0, size=[" +
                               list + "]) : f32[1] @s0\n"));
    const std::string text = to_text(graph, PrintPreset::kShort);
    const size_t at = text.find("size=[");
    return at == std::string::npos ? text : text.substr(at + 5, text.find(']', at) - at - 4);
  };
  EXPECT_EQ(shown("1, 1, 1, 1"), "[1, 1, 1, 1]");
  EXPECT_EQ(shown("1, 1, 1, 1, 1"), "[1, 1, 1, ...]");
}

TEST(IrText, FingerprintsOfRepeatedBlocksAreEqual) {
  std::string text =
      "shadowgraph 1 libtorch 2.13.0\noperator aten::mm(Tensor self, Tensor mat2) -> Tensor\n"
      "operator aten::relu(Tensor self) -> Tensor\n";
  for (int i = 0; i < 8; ++i) text += "s" + std::to_string(i) + " = 16 cpu temporary\n";
  text +=
      "%0 = sg::parameter(name=\"a\") : f32[2,2] @s0\n%1 = sg::parameter(name=\"b\") : f32[2,2] @s1\n"
      "%2 = sg::input(name=\"x\") : f32[2,2] @s2\n"
      "%3 = aten::mm(self=%2, mat2=%0) : f32[2,2] @s3 | \"a.cpp:1\"\n%4 = aten::relu(self=%3) : f32[2,2] @s4\n"
      "%5 = aten::mm(self=%4, mat2=%1) : f32[2,2] @s5 | \"b.cpp:2\"\n%6 = aten::relu(self=%5) : f32[2,2] @s6\n"
      "%7 = aten::relu(self=%5) : f32[2,2] @s7\n";
  const Graph graph = parse(text);
  const NodeId second[] = {NodeId(5), NodeId(6)};
  const NodeId other[] = {NodeId(5), NodeId(7)};
  const NodeId broken[] = {NodeId(6), NodeId(7)};
  const std::string expected = to_text(graph, second, PrintPreset::kFingerprint);
  EXPECT_EQ(to_text(graph, other, PrintPreset::kFingerprint), expected);
  EXPECT_NE(to_text(graph, broken, PrintPreset::kFingerprint), expected);
  EXPECT_NE(expected.find("aten::relu(self=^1)"), std::string::npos) << expected;
  EXPECT_NE(expected.find("mat2=<sg::parameter f32[2,2] cpu>"), std::string::npos) << expected;
}

TEST(IrText, Files) {
  const std::string path = ::testing::TempDir() + "/ir_text_test.sg";
  const Graph graph = parse(samples::kTraining);
  write_graph_file(path, graph);
  EXPECT_FALSE(first_difference(read_graph_file(path), graph));
  std::filesystem::remove(path);
  EXPECT_THROW(read_graph_file(path), FileError);
  EXPECT_THROW(write_graph_file("/no/such/folder/x.sg", graph), FileError);
}

TEST(IrText, NoBrokenGraphIsWritten) {
  const std::string path = ::testing::TempDir() + "/ir_text_test_broken.sg";
  std::filesystem::remove(path);
  std::string text = samples::kTraining;
  const size_t place = text.find("f32[3,4]{1,3}");
  ASSERT_NE(place, std::string::npos);
  const Graph broken = parse(text.replace(place, 13, "f32[3,9]{1,3}"));  // exceeds its storage
  EXPECT_THROW(write_graph_file(path, broken), GraphError);
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(IrText, Goldens) {
  const std::filesystem::path folder = std::filesystem::path(SHADOWGRAPH_SOURCE_DIR) / "tests" / "golden" / "ir";
  const Graph graph = parse(samples::kTraining);
  const std::pair<const char*, PrintPreset> presets[] = {{"training.sg", PrintPreset::kCanonical},
                                                         {"training.short.txt", PrintPreset::kShort},
                                                         {"training.fingerprint.txt", PrintPreset::kFingerprint}};
  for (const auto& [name, preset] : presets) {
    const std::string text = to_text(graph, preset);
    if (std::getenv("UPDATE_GOLDEN") != nullptr) {
      std::filesystem::create_directories(folder);
      std::ofstream(folder / name) << text;
    }
    std::ifstream file(folder / name);
    ASSERT_TRUE(file) << "run with UPDATE_GOLDEN=1 to write " << folder / name;
    std::ostringstream golden;
    golden << file.rdbuf();
    EXPECT_EQ(text, of_this_libtorch(golden.str())) << name;
  }
}

}  // namespace
}  // namespace shadowgraph
