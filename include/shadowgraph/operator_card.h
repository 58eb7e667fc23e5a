// What is known of one operator: a row for each table that may say something about it, with where that stands.
//
//     for (const OperatorCard& card : operator_cards("aten::gelu")) std::cout << to_text(card);
//
//     aten::gelu(Tensor self, *, str approximate="none") -> Tensor
//       shape rule        its own                                       core/rules/elementwise.cpp:340
//       decomposition   - none: the pass `decompose` leaves it
//       ...
//
// The tables stay where they are; nothing is said here that they do not answer.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shadowgraph/export.h"

namespace SHADOWGRAPH_API shadowgraph {

struct OperatorCard {
  struct Row {
    std::string table;  // "shape rule"
    std::string says;   // what it says, or what happens without it
    // A file of the source tree, with a line where one is known: "core/rules/elementwise.cpp:340". "" for what stands
    // in libtorch (schemas, Meta kernels) or was registered by the program.
    std::string place;
    bool missing = false;  // the table has nothing
  };
  std::string name;    // with overload: "aten::add.Tensor"
  std::string schema;  // "aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor"
  std::vector<Row> rows;

  // The tables, in the order of the rows. Every card has a row for each.
  static std::span<const std::string_view> tables();
  const Row& row(std::string_view table) const;  // throws Error for a table that is none
};

// Returns the cards of the overloads that a name stands for, by overload: all of "aten::add", the one of
// "aten::add.Tensor". Throws Error for a name that no operator of this process has, with one that is near. Thread-safe.
std::vector<OperatorCard> operator_cards(std::string_view name);

std::string to_text(const OperatorCard& card);
// {"name": .., "schema": .., "rows": [{"table": .., "says": .., "place": .., "missing": false}, ..]} for each.
std::string to_json(std::span<const OperatorCard> cards);

}  // namespace shadowgraph
