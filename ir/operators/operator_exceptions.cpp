// Where operator schemas do not say what the operator does.
//
// Every row is checked by tests/ir/operator_facts_test.cpp, which runs the operators on real tensors and compares
// contents and storages before and after. To add an operator: add a row, add a call of it to that test.
//
// Where the rows come from: the batch norm and dropout families by their schemas, the others from a run of PyTorch's
// OpInfo samples under a TorchDispatchMode that made the same comparison (3464 samples, 619 operators, CPU).
#include "ir/operators/operator_facts.h"

namespace shadowgraph {
namespace {

constexpr std::string_view kRunning = "running_mean running_var";
constexpr std::string_view kBatchNorm = "updates its running statistics, which most overloads do not annotate";
constexpr std::string_view kMayCopy = "gives the argument itself or a view of it when nothing has to be copied";

constexpr OperatorException kRows[] = {
    // ---- Written without annotation, or annotated but written only in training
    {.name = "aten::batch_norm", .writes = kRunning, .when = "training", .why = kBatchNorm},
    {.name = "aten::_batch_norm_impl_index", .writes = kRunning, .when = "training", .why = kBatchNorm},
    {.name = "aten::native_batch_norm", .writes = kRunning, .when = "training", .why = kBatchNorm},
    {.name = "aten::_native_batch_norm_legit", .writes = kRunning, .when = "training", .why = kBatchNorm},
    {.name = "aten::cudnn_batch_norm", .writes = kRunning, .when = "training", .why = kBatchNorm},
    {.name = "aten::miopen_batch_norm", .writes = kRunning, .when = "training", .why = kBatchNorm},
    {.name = "aten::instance_norm", .writes = kRunning, .when = "use_input_stats", .why = kBatchNorm},
    {.name = "aten::batch_norm_update_stats", .writes = kRunning, .why = kBatchNorm},
    {.name = "aten::_batch_norm_with_update", .writes = kRunning, .why = kBatchNorm},
    {.name = "aten::batch_norm_gather_stats", .writes = kRunning, .why = kBatchNorm},
    {.name = "aten::batch_norm_gather_stats_with_counts", .writes = kRunning, .why = kBatchNorm},
    {.name = "aten::rrelu_with_noise",
     .writes = "noise",
     .when = "training",
     .why = "draws its noise into an argument; older schemas do not annotate it"},
    {.name = "aten::rrelu_with_noise_", .writes = "noise", .why = "writes noise beside self"},
    {.name = "aten::_cudnn_rnn",
     .writes = "dropout_state",
     .when = "train",
     .why = "advances the state of cuDNN's dropout descriptor; not checked by the test, which has no GPU"},
    {.name = "aten::_fused_moving_avg_obs_fq_helper",
     .writes = "running_min running_max scale zero_point",
     .why = "updates the observer's state"},
    {.name = "aten::fused_moving_avg_obs_fake_quant",
     .writes = "running_min running_max scale zero_point",
     .why = "updates the observer's state"},

    // ---- Aliases without annotation
    {.name = "aten::_unsafe_view", .alias_of = "self", .why = "a view that autograd is told nothing of"},
    {.name = "aten::unsafe_split", .alias_of = "self", .why = "views that autograd is told nothing of"},
    {.name = "aten::unsafe_split_with_sizes", .alias_of = "self", .why = "as unsafe_split"},
    {.name = "aten::unsafe_chunk", .alias_of = "self", .why = "as unsafe_split"},
    {.name = "aten::lift", .alias_of = "self", .maybe_alias = true, .why = kMayCopy},
    {.name = "aten::dropout", .alias_of = "input", .maybe_alias = true, .why = "is the input itself outside training"},
    {.name = "aten::feature_dropout", .alias_of = "input", .maybe_alias = true, .why = "as dropout"},
    {.name = "aten::alpha_dropout", .alias_of = "input", .maybe_alias = true, .why = "as dropout"},
    {.name = "aten::feature_alpha_dropout", .alias_of = "input", .maybe_alias = true, .why = "as dropout"},
    {.name = "aten::meshgrid", .alias_of = "tensors", .why = "expanded views of its arguments"},
    {.name = "aten::broadcast_tensors", .alias_of = "tensors", .why = "expanded views of its arguments"},
    {.name = "aten::atleast_1d.Sequence", .alias_of = "tensors", .why = "views of its arguments"},
    {.name = "aten::atleast_2d.Sequence", .alias_of = "tensors", .why = "views of its arguments"},
    {.name = "aten::atleast_3d.Sequence", .alias_of = "tensors", .why = "views of its arguments"},

    // ---- Annotated as an alias, but a fresh tensor when it must be
    {.name = "aten::contiguous", .maybe_alias = true, .why = kMayCopy},
    {.name = "aten::reshape", .maybe_alias = true, .why = kMayCopy},
    {.name = "aten::reshape_as", .maybe_alias = true, .why = kMayCopy},
    {.name = "aten::flatten", .maybe_alias = true, .why = kMayCopy},
    {.name = "aten::ravel", .maybe_alias = true, .why = kMayCopy},
    {.name = "aten::to", .maybe_alias = true, .why = kMayCopy},
    {.name = "aten::set_", .alias_of = "source", .maybe_alias = true, .why = "self takes over the storage of source"},
};

// Reading a tensor's contents on the host: the value, or the sizes of the results, depend on them.
constexpr std::string_view kHostReads[] = {
    "aten::_local_scalar_dense", "aten::item", "aten::equal", "aten::is_nonzero", "aten::allclose",
};

constexpr std::string_view kGeometryOnly[] = {
    "aten::empty_like", "aten::zeros_like",        "aten::ones_like",    "aten::full_like",
    "aten::rand_like",  "aten::randn_like",        "aten::new_empty",    "aten::new_zeros",
    "aten::new_ones",   "aten::new_full",          "aten::randint_like", "aten::sym_size",
    "aten::sym_stride", "aten::new_empty_strided", "aten::sym_numel",    "aten::sym_storage_offset",
};

constexpr std::string_view kCollectiveNamespaces[] = {"c10d", "_c10d_functional", "_c10d_functional_autograd",
                                                      "c10d_functional"};

}  // namespace

std::span<const std::string_view> geometry_only_operators() { return kGeometryOnly; }
std::span<const std::string_view> collective_namespaces() { return kCollectiveNamespaces; }
std::span<const OperatorException> operator_exceptions() { return kRows; }
std::span<const std::string_view> host_read_operators() { return kHostReads; }

}  // namespace shadowgraph
