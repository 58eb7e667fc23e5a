// Writes small torch.export archives for tests: the program as JSON, which a test may modify before writing it.
#pragma once

#include <caffe2/serialize/inline_container.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <filesystem>
#include <map>
#include <string>

namespace shadowgraph::testing {

using Json = nlohmann::json;

inline Json size_json(int64_t size) { return {{"as_int", size}}; }
// A symbolic size with its hint (the value in the example inputs).
inline Json symbol_json(const std::string& symbol, int64_t hint) {
  return {{"as_expr",
           {{"expr_str", "Symbol('" + symbol + "', positive=True, integer=True)"}, {"hint", {{"as_int", hint}}}}}};
}

// Dtype 5 is int64, 7 is float32.
inline Json tensor_json(int dtype, const std::vector<Json>& sizes, const std::vector<int64_t>& strides,
                        bool requires_grad = false) {
  Json stride_list = Json::array();
  for (const int64_t stride : strides) stride_list.push_back(size_json(stride));
  return {{"dtype", dtype},
          {"sizes", sizes},
          {"requires_grad", requires_grad},
          {"device", {{"type", "cpu"}, {"index", nullptr}}},
          {"strides", stride_list},
          {"storage_offset", size_json(0)},
          {"layout", 7}};
}

inline Json named(const std::string& name) { return {{"as_tensor", {{"name", name}}}}; }
inline Json input(const std::string& name, Json argument) {
  return {{"name", name}, {"arg", std::move(argument)}, {"kind", 1}};
}
inline Json node(const std::string& target, std::vector<Json> inputs, const std::string& output) {
  return {{"target", target},
          {"inputs", std::move(inputs)},
          {"outputs", {named(output)}},
          {"metadata",
           {{"stack_trace",
             "File \"/net.py\", line 7, in forward\n    return self.fc(x)\n  File \"/site/torch/nn/modules/"
             "linear.py\", line 134, in forward\n    return F.linear(input)"},
            {"nn_module_stack", "L__self__,,net.Net;L__self__fc,fc,torch.nn.modules.linear.Linear"}}},
          {"is_hop_single_tensor_return", nullptr},
          {"name", output}};
}

struct TestArchive {
  Json program;
  Json weights = {{"config", Json::object()}};
  Json constants = {{"config", Json::object()}};
  std::map<std::string, std::string> records;  // additional records of the archive
  std::string format = "pt2";

  Json& graph() { return program["graph_module"]["graph"]; }
  Json& signature() { return program["graph_module"]["signature"]; }

  void add_weight(const std::string& target, const std::string& record, Json tensor, const std::string& bytes,
                  bool is_parameter = true) {
    weights["config"][target] = {
        {"path_name", record}, {"is_param", is_parameter}, {"use_pickle", false}, {"tensor_meta", std::move(tensor)}};
    records["data/weights/" + record] = bytes;
  }

  std::string write(const std::string& name) const {
    const std::string path = ::testing::TempDir() + name;
    caffe2::serialize::PyTorchStreamWriter writer(path);
    const auto add = [&](const std::string& record, const std::string& bytes) {
      writer.writeRecord(record, bytes.data(), bytes.size());
    };
    for (const auto& [record, bytes] : records) add(record, bytes);
    add("data/weights/model_weights_config.json", weights.dump());
    add("data/constants/model_constants_config.json", constants.dump());
    add("models/model.json", program.dump());
    add("archive_format", format);
    add("archive_version", "0");
    writer.writeEndOfFile();
    return path;
  }
};

// fc(x).relu() where x is f32[s0, 3] (s0 = 2, range 2 to 8), fc.weight is f32[4,3] (48 bytes) and fc.bias f32[4] (16
// bytes).
inline TestArchive linear_archive() {
  TestArchive archive;
  const Json x = tensor_json(7, {symbol_json("s0", 2), size_json(3)}, {3, 1});
  const Json weight = tensor_json(7, {size_json(4), size_json(3)}, {3, 1}, true);
  const Json bias = tensor_json(7, {size_json(4)}, {1}, true);
  archive.add_weight("fc.weight", "weight_0", weight, std::string(48, '\1'));
  archive.add_weight("fc.bias", "weight_1", bias, std::string(16, '\1'));
  archive.program = {
      {"graph_module",
       {{"graph",
         {{"inputs", {named("w"), named("b"), named("x")}},
          {"outputs", {named("relu")}},
          {"nodes",
           {node("torch.ops.aten.linear.default",
                 {input("input", named("x")), input("weight", named("w")), input("bias", named("b"))}, "linear"),
            node("torch.ops.aten.relu.default", {input("self", named("linear"))}, "relu")}},
          {"tensor_values", {{"w", weight}, {"b", bias}, {"x", x}}},
          {"sym_int_values", Json::object()},
          {"sym_bool_values", Json::object()}}},
        {"signature",
         {{"input_specs",
           {{{"parameter", {{"arg", {{"name", "w"}}}, {"parameter_name", "fc.weight"}}}},
            {{"parameter", {{"arg", {{"name", "b"}}}, {"parameter_name", "fc.bias"}}}},
            {{"user_input", {{"arg", named("x")}}}}}},
          {"output_specs", {{{"user_output", {{"arg", named("relu")}}}}}}}}}},
      {"opset_version", {{"aten", 10}}},
      {"range_constraints", {{"s0", {{"min_val", 2}, {"max_val", 8}}}}},
      {"schema_version", {{"major", 8}, {"minor", 20}}},
      {"torch_version", "2.13.0"}};
  return archive;
}

}  // namespace shadowgraph::testing
