// Matrices in float8, scaled by their largest element: made once for all products that read them.
#pragma once

#include <map>
#include <set>
#include <vector>

#include "shadowgraph/analysis/effects.h"
#include "shadowgraph/edit/insertion_point.h"
#include "shadowgraph/graph.h"

namespace shadowgraph {

class Float8Operands {
 public:
  // `effects` are those of the graph before it is edited.
  Float8Operands(Graph& graph, const Effects& effects) : graph_(graph), effects_(effects) {}

  // Where a product is. What forward made for a parameter is not kept for backward; within one part all is shared.
  struct Part {
    int run = 0;          // of forward or backward, by number
    RegionId recomputed;  // the region that is computed again; invalid: none
    bool backward = false;
    friend bool operator==(const Part&, const Part&) = default;
  };
  struct Operand {
    ValueId values;  // [rows, columns] of float8
    ValueId scale;   // [1, 1] of float32
  };
  // What `product`, which is not edited yet, reads as `value`: rows of it lie together for a left operand, columns for
  // a right one.
  Operand left(NodeId product, ValueId value, const Part& part, bool is_parameter, c10::ScalarType dtype);
  Operand right(NodeId product, ValueId value, const Part& part, bool is_parameter, c10::ScalarType dtype);
  // Whether it was cast to e4m3, by whatever product.
  bool was_cast(NodeId product, ValueId value) const;

  const std::set<StorageId>& made() const { return made_; }
  int64_t casts() const { return casts_; }

 private:
  // The matrix by rows that a value is, or is the transpose of.
  struct Key {
    StorageId storage;
    uint32_t version;
    int64_t offset, rows, columns, apart;  // elements from row to row
    c10::ScalarType dtype;
    friend auto operator<=>(const Key&, const Key&) = default;
  };
  struct Matrix {
    Part part;
    ValueId scale;
    ValueId by_rows, turned;  // turned: the transpose, by rows
  };

  bool lies_by_rows(ValueId value) const;
  Key key_of(NodeId product, ValueId value, c10::ScalarType dtype) const;
  Operand of(NodeId product, ValueId value, const Part& part, bool is_parameter, c10::ScalarType dtype, bool as_left);
  ValueId scale_of(InsertionPoint& at, ValueId value, c10::ScalarType dtype);
  // `value`, itself or transposed, by rows.
  ValueId cast(InsertionPoint& at, ValueId value, ValueId scale, c10::ScalarType dtype);
  ValueId turn(InsertionPoint& at, ValueId by_rows);  // the transpose, by rows
  ValueId transposed(InsertionPoint& at, ValueId value);
  ValueId result(NodeId node, c10::ScalarType dtype, const std::vector<int64_t>& sizes,
                 const std::vector<int64_t>& strides, ValueId like, StorageId storage = {});

  Graph& graph_;
  const Effects& effects_;
  std::map<Key, std::vector<Matrix>> matrices_;
  std::set<StorageId> made_;
  int64_t casts_ = 0;
};

}  // namespace shadowgraph
