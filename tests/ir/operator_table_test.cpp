// The operator table: its rows refer to existing operators, and each of them was run.
#include <algorithm>
#include <set>

#include "core/libtorch/kernels.h"
#include "ir/operators/operator_facts.h"
#include "ir/operators/operator_name.h"
#include "tests/ir/operator_calls.h"

namespace shadowgraph::operator_facts_test {
namespace {

// Rows whose operators cannot be run like the others.
struct NotRun {
  const char* row;
  const char* why;
};
constexpr NotRun kNotRun[] = {
    {"aten::cudnn_batch_norm", "needs a GPU"},
    {"aten::miopen_batch_norm", "needs a GPU of AMD's"},
    {"aten::_cudnn_rnn", "needs a GPU"},
    {"aten::batch_norm_gather_stats", "needs a GPU: there is no kernel for the CPU"},
    {"aten::batch_norm_gather_stats_with_counts", "needs a GPU: there is no kernel for the CPU"},
    {"aten::_resize_output", "there is no kernel for the CPU"},
    {"aten::_resize_output_", "there is no kernel for the CPU"},
    {"aten::resize_as_sparse", "on sparse tensors: SparseTensorsAreResized"},
    {"aten::resize_as_sparse_", "on sparse tensors: SparseTensorsAreResized"},
    {"fsdp::all_gather_copy_in", "Python defines it: tests/package/test_parallel_programs.py"},
    {"fsdp::split_with_sizes_copy", "Python defines it: tests/package/test_parallel_programs.py"},
    {"fsdp::chunk_cat", "Python defines it: tests/package/test_parallel_programs.py"},
    {"fsdp::chunk_cat_mixed_dtype", "Python defines it, since 2.15: tests/package/test_parallel_programs.py"},
    {"c10d::broadcast_", "needs a process group: tests/core/capture/collectives_test.cpp"},
    {"c10d::allreduce_", "needs a process group: tests/core/capture/collectives_test.cpp"},
    {"c10d::allreduce_coalesced_", "needs a process group: tests/core/capture/collectives_test.cpp"},
    {"c10d::allgather_", "needs a process group: tests/core/capture/collectives_test.cpp"},
    {"c10d::_allgather_base_", "needs a process group: tests/core/capture/collectives_test.cpp"},
    {"c10d::allgather_coalesced_", "needs a process group: tests/core/capture/collectives_test.cpp"},
    {"c10d::allgather_into_tensor_coalesced_", "needs a process group: tests/core/capture/collectives_test.cpp"},
    {"c10d::reduce_scatter_", "needs a process group: tests/core/capture/collectives_test.cpp"},
    {"c10d::_reduce_scatter_base_", "needs a process group: tests/core/capture/collectives_test.cpp"},
    {"c10d::reduce_scatter_tensor_coalesced_", "needs a process group: tests/core/capture/collectives_test.cpp"},
    {"c10d::reduce_", "needs a process group: tests/core/capture/collectives_test.cpp"},
    {"c10d::gather_", "needs a process group: tests/core/capture/collectives_test.cpp"},
    {"c10d::gather_into_tensor_", "needs a process group: tests/core/capture/collectives_test.cpp"},
    {"c10d::scatter_", "needs a process group: tests/core/capture/collectives_test.cpp"},
    {"c10d::alltoall_", "needs a process group: tests/core/capture/collectives_test.cpp"},
    {"c10d::alltoall_base_", "needs a process group: tests/core/capture/collectives_test.cpp"},
    {"c10d::recv_", "needs a process group: tests/core/capture/collectives_test.cpp"},
    {"c10d::recv_any_source_", "needs a process group: tests/core/capture/collectives_test.cpp"},
    {"_c10d_functional::wait_tensor", "needs a process group: tests/core/capture/collectives_test.cpp"},
    {"_c10d_functional::wait_tensors", "needs a process group: tests/core/capture/collectives_test.cpp"},
    {"_c10d_functional::isend", "needs a process group: tests/core/capture/collectives_test.cpp"},
    {"_c10d_functional::irecv", "needs a process group: tests/core/capture/collectives_test.cpp"},
    {"_c10d_functional::batch_p2p_ops", "needs a process group: tests/core/capture/collectives_test.cpp"},
};

// The libtorch version (major * 100 + minor) that introduced an operator which older supported versions lack.
constexpr std::pair<std::string_view, int> kSince[] = {{"c10d::gather_into_tensor_", 214},
                                                       {"_c10d_functional::wait_tensors", 215}};

bool is_here(std::string_view row) {
  const auto* const found = std::ranges::find(kSince, row, &std::pair<std::string_view, int>::first);
  return found == std::end(kSince) || kLibtorchMinor >= found->second;
}

// Rows about dtypes required by kernels are separate from the others.
bool of_dtypes(const OperatorRow& row) {
  using enum OperatorFact;
  return !row.same_dtype.empty() || (row.is & (kFloatingOnly | kFloatingOrBytes | kIntegersOnly));
}

// A row with a wrong operator or argument name would silently have no effect, so none may exist.
TEST(OperatorTable, RowsNameOperatorsAndArgumentsThatExist) {
  std::vector<c10::OperatorHandle> all;
  for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
    if (auto op = c10::Dispatcher::singleton().findSchema(name)) all.push_back(*op);
  }
  std::set<std::string> names;
  for (const OperatorRow& row : operator_table())
    for_each_name(row.names, [&](std::string_view written) {
      const std::string each = full_name(written);
      SCOPED_TRACE(each);
      EXPECT_TRUE(names.insert(of_dtypes(row) ? each + ", dtypes" : each).second) << "two rows";
      if (each.starts_with("fsdp::")) return;  // defined in Python
      if (!is_here(each)) {
        EXPECT_FALSE(c10::Dispatcher::singleton().findSchema(operator_name(each)));
        return;
      }
      const auto matching = [&](std::string_view name, std::string_view argument) {
        return std::any_of(all.begin(), all.end(), [&](const c10::OperatorHandle& op) {
          const auto& schema = op.schema();
          if (!matches_operator(name, full_name(schema))) return false;
          return argument.empty() || schema.argumentIndexWithName(argument).has_value();
        });
      };
      EXPECT_TRUE(matching(each, ""));
      EXPECT_TRUE(row.functional.empty() || matching(row.functional, "")) << row.functional;
      for (const std::string_view arguments :
           {row.writes, row.when, row.alias_of, row.spares, row.unless, row.dimensions, row.dimensions_of_result,
            row.same_dtype, row.same_dtype_or_float}) {
        for_each_name(arguments, [&](std::string_view argument) { EXPECT_TRUE(matching(each, argument)) << argument; });
      }
      const bool corrects = !row.writes.empty() || !row.alias_of.empty() || (row.is & OperatorFact::kMaybeAlias);
      EXPECT_EQ(corrects, !row.why.empty());
    });
}

// All columns of an overload's rows are found under its name.
TEST(OperatorTable, RowsAreJoinedByName) {
  EXPECT_TRUE(operator_row("aten::bernoulli_.float").is & OperatorFact::kOverwrites);
  EXPECT_EQ(operator_row("aten::bernoulli_.float").functional, "aten::bernoulli.p");
  EXPECT_EQ(operator_row("aten::bernoulli_.Tensor").functional, "");
  EXPECT_EQ(operator_row("aten::index.Tensor").devices, DeviceRule::kFirstOrCpu);
  EXPECT_EQ(operator_row("aten::index.Tensor_out").devices, DeviceRule::kCommon);
  EXPECT_EQ(operator_row("aten::logical_and").contents, ContentsRule::kAbsorbedByFalse);
  EXPECT_EQ(operator_row("aten::logical_and.out").contents, ContentsRule::kNone);
  EXPECT_EQ(operator_row("aten::logical_and.out").layout_free, LayoutFree::kReal);
  EXPECT_EQ(operator_row("aten::view").is, OperatorFact::kInfersSizes);
  EXPECT_EQ(operator_row("aten::view.dtype").is, OperatorFact{});
  EXPECT_EQ(operator_row("copy_").is, OperatorFact{});  // a user function of the same name
  EXPECT_EQ(operator_family("aten::_thnn_fused_lstm_cell"), OperatorFamily::kRecurrent);
  EXPECT_EQ(operator_family("aten::native_layer_norm_backward"), OperatorFamily::kNormalization);
  EXPECT_EQ(operator_family("aten::mm"), OperatorFamily::kNone);
}

TEST(OperatorTable, EveryRowIsRunOrSaysWhyNot) {
  std::set<std::string_view> not_run;
  for (const NotRun& row : kNotRun) not_run.insert(row.row);
  for (const OperatorRow& row : operator_table()) {
    if (!row.describes_effects()) continue;
    for_each_name(row.names, [&](std::string_view written) {
      const std::string each = full_name(written);
      const bool run = std::any_of(all_calls().begin(), all_calls().end(),
                                   [&](const Call& call) { return matches_operator(each, call.name); });
      EXPECT_NE(run, not_run.erase(each) == 1) << each;
    });
  }
  EXPECT_TRUE(not_run.empty());
  EXPECT_EQ(std::size(kNotRun), 36U);
}

TEST(OperatorTable, NamesStandForOverloads) {
  EXPECT_EQ(without_overload("aten::add.Tensor"), "aten::add");
  EXPECT_EQ(overload_of("aten::add.Tensor"), "Tensor");
  EXPECT_EQ(overload_of("aten::mm"), "");
  EXPECT_EQ(namespace_of("my::op.out"), "my");
  EXPECT_EQ(short_name("aten::add_.Tensor"), "add_");
  EXPECT_EQ(without_underscore("aten::add_"), "aten::add");
  EXPECT_EQ(without_underscore("aten::__iand__"), "aten::__iand__");
  EXPECT_EQ(without_underscore("_"), "_");
  EXPECT_TRUE(matches_operator("aten::add", "aten::add.Tensor"));
  EXPECT_TRUE(matches_operator("aten::add", "aten::add"));
  EXPECT_TRUE(matches_operator("aten::add.", "aten::add"));
  EXPECT_FALSE(matches_operator("aten::add.", "aten::add.Tensor"));
  EXPECT_TRUE(matches_operator("aten::add.Tensor", "aten::add.Tensor"));
  EXPECT_FALSE(matches_operator("aten::add.Tensor", "aten::add"));
  EXPECT_FALSE(matches_operator("aten::add", "aten::addmm"));
  EXPECT_FALSE(matches_operator("aten::add", "aten::add_.Tensor"));
  EXPECT_EQ(operator_name("aten::add.Tensor"), c10::OperatorName("aten::add", "Tensor"));
}

}  // namespace
}  // namespace shadowgraph::operator_facts_test
