// Random edits of random graphs.
#include <gtest/gtest.h>

#include <random>

#include "ir/records.h"
#include "shadowgraph/graph/edit.h"
#include "shadowgraph/graph/text.h"
#include "tests/ir/samples.h"
#include "tests/passes/random_graph.h"

namespace shadowgraph {
namespace {

// Applies random edits at random places.
class RandomEdits {
 public:
  RandomEdits(Graph& graph, std::mt19937& random) : graph_(graph), random_(random) {}

  // Throws GraphError if the graph refuses the edit.
  void edit(int kind) {
    switch (kind) {
      case 0:
        graph_.erase(some_node());
        break;
      case 1: {
        std::vector<NodeId> batch;
        for (NodeId n = some_node(); n.valid() && batch.size() < 4; n = graph_.node(n).next) batch.push_back(n);
        graph_.erase(batch);
        break;
      }
      case 2:
        graph_.move_before(some_node(), random_() % 8 == 0 ? NodeId() : some_node());
        break;
      case 3: {
        const NodeId first = some_node();
        NodeId last = first;
        for (int k = static_cast<int>(random_() % 4); k > 0 && graph_.node(last).next.valid(); --k) {
          last = graph_.node(last).next;
        }
        graph_.move_range_before(first, last, some_node());
        break;
      }
      case 4:
        graph_.replace_all_uses_with(some_value(), some_value());
        break;
      case 5:
        graph_.replace_uses_if(some_value(), some_value(), [&](NodeId, const Argument&) { return random_() % 2 == 0; });
        break;
      case 6: {
        const NodeId n = some_node();
        std::vector<Argument> arguments(graph_.arguments(n).begin(), graph_.arguments(n).end());
        for (Argument& a : arguments) {
          if (a.kind == ArgumentKind::kValue) a = Argument::of_value(some_value());
        }
        graph_.set_arguments(n, arguments);
        break;
      }
      case 7: {
        const NodeId n = some_node();
        InsertionPoint at(graph_, n);
        const Argument x = Argument::of_value(some_value());
        const NodeId made = at.insert(graph_.intern_operator("aten::relu"), {x});
        const StorageId storage = graph_.add_storage({.bytes = 64, .born = made});
        const int64_t sizes[] = {4, 4};
        const int64_t strides[] = {4, 1};
        graph_.add_tensor_result(made, {.sizes = sizes, .strides = strides, .storage = storage});
        break;
      }
      default:
        graph_.set_note(some_node(), "k" + std::to_string(random_() % 3), random_() % 2 == 0 ? "" : "v");
    }
  }

 private:
  NodeId some_node() {
    NodeId n;
    do {
      n = NodeId(random_() % graph_.node_capacity());
    } while (graph_.is_erased(n));
    return n;
  }
  ValueId some_value() { return ValueId(random_() % graph_.value_capacity()); }

  Graph& graph_;
  std::mt19937& random_;
};

// Hundreds of edits: each leaves a graph that verifies, or throws and changes nothing.
TEST(IrEdits, RandomEditsKeepTheGraphValid) {
  int done = 0;
  int refused = 0;
  for (uint32_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    Graph graph = random_graph(random, 40);
    ASSERT_NO_THROW(verify(graph));
    RandomEdits edits(graph, random);
    for (int i = 0; i < 120 && graph.node_count() > 4; ++i) {
      const std::string before = to_text(graph);
      const int kind = static_cast<int>(random() % 9);
      const std::string what = "edit " + std::to_string(i) + " of kind " + std::to_string(kind);
      try {
        edits.edit(kind);
        ++done;
      } catch (const GraphError&) {
        ++refused;
        ASSERT_EQ(to_text(graph), before) << what;
      }
      const auto found = violations(graph);
      ASSERT_TRUE(found.empty()) << what << ": " << to_string(found[0].rule) << ": " << found[0].message
                                 << "\nbefore:\n"
                                 << before << "after:\n"
                                 << to_text(graph);
    }
    samples::expect_round_trip(graph);
  }
  EXPECT_GT(done, 1000);
  EXPECT_GT(refused, 1000);
}

}  // namespace
}  // namespace shadowgraph
