// Round trips of graphs through JSON text.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <functional>
#include <limits>
#include <random>

#include "shadowgraph/graph/text.h"
#include "tests/ir/samples.h"

namespace shadowgraph {
namespace {

using nlohmann::json;

void expect_json_round_trip(const Graph& graph) {
  const std::string text = to_json(graph).dump();
  const Graph back = from_json(json::parse(text));
  const auto difference = first_difference(graph, back);
  EXPECT_FALSE(difference) << *difference;
  EXPECT_EQ(to_text(back), to_text(graph));
  EXPECT_EQ(to_json(back).dump(), text);
}

TEST(IrJson, TrainingSample) { expect_json_round_trip(parse(samples::kTraining)); }

TEST(IrJson, SaysEverything) {
  const json exported = to_json(parse(samples::kTraining));
  const json& add = exported["nodes"][5];
  EXPECT_EQ(add["target"], "aten::add_.Tensor");
  EXPECT_EQ(add["arguments"], json::parse(R"({"self": {"value": 4}, "other": {"value": 1}, "alpha": 1})"));
  EXPECT_EQ(add["writes"], json::parse(R"([{"storage": 3, "version": 1}])"));
  EXPECT_EQ(add["results"][0]["strides"], json::parse("[2, 1]"));
  EXPECT_EQ(exported["nodes"][9]["phase"], "my phase");
}

TEST(IrJson, ArgumentsOfEveryKind) {
  Graph graph;
  const auto call = [&](const std::string& type, const Argument& argument) {
    graph.append(graph.intern_target(Target(TargetKind::kFunction, "test::f(" + type + " x) -> ()")), {argument});
  };
  const double inf = std::numeric_limits<double>::infinity();
  for (const double value : {1.0, -0.0, 0.1, 5e-324, inf, -inf, std::numeric_limits<double>::quiet_NaN()}) {
    call("float", Argument::of_float(value));
  }
  call("Scalar", graph.complex_argument(inf, -0.0));
  call("Scalar", Argument::of_bool(false));
  call("int", Argument::of_int(std::numeric_limits<int64_t>::min()));
  call("ScalarType", Argument::of_int(6));
  call("Layout", Argument::of_int(1));
  call("MemoryFormat", Argument::of_int(3));
  call("str", graph.string_argument("\xff\"\n"));  // not valid UTF-8
  call("str", graph.string_argument("\xc3\xa9"));
  call("Device", Argument::of_device(c10::Device(c10::kCUDA, 2)));
  call("Generator", Argument::of_device(c10::Device(c10::kCPU), ArgumentKind::kGenerator));
  call("int[]", graph.int_list(std::vector<int64_t>{1, 2}));
  call("float[]", graph.int_list(std::vector<int64_t>{1, 2}));
  call("int[]", graph.make_list(std::vector{Argument::of_int(1)}));
  call("str[][]", graph.make_list(std::vector{graph.make_list(std::vector{graph.string_argument("a")})}));
  call("Tensor", Argument::of_constant(graph.add_constant(at::arange(6).reshape({2, 3}).t())));
  Argument opaque = graph.string_argument("Thing");
  opaque.kind = ArgumentKind::kOpaque;
  call("Any", opaque);
  graph.append(graph.intern_target(Target(TargetKind::kFunction, "test::v(int x, ...) -> ...")),
               {Argument::of_int(1), Argument::of_float(2)});
  graph.metadata.other[std::string("\xff", 1)] = "key that is no UTF-8";
  expect_json_round_trip(graph);
}

TEST(IrJson, ErrorsNameThePlace) {
  const json good = to_json(parse(samples::kTraining));
  const auto message_of = [&](const std::function<void(json&)>& change) -> std::string {
    json changed = good;
    change(changed);
    try {
      from_json(changed);
    } catch (const ParseError& error) {
      return error.what();
    }
    return "no error";
  };
  const auto expect = [&](const std::string& message, const std::string& part) {
    EXPECT_NE(message.find(part), std::string::npos) << message;
  };
  expect(message_of([](json& j) { j.erase("nodes"); }), "'nodes' is missing");
  expect(message_of([](json& j) { j = 3; }), "not an object, expected one with the key 'shadowgraph'");
  expect(message_of([](json& j) { j["shadowgraph"] = 7; }), "newer");
  expect(message_of([](json& j) { j["nodes"][4]["target"] = "aten::mm\nn5: x"; }),
         "json:/nodes/4: an invalid word, expected the name of a target");
  expect(message_of([](json& j) { j["nodes"][4]["target"] = "aten::bmm"; }), "json:/nodes/4: unknown operator");
  expect(message_of([](json& j) { j["nodes"][4]["arguments"]["self"] = {{"value", 40}}; }), "json:/nodes/4: %40");
  expect(message_of([](json& j) { j["nodes"][4]["arguments"]["self"] = {{"what", 40}}; }), "unknown kind 'what'");
  expect(message_of([](json& j) { j["nodes"][4]["results"][0]["sizes"] = "x"; }), "not an array of integers");
  expect(message_of([](json& j) { j["storages"][2]["bytes"] = 1.5; }), "json:/storages/2: not an integer");
  expect(message_of([](json& j) { j["nodes"][4]["phas"] = "forward"; }), "json:/nodes/4: unknown key 'phas'");
  expect(message_of([](json& j) { j["nodes"][4]["results"][0]["grad"] = true; }), "json:/nodes/4: unknown key 'grad'");
  expect(message_of([](json& j) { j["storages"][2]["size"] = 1; }), "json:/storages/2: unknown key 'size'");
  expect(message_of([](json& j) { j["operator"] = json::array(); }), "json:/: unknown key 'operator'");
  expect(message_of([](json& j) { j["operators"][0]["schema"] = "a\nb"; }),
         "json:/operators/0: the schema is not a string on one line");
  expect(message_of([](json& j) {
           json deep = 1;
           for (int i = 0; i < 10000; ++i) {
             json outer = json::array();
             outer.push_back(std::move(deep));
             deep = std::move(outer);
           }
           j["nodes"][4]["arguments"]["self"] = std::move(deep);
         }),
         "nested too deeply");
}

TEST(IrJson, MutationsNeverCrash) {
  std::mt19937 random(20261122);
  const json good = to_json(parse(samples::kTraining));
  std::vector<json::json_pointer> places;
  const json flat = good.flatten();
  for (const auto& [place, value] : flat.items()) places.emplace_back(place);
  const json values[] = {nullptr, true, -1, 4294967295U, 1.5, "", "x", json::array(), json::object(), json::array({1})};
  int graphs = 0;
  for (int i = 0; i < 1000; ++i) {
    json changed = good;
    for (uint32_t changes = 1 + random() % 2; changes > 0; --changes) {
      const json::json_pointer& place = places[random() % places.size()];
      if (!changed.contains(place)) continue;  // removed by the first change
      json& parent = changed[place.parent_pointer()];
      if (random() % 2 == 0 || !parent.is_object()) {
        changed[place] = values[random() % std::size(values)];
      } else {
        parent.erase(place.back());
      }
    }
    try {
      const Graph graph = from_json(changed);
      ++graphs;
      // A parsed graph is printed and parsed again in either format.
      const json written = to_json(graph);
      ASSERT_EQ(to_json(from_json(written)), written);
      // The text format can express well-formed graphs only.
      if (violations(graph).empty()) ASSERT_EQ(to_json(parse(to_text(graph))), written) << to_text(graph);
    } catch (const ParseError& error) {
      ASSERT_NE(std::string(error.what()).find("json:"), std::string::npos) << error.what();
    }
  }
  EXPECT_GT(graphs, 30) << "too many mutations fail to parse, so later stages are not tested";
}

}  // namespace
}  // namespace shadowgraph
