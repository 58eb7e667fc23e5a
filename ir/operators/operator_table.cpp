// Facts of operators whose schemas lie, or say nothing: batch norm writes its running statistics without annotation,
// _unsafe_view aliases without one. Everything else comes from schemas and tags (operator_facts.cpp). Effects,
// functionalization and the allocator's lives all rest on these facts. A missing row is a wrong answer: after
// adding one, add its call to tests/ir/operator_calls.cpp, which runs it and looks at what was written.
//
// The batch norm and dropout families come from their schemas. The aliases and the writes without annotation come from
// a run of PyTorch's OpInfo samples (3464 samples, 619 operators, CPU). A TorchDispatchMode compared contents and
// storages before and after.
#include "ir/operators/operator_facts.h"

namespace shadowgraph {
namespace {

constexpr std::string_view kRunning = "running_mean running_var";
constexpr std::string_view kBatchNorm = "updates its running statistics, which most overloads do not annotate";
constexpr std::string_view kMayCopy = "gives the argument itself or a view of it when nothing has to be copied";

constexpr std::string_view kCollectiveWrites = "filled with what other processes send; c10d annotates nothing";

constexpr OperatorRow kRows[] = {
    // ---- Written without annotation, or annotated but written only in training
    {.name = "aten::batch_norm", .writes = kRunning, .when = "training", .why = kBatchNorm},
    {.name = "aten::_batch_norm_impl_index", .writes = kRunning, .when = "training", .why = kBatchNorm},
    {.name = "aten::native_batch_norm",
     .writes = kRunning,
     .when = "training",
     .why = kBatchNorm,
     .functional = "aten::_native_batch_norm_legit_functional"},
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

    // ---- Give a tensor object another storage or geometry
    {.name = "aten::set_",
     .takes_storage = true,
     .alias_of = "source",
     .maybe_alias = true,
     .why = "self takes over the storage of source"},
    {.name = "aten::set_data", .takes_storage = true},
    {.name = "aten::resize", .resizes = true},
    {.name = "aten::resize_", .resizes = true},
    {.name = "aten::resize_as", .resizes = true},
    {.name = "aten::resize_as_", .resizes = true},
    {.name = "aten::resize_as_sparse", .resizes = true},
    {.name = "aten::resize_as_sparse_", .resizes = true},
    {.name = "aten::_resize_output", .resizes = true},
    {.name = "aten::_resize_output_", .resizes = true},

    // ---- Views that turn a bit which values do not show
    {.name = "aten::_conj", .conjugates = true},
    {.name = "aten::conj", .conjugates = true},
    {.name = "aten::adjoint", .conjugates = true},
    {.name = "aten::mH", .conjugates = true},
    {.name = "aten::matrix_H", .conjugates = true},
    {.name = "aten::_neg_view", .negates = true},

    // ---- Written as a whole
    {.name = "aten::zero_", .overwrites = true, .fills = true, .pointwise = true},
    {.name = "aten::fill_", .overwrites = true, .fills = true, .pointwise = true},
    {.name = "aten::copy_", .overwrites = true, .pointwise = true},
    {.name = "aten::_to_copy", .pointwise = true},
    {.name = "aten::uniform_", .overwrites = true},
    {.name = "aten::normal_", .overwrites = true, .functional = "aten::normal_functional"},
    {.name = "aten::random_", .overwrites = true},
    {.name = "aten::bernoulli_", .overwrites = true},
    {.name = "aten::bernoulli_.float", .functional = "aten::bernoulli.p"},
    {.name = "aten::exponential_", .overwrites = true},
    {.name = "aten::cauchy_", .overwrites = true},
    {.name = "aten::geometric_", .overwrites = true},
    {.name = "aten::log_normal_", .overwrites = true},

    // ---- Fresh tensors: the same numbers every time
    {.name = "aten::zeros", .fills = true},
    {.name = "aten::ones", .fills = true},
    {.name = "aten::full", .fills = true},
    {.name = "aten::scalar_tensor", .fills = true},
    {.name = "aten::arange", .fills = true},
    {.name = "aten::range", .fills = true},
    {.name = "aten::linspace", .fills = true},
    {.name = "aten::logspace", .fills = true},
    {.name = "aten::eye", .fills = true},
    {.name = "aten::tril_indices", .fills = true},
    {.name = "aten::triu_indices", .fills = true},
    {.name = "aten::zeros_like", .fills = true, .geometry_only = true},
    {.name = "aten::ones_like", .fills = true, .geometry_only = true},
    {.name = "aten::full_like", .fills = true, .geometry_only = true},
    {.name = "aten::new_zeros", .fills = true, .geometry_only = true},
    {.name = "aten::new_ones", .fills = true, .geometry_only = true},
    {.name = "aten::new_full", .fills = true, .geometry_only = true},

    // ---- Fresh tensors: drawn, or whatever the memory held
    {.name = "aten::rand_like", .geometry_only = true},
    {.name = "aten::randn_like", .geometry_only = true},
    {.name = "aten::randint_like", .geometry_only = true},
    {.name = "aten::empty", .uninitialised = true},
    {.name = "aten::empty_strided", .uninitialised = true},
    {.name = "aten::empty_permuted", .uninitialised = true},
    {.name = "aten::empty_quantized", .uninitialised = true},
    {.name = "aten::_empty_affine_quantized", .uninitialised = true},
    {.name = "aten::_empty_per_channel_affine_quantized", .uninitialised = true},
    {.name = "aten::empty_like", .geometry_only = true, .uninitialised = true},
    {.name = "aten::new_empty", .geometry_only = true, .uninitialised = true},
    {.name = "aten::new_empty_strided", .geometry_only = true, .uninitialised = true},

    // ---- Numbers for the host: sizes, or what is in a tensor
    {.name = "aten::sym_size", .geometry_only = true},
    {.name = "aten::sym_stride", .geometry_only = true},
    {.name = "aten::sym_numel", .geometry_only = true},
    {.name = "aten::sym_storage_offset", .geometry_only = true},
    {.name = "aten::_local_scalar_dense", .host_read = true},
    {.name = "aten::item", .host_read = true},
    {.name = "aten::equal", .host_read = true},
    {.name = "aten::is_nonzero", .host_read = true},
    {.name = "aten::allclose", .host_read = true},
    {.name = "aten::_nested_tensor_from_mask_left_aligned", .host_read = true},

    // ---- FSDP2's copies around collectives (torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py)
    {.name = "fsdp::all_gather_copy_in",
     .writes = "all_gather_output",
     .alias_of = "all_gather_output",
     .why = "copies shards into its part of the output and gives both; nothing is annotated"},
    {.name = "fsdp::split_with_sizes_copy", .overwrites = true},
    {.name = "fsdp::chunk_cat", .overwrites = true},
    {.name = "fsdp::chunk_cat_mixed_dtype", .overwrites = true},

    // ---- Collectives
    {.name = "c10d::broadcast_", .writes = "tensors", .alias_of = "tensors", .why = kCollectiveWrites},
    {.name = "c10d::allreduce_", .writes = "tensors", .alias_of = "tensors", .why = kCollectiveWrites},
    {.name = "c10d::allreduce_coalesced_", .writes = "tensors", .why = kCollectiveWrites},
    {.name = "c10d::allgather_", .writes = "output_tensors", .why = kCollectiveWrites},
    {.name = "c10d::_allgather_base_",
     .writes = "output_tensor",
     .alias_of = "output_tensor",
     .why = kCollectiveWrites},
    {.name = "c10d::allgather_coalesced_", .writes = "output_lists", .why = kCollectiveWrites},
    {.name = "c10d::allgather_into_tensor_coalesced_", .writes = "outputs", .why = kCollectiveWrites},
    {.name = "c10d::reduce_scatter_",
     .writes = "output_tensors",
     .alias_of = "output_tensors",
     .why = kCollectiveWrites},
    {.name = "c10d::_reduce_scatter_base_",
     .writes = "output_tensor",
     .alias_of = "output_tensor",
     .why = kCollectiveWrites},
    {.name = "c10d::reduce_scatter_tensor_coalesced_", .writes = "outputs", .why = kCollectiveWrites},
    {.name = "c10d::reduce_", .writes = "tensors", .why = kCollectiveWrites},
    {.name = "c10d::gather_", .writes = "output_tensors", .why = kCollectiveWrites},
    {.name = "c10d::gather_into_tensor_",
     .writes = "output_tensor",
     .alias_of = "output_tensor",
     .why = kCollectiveWrites},
    {.name = "c10d::scatter_", .writes = "output_tensors", .alias_of = "output_tensors", .why = kCollectiveWrites},
    {.name = "c10d::alltoall_", .writes = "output_tensors", .alias_of = "output_tensors", .why = kCollectiveWrites},
    {.name = "c10d::alltoall_base_", .writes = "output", .why = kCollectiveWrites},
    {.name = "c10d::recv_", .writes = "tensors", .why = kCollectiveWrites},
    {.name = "c10d::recv_any_source_", .writes = "tensors", .why = kCollectiveWrites},
    {.name = "_c10d_functional::wait_tensor", .alias_of = "tensor", .why = "gives its operand back"},
    {.name = "_c10d_functional::wait_tensors", .alias_of = "tensors", .why = "gives its operands back"},
    {.name = "_c10d_functional::isend", .alias_of = "tensor", .why = "gives its operand back"},
    {.name = "_c10d_functional::irecv", .writes = "tensor", .alias_of = "tensor", .why = kCollectiveWrites},
    {.name = "_c10d_functional::batch_p2p_ops", .writes = "tensors", .alias_of = "tensors", .why = kCollectiveWrites},
};

// Operators of these namespaces communicate: they are ordered among one another, whatever their schemas say.
constexpr std::string_view kCollectiveNamespaces[] = {
    "c10d", "_c10d_functional", "_c10d_functional_autograd", "c10d_functional", "_dtensor", "sg_c10d"};

}  // namespace

std::span<const OperatorRow> operator_table() { return kRows; }
std::span<const std::string_view> collective_namespaces() { return kCollectiveNamespaces; }

}  // namespace shadowgraph
