// Which values are lazy conjugates or negatives: tensors that read, and write, something else than what is stored.
#pragma once

#include <cstdint>
#include <optional>

#include "ir/operators/operator_facts.h"
#include "ir/operators/operator_forms.h"
#include "passes/rewrite/node_emitter.h"
#include "shadowgraph/graph/analysis.h"
#include "shadowgraph/graph/graph.h"

namespace shadowgraph {

inline constexpr uint8_t kConjugateBit = 1;
inline constexpr uint8_t kNegativeBit = 2;

// By value; 0 for nearly all. Linear.
IdMap<ValueId, uint8_t> lazy_bits_of(const Graph& graph);

// Whether an operator leaves the same bits in each element however its operands lie in memory.
//
// Pointwise kernels compute a row of memory in vectors and what is left of it, or a row with gaps, one element at a
// time. The two agree where the result is rounded once (add, mul, sqrt, relu, comparisons). Elsewhere they may differ
// in the last bit: sigmoid's exp comes from another library, complex products are fused in one of them.

// Says so for calls of operators with the tag `pointwise`, in-place and `out=` forms included. Integers never differ.
bool is_layout_independent(const Graph& graph, NodeId node);

// Says what every storage holds at the point that a rewriting pass has come to, as values of the graph that it builds.
// Internal to functionalize.
//
// The *image* of a storage is a value whose own storage holds the same bytes at the same places. While nothing was
// written that is whatever made the storage. current(v) gives v as it is to be read now. If its storage was not written
// since, that is the value it became. Otherwise it is taken from the image once more, through the views by which the
// program made it, or by as_strided.

class StorageImages {
 public:
  StorageImages(const Graph& read, Graph& made, NodeEmitter& emitter);

  // ---- Values of the graph that is read
  // As it is to be read at this point; emits views if it must.
  ValueId current(ValueId value);
  // Without emitting anything, so perhaps not as it is to be read now; invalid if it never came to be.
  ValueId latest(ValueId value) const;
  // `value` is a result of a node that was copied or replaced by an equal one; `made` is its new self.
  void define(ValueId value, ValueId made);
  // Where a result lies in the new graph: the storage of the image, if it aliases one; otherwise invalid.
  StorageId storage_of(ValueId value) const;
  bool has_image(StorageId storage) const { return images_[storage.index].base.valid(); }
  uint32_t version(StorageId storage) const { return images_[storage.index].version; }
  ValueId base(StorageId storage) const { return images_[storage.index].base; }
  // A view that reads the conjugate or the negative of what is stored.
  bool has_bits(ValueId value) const { return bits_[value] != 0; }

  // ---- Writes
  // The elements of `view` become those of `content`, of its dtype and sizes. Whether a scatter was needed.
  bool write(ValueId view, ValueId content);
  // Whether a write of `view` replaces all that the program ever looks at in its storage.
  bool covers(ValueId view) const;
  // That, and a fresh tensor laid out like `view` can take the image's place.
  bool replaces(ValueId view) const { return read_.value(view).offset == 0 && covers(view); }
  // `whole` holds the whole storage.
  void replace(StorageId storage, ValueId whole);
  // Like that, and the storage is at least this long now.
  void replace_grown(StorageId storage, ValueId whole, int64_t bytes);
  // Bytes that the storage has had from the start, and has now.
  int64_t first_bytes(StorageId storage) const { return images_[storage.index].first_bytes; }
  int64_t bytes(StorageId storage) const { return images_[storage.index].bytes; }

  // Elements [first, first + count) of the storage, as a row of `dtype`.
  ValueId row(StorageId storage, c10::ScalarType dtype, int64_t first, int64_t count);

  int64_t views_taken() const { return views_; }

 private:
  struct Image {
    ValueId base;
    uint32_t version = 0;
    int64_t first_bytes = 0;
    int64_t bytes = 0;
    bool resized = false;  // by some node of the graph: what it says of its bytes holds for its last state
    ValueId converted;     // the image as a row of another dtype, at `converted_version`
    uint32_t converted_version = 0;
    int64_t converted_bytes = 0;
  };
  // What a value of the old graph became in the new one, and the version of its storage for which that holds.
  struct Now {
    ValueId value;
    uint32_t version = 0;
  };
  // How a value came to be from another of its storage: by a view that can be taken again.
  struct Step {
    ValueId source;
    bool same = false;  // the result of an in-place operator: the value is its source
  };
  static constexpr size_t kMostViews = 8;  // taken one after the other; beyond, one as_strided is shorter

  // Steps of current(): which view made the value, taking it again, or as_strided from the image.
  void find_resized();
  Step step_to(ValueId value);
  bool is_base(ValueId value, const Image& image) const;
  ValueId take(ValueId value, const Step& step);
  ValueId from_base(ValueId value);
  ValueId base_as(StorageId storage, c10::ScalarType dtype, int64_t bytes);
  ValueId base_of_nothing(ValueId value);
  ValueId in_bytes(ValueId content, TensorGeometry& target);
  bool ends_within(StorageId storage, int64_t item) const;
  // A write into a part: by the scatter that goes with the view, otherwise by as_strided_scatter.
  std::optional<ValueId> scatter_by_view(ValueId view, ValueId content);
  ValueId clone_with_strides_of(ValueId view, ValueId content);

  const Graph& read_;
  Graph& made_;
  NodeEmitter& emitter_;
  AliasAnalysis aliases_;
  std::vector<Image> images_;
  IdMap<ValueId, Now> now_;
  IdMap<ValueId, uint8_t> bits_;
  IdMap<ValueId, ValueId>
      origins_;  // of results of in-place operators: the value, of the same geometry, that it began as
  int64_t views_ = 0;
};

}  // namespace shadowgraph
