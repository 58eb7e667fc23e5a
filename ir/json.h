// A graph as JSON, for programs that would rather not parse text. The same content, lossless in both directions.
//
//     {"shadowgraph": 1, "libtorch": "2.13.0", "metadata": {...},
//      "operators": [{"kind": "operator", "schema": "aten::mm(Tensor self, Tensor mat2) -> Tensor"}],
//      "storages":  [{"bytes": 24, "device": "cpu", "kind": "input", "born": 0}],
//      "regions":   [{"kind": "root", "name": "", "class": "", "call": 0, "parent": null, "inferred": false}],
//      "constants": [{"dtype": "f32", "sizes": [2], "strides": [1], "base64": "AACAPwAAAEA="}],
//      "dependencies": [{"kind": "size", "value": 0, "dimension": 0, "observed": "2"}],
//      "nodes": [{"target": "aten::mm", "arguments": {"self": {"value": 0}, "mat2": {"value": 1}},
//                 "results": [{"value": 2, "dtype": "f32", "sizes": [2, 2], "strides": [2, 1], "offset": 0,
//                              "storage": 1, "device": "cpu", "layout": "strided", "requires_grad": false}],
//                 "region": 0, "phase": "forward", "forward": 7, "modes": ["grad_mode"],
//                 "saved": [{"argument": "self", "value": 0}], "writes": [{"storage": 0, "version": 1}], "free": [0],
//                 "notes": [["part", "0"]], "source": "net.cpp:12"}]}
//
// Numbers of nodes, values, storages and constants are those of the text (a node's is its index). Unlike the text, JSON
// says everything: defaults, strides, devices. Arguments: ints, bools, strings and null as they are; floats always with
// a point or exponent (0.5, 1.0), {"float": "nan"} for what JSON has no number for; {"value": 3}, {"dtype": "f32"},
// {"layout": ..}, {"memory_format": ..}, {"device": "cuda:0"}, {"complex": [re, im]}, {"constant": 0},
// {"generator": "cpu"}, {"opaque": "type"}; arrays for lists. {"ints": [..]} and {"list": [..]} occur where the schema
// expects the other kind of list. A string that is not UTF-8 is {"escaped": ".."} with the text form's escapes.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "ir/graph.h"

namespace shadowgraph {

nlohmann::json to_json(const Graph& graph);

// Throws ParseError if anything is wrong, with the JSON pointer of the place ("/nodes/12"); line() and column() are then
// those of the equivalent text. (JSON text itself is read with nlohmann::json::parse.)
Graph from_json(const nlohmann::json& json);

}  // namespace shadowgraph
