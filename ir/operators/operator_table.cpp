// The operator table: properties of operators, with a row for operators that share them (see operator_facts.h for the
// columns). A missing effect makes effects, functionalization and storage lifetimes wrong: after adding a row, add a
// call to tests/ir/operator_calls.cpp, which runs the operator and checks what was written.
//
// The batch norm and dropout families come from their schemas. The aliases and unannotated writes were found by running
// PyTorch's OpInfo samples (3464 samples, 619 operators, CPU) under a TorchDispatchMode that compared contents and
// storages before and after.
#include "ir/operators/operator_facts.h"
#include "ir/operators/operator_name.h"

namespace shadowgraph {
namespace operator_rows {

using enum OperatorFact;
using enum DeviceRule;
using enum ContentsRule;
using enum LayoutFree;

constexpr std::string_view kRunning = "running_mean running_var";
constexpr std::string_view kBatchNorm = "updates its running statistics, which most overloads do not annotate";
constexpr std::string_view kMayCopy = "returns the argument itself or a view of it when no copy is needed";
constexpr std::string_view kCollectiveWrites = "filled with data from other processes; c10d does not annotate writes";

constexpr OperatorRow kRows[] = {
    // ---- Dtypes that eager's kernels require. tests/conformance finds them: `conformance --faults`.
    {.names = R"(
        _adaptive_avg_pool2d_backward _adaptive_avg_pool3d_backward adaptive_max_pool2d_backward
        adaptive_max_pool3d_backward avg_pool2d_backward avg_pool3d_backward fractional_max_pool2d_backward
        fractional_max_pool3d_backward glu_backward max_pool2d_with_indices_backward
        max_pool3d_with_indices_backward reflection_pad1d_backward reflection_pad2d_backward
        reflection_pad3d_backward replication_pad1d_backward replication_pad2d_backward
        replication_pad3d_backward)",
     .same_dtype = "grad_output self"},
    {.names = "_adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_max_pool2d adaptive_max_pool3d", .is = kFloatingOnly},
    {.names = "addbmm addbmm_ baddbmm baddbmm_", .same_dtype = "batch1 batch2 self"},
    {.names = "addmm addmm_ _addmm_activation", .same_dtype = "mat1 mat2 self"},
    {.names = "binary_cross_entropy", .same_dtype = "self target weight"},
    {.names = "binary_cross_entropy_backward", .same_dtype = "self target weight grad_output"},
    {.names = "bitwise_and bitwise_and_ bitwise_not bitwise_not_ bitwise_or bitwise_or_ bitwise_xor bitwise_xor_",
     .is = kIntegersOnly},
    {.names = "bmm mm", .same_dtype = "self mat2"},
    {.names = R"(
        celu elu gelu glu hardshrink hardsigmoid hardswish leaky_relu log_sigmoid_forward mish silu softplus
        softshrink)",
     .is = kFloatingOnly},
    {.names = "_cdist_forward _euclidean_dist", .same_dtype = "x1 x2"},
    {.names = "logcumsumexp _log_softmax _pdist_forward rrelu_with_noise _safe_softmax _softmax", .is = kFloatingOnly},
    {.names = "_embedding_bag _embedding_bag_forward_only",
     .is = kFloatingOnly,
     .same_dtype = "weight per_sample_weights"},
    {.names = "_fused_adagrad_", .same_dtype = "self grads state_sums"},
    {.names = "_fused_adam_ _fused_adamw_", .same_dtype = "self grads exp_avgs exp_avg_sqs max_exp_avg_sqs"},
    {.names = "_fused_sgd_", .same_dtype = "self grads momentum_buffer_list"},
    {.names = "grid_sampler_2d grid_sampler_3d", .is = kFloatingOnly, .same_dtype = "input grid"},
    {.names = "grid_sampler_2d_backward grid_sampler_3d_backward", .same_dtype = "grad_output input grid"},
    {.names = "_index_put_impl_ index_put index_put_ _unsafe_index_put", .same_dtype = "self values"},
    {.names = "linalg_cross", .same_dtype = "self other"},
    {.names = "_log_softmax_backward_data _softmax_backward_data",
     .is = kFloatingOnly,
     .same_dtype = "grad_output output"},
    {.names = "log_sigmoid_backward", .same_dtype = "grad_output self"},
    {.names = "_native_multi_head_attention",
     .is = kFloatingOnly,
     .same_dtype = "query key value qkv_weight qkv_bias proj_weight proj_bias"},
    {.names = "native_batch_norm _native_batch_norm_legit _batch_norm_with_update",
     .is = kFloatingOnly,
     .same_dtype = "input",
     .same_dtype_or_float = "weight bias running_mean running_var"},
    {.names = "native_group_norm native_layer_norm",
     .is = kFloatingOnly | kMixedOnCpu,
     .same_dtype = "input",
     .same_dtype_or_float = "weight bias"},
    {.names = "nll_loss_forward nll_loss2d_forward", .is = kFloatingOnly, .same_dtype = "self weight"},
    {.names = "nll_loss_backward nll_loss2d_backward", .same_dtype = "grad_output self weight"},
    {.names = "put put_", .same_dtype = "self source"},
    {.names = "rrelu_with_noise_", .same_dtype = "self noise"},
    {.names = R"(
        _cudnn_attention_forward _efficient_attention_forward _flash_attention_forward
        _scaled_dot_product_cudnn_attention _scaled_dot_product_efficient_attention
        _scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_for_cpu)",
     .is = kFloatingOnly,
     .same_dtype = "query key value"},
    {.names = "_transformer_encoder_layer_fwd",
     .is = kFloatingOnly,
     .same_dtype = "src qkv_weight qkv_bias proj_weight proj_bias ffn_weight_1 ffn_weight_2"},
    {.names = "_trilinear", .same_dtype = "i1 i2 i3"},
    {.names = R"(
        _upsample_bicubic2d_aa upsample_bicubic2d _upsample_bilinear2d_aa upsample_bilinear2d upsample_linear1d
        _upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d upsample_nearest1d
        upsample_nearest2d upsample_nearest3d upsample_trilinear3d)",
     .is = kFloatingOrBytes},
    // ---- What else is known
    {.names = R"(
        abs absolute bitwise_and bitwise_not bitwise_or bitwise_xor ceil clamp clamp_max clamp_min clip div
        floor ge greater gt isnan le less logical_and logical_not logical_or logical_xor lt maximum minimum
        mul reciprocal sign signbit sqrt true_divide trunc)",
     .layout_free = kReal},
    {.names = "adaptive_avg_pool2d.out max_pool3d_with_indices.out", .is = kNewStrides},
    {.names = "add conj_physical eq fill ne neg negative positive sub zero", .layout_free = kComplex},
    {.names = "addbmm addmm addmm_ _addmm_activation addmv baddbmm baddbmm_", .is = kFused | kCublas},
    {.names = "addbmm_ addcdiv_ addcmul_ addmv_ addr addr_ lerp_", .is = kFused},
    {.names = "addcdiv addcmul lerp", .is = kFused, .layout_free = kWide},
    {.names = "adjoint _conj conj mH matrix_H", .is = kConjugates},
    {.names = "all amax amin any flip max mean min mode roll", .is = kUniform},
    {.names = R"(
        all.dim amax. amin. any.dim argmax. argmin. cumprod. cumsum. gather. index_add. index_select.
        _log_softmax. _log_softmax_backward_data. logsumexp. max.dim mean.dim min.dim narrow. scatter.src
        select.int slice.Tensor _softmax. _softmax_backward_data. sort. sort.stable split.Tensor
        split_with_sizes squeeze.dim squeeze.dims std.correction sum.dim_IntList topk. unbind.int
        var.correction var_mean.correction)",
     .dimensions = "dim"},
    {.names = "allclose is_nonzero item _nested_tensor_from_mask_left_aligned", .is = kHostRead},
    {.names = "alpha_dropout feature_alpha_dropout feature_dropout",
     .is = kMaybeAlias,
     .alias_of = "input",
     .why = "as dropout"},
    {.names = "_amp_foreach_non_finite_check_and_unscale_", .contents = kLeavesUnchanged},
    {.names = "angle.out clone conj_physical.out mvlgamma.out native_dropout_backward", .is = kOwnDtypes},
    {.names = "arange eye linspace logspace range scalar_tensor tril_indices triu_indices", .is = kFills},
    {.names = R"(
        as_strided_scatter _copy_from. diagonal_scatter _embedding_bag _embedding_bag_forward_only
        is_same_size _pack_padded_sequence repeat_interleave.Tensor repeat_interleave.Tensor_out
        select_scatter slice_scatter _use_cudnn_ctc_loss _use_miopen_ctc_loss)",
     .devices = kFirst},
    {.names = "atleast_1d.Sequence atleast_2d.Sequence atleast_3d.Sequence",
     .alias_of = "tensors",
     .why = "views of its arguments"},
    {.names = R"(
        batch_norm _batch_norm_impl_index cudnn_batch_norm miopen_batch_norm _native_batch_norm_legit)",
     .writes = kRunning,
     .when = "training",
     .why = kBatchNorm},
    {.names = R"(
        batch_norm_gather_stats batch_norm_gather_stats_with_counts batch_norm_update_stats
        _batch_norm_with_update)",
     .writes = kRunning,
     .why = kBatchNorm},
    {.names = R"(
        bernoulli_ cauchy_ exponential_ geometric_ log_normal_ random_ uniform_ fsdp::chunk_cat
        fsdp::chunk_cat_mixed_dtype fsdp::split_with_sizes_copy)",
     .is = kOverwrites},
    {.names = "bernoulli_.float", .functional = "aten::bernoulli.p"},
    {.names = "bincount. histc.", .contents = kCounts},
    {.names = "bitwise_and.Tensor logical_and. mul.Tensor", .contents = kAbsorbedByFalse},
    {.names = "bitwise_or.Tensor logical_or.", .contents = kAbsorbedByTrue},
    {.names = "bmm dot linear mm mv vdot", .is = kCublas},
    {.names = "broadcast_tensors meshgrid", .alias_of = "tensors", .why = "expanded views of its arguments"},
    {.names = "cat. stack. unsqueeze", .dimensions_of_result = "dim"},
    {.names = R"(
        celu elu gelu glu hardsigmoid hardswish leaky_relu log_sigmoid log_sigmoid_forward mish prelu
        _prelu_kernel relu6 selu sigmoid silu softplus tanh)",
     .is = kActivation},
    {.names = "contiguous flatten ravel reshape_as to", .is = kMaybeAlias, .why = kMayCopy},
    {.names = "copy", .devices = kFirst, .layout_free = kComplex},
    {.names = "copy_", .is = kOverwrites | kPointwise | kUniform, .devices = kFirst},
    {.names = "ctc_loss.Tensor tensor_split.tensor_indices_or_sections", .is = kReadsOperands},
    {.names = "_cudnn_rnn",
     .writes = "dropout_state",
     .when = "train",
     .why = "advances the state of cuDNN's dropout descriptor; not checked by the test, which has no GPU"},
    {.names = "dropout", .is = kMaybeAlias, .alias_of = "input", .why = "is the input itself outside training"},
    {.names = "_efficientzerotensor from_file record_stream", .is = kNotEvaluable},
    {.names = R"(
        elu_backward floor_divide gelu_backward hardshrink_backward hardsigmoid_backward hardswish_backward
        hardtanh_backward leaky_relu_backward mish_backward mse_loss smooth_l1_loss softplus_backward
        softshrink_backward threshold_backward)",
     .is = kPromotes},
    {.names = R"(
        empty _empty_affine_quantized _empty_per_channel_affine_quantized empty_permuted empty_quantized
        empty_strided)",
     .is = kUninitialized},
    {.names = R"(
        _empty_affine_quantized. _empty_per_channel_affine_quantized. empty_quantized.
        _make_per_channel_quantized_tensor. _make_per_tensor_quantized_tensor. quantize_per_channel.
        quantize_per_tensor. quantize_per_tensor.tensor_qparams quantize_per_tensor.tensors
        quantize_per_tensor_dynamic.)",
     .is = kMakesQuantized},
    {.names = "empty_like new_empty new_empty_strided", .is = kGeometryOnly | kUninitialized},
    {.names = "eq.Scalar eq.Tensor", .contents = kEqual},
    {.names = "equal", .is = kHostRead | kOwnDtypes},
    {.names = "expand _unsafe_view. view.", .is = kInfersSizes},
    {.names = "fill_ zero_", .is = kOverwrites | kFills | kPointwise},
    {.names = "flip. permute", .dimensions = "dims"},
    {.names = "full ones zeros", .is = kFills | kUniformFill},
    {.names = "full_like new_full new_ones new_zeros ones_like zeros_like",
     .is = kFills | kGeometryOnly | kUniformFill},
    {.names = "_fused_adagrad_ _fused_adam_ _fused_adamw_ _fused_sgd_", .spares = "grads", .unless = "grad_scale"},
    {.names = R"(
        fused_moving_avg_obs_fake_quant _fused_moving_avg_obs_fq_helper)",
     .writes = "running_min running_max scale zero_point",
     .why = "updates the observer's state"},
    {.names = "hardtanh relu threshold", .is = kActivation, .layout_free = kReal},
    {.names = "index.Tensor _unsafe_index.Tensor", .devices = kFirstOrCpu},
    {.names = "index_put index_put_ _index_put_impl.out _index_put_impl_ _unsafe_index_put", .devices = kIndexedWrite},
    {.names = "instance_norm", .writes = kRunning, .when = "use_input_stats", .why = kBatchNorm},
    {.names = "isinf. isnan. isneginf. isposinf.", .contents = kFalseIfFinite},
    {.names = "lift", .is = kMaybeAlias, .alias_of = "self", .why = kMayCopy},
    {.names = "_local_scalar_dense", .is = kHostRead | kPrefersUserValues},
    {.names = "masked_fill where", .is = kOwnDtypes, .layout_free = kComplex},
    {.names = "masked_select. nonzero.", .is = kPrefersUserValues},
    {.names = "max_pool1d", .is = kDirectOnCpu},
    {.names = "mode.values", .is = kRefusesMeta},
    {.names = "native_batch_norm",
     .writes = kRunning,
     .when = "training",
     .why = kBatchNorm,
     .functional = "aten::_native_batch_norm_legit_functional"},
    {.names = "ne.Scalar ne.Tensor", .contents = kNotEqual},
    {.names = "_neg_view", .is = kNegates},
    {.names = "nextafter nextafter_", .is = kNoCpuScalars},
    {.names = "nonzero.out", .is = kNewStridesIfResized},
    {.names = "normal_", .is = kOverwrites, .functional = "aten::normal_functional"},
    {.names = R"(
        rand_like randint_like randn_like sym_numel sym_size sym_storage_offset sym_stride)",
     .is = kGeometryOnly},
    {.names = "reflection_pad3d.out replication_pad2d.out replication_pad3d.out", .is = kRefusesMeta | kNewStrides},
    {.names = "reshape", .is = kMaybeAlias | kInfersSizes, .why = kMayCopy},
    {.names = R"(
        resize resize_ resize_as resize_as_sparse resize_as_sparse_ _resize_output _resize_output_)",
     .is = kResizes},
    {.names = "resize_as_", .is = kResizes, .devices = kFirst},
    {.names = "rrelu_with_noise",
     .writes = "noise",
     .when = "training",
     .why = "writes its random noise to an argument; older schemas do not annotate it"},
    {.names = "rrelu_with_noise_", .writes = "noise", .why = "writes noise as well as self"},
    {.names = "rsqrt", .layout_free = kWide},
    {.names = "rsub", .is = kFused, .layout_free = kComplex},
    {.names = "scatter.value scatter_add.", .contents = kRouting, .dimensions = "dim"},
    {.names = "scatter_.value scatter_add_", .contents = kRouting},
    {.names = "set_",
     .is = kTakesStorage | kMaybeAlias,
     .alias_of = "source",
     .why = "self takes over the storage of source"},
    {.names = "set_data", .is = kTakesStorage, .devices = kFirst},
    {.names = "_to_copy", .is = kPointwise | kUniform},
    {.names = "transpose.int", .dimensions = "dim0 dim1"},
    {.names = "unsafe_chunk unsafe_split_with_sizes", .alias_of = "self", .why = "as unsafe_split"},
    {.names = "unsafe_split", .alias_of = "self", .why = "views that are not registered with autograd"},
    {.names = "_unsafe_view", .is = kUniform, .alias_of = "self", .why = "a view that is not registered with autograd"},
    {.names = R"(
        _c10d_functional::batch_p2p_ops c10d::allreduce_ c10d::broadcast_)",
     .writes = "tensors",
     .alias_of = "tensors",
     .why = kCollectiveWrites},
    {.names = "_c10d_functional::irecv", .writes = "tensor", .alias_of = "tensor", .why = kCollectiveWrites},
    {.names = "_c10d_functional::isend _c10d_functional::wait_tensor",
     .alias_of = "tensor",
     .why = "returns its operand"},
    {.names = "_c10d_functional::wait_tensors", .alias_of = "tensors", .why = "returns its operands"},
    {.names = "c10d::allgather_ c10d::gather_", .writes = "output_tensors", .why = kCollectiveWrites},
    {.names = R"(
        c10d::_allgather_base_ c10d::gather_into_tensor_ c10d::_reduce_scatter_base_)",
     .writes = "output_tensor",
     .alias_of = "output_tensor",
     .why = kCollectiveWrites},
    {.names = "c10d::allgather_coalesced_", .writes = "output_lists", .why = kCollectiveWrites},
    {.names = R"(
        c10d::allgather_into_tensor_coalesced_ c10d::reduce_scatter_tensor_coalesced_)",
     .writes = "outputs",
     .why = kCollectiveWrites},
    {.names = R"(
        c10d::allreduce_coalesced_ c10d::recv_ c10d::recv_any_source_ c10d::reduce_)",
     .writes = "tensors",
     .why = kCollectiveWrites},
    {.names = "c10d::alltoall_ c10d::reduce_scatter_ c10d::scatter_",
     .writes = "output_tensors",
     .alias_of = "output_tensors",
     .why = kCollectiveWrites},
    {.names = "c10d::alltoall_base_", .writes = "output", .why = kCollectiveWrites},
    {.names = "fsdp::all_gather_copy_in",
     .writes = "all_gather_output",
     .alias_of = "all_gather_output",
     .why = "copies shards into its part of the output and returns both; nothing is annotated"},
};

// Families by part of a name; the first matching row applies.
struct FamilyPart {
  std::string_view part;
  OperatorFamily family;
};
constexpr FamilyPart kFamilies[] = {
    {"attention", OperatorFamily::kAttention},
    {"varlen_attn", OperatorFamily::kAttention},
    {"conv", OperatorFamily::kConvolution},
    {"rnn", OperatorFamily::kRecurrent},
    {"lstm", OperatorFamily::kRecurrent},
    {"gru", OperatorFamily::kRecurrent},
    {"fused_adam", OperatorFamily::kOptimizer},
    {"fused_sgd", OperatorFamily::kOptimizer},
    {"fused_adagrad", OperatorFamily::kOptimizer},
    {"softmax", OperatorFamily::kSoftmax},
    {"weight_norm", OperatorFamily::kNormalization},
    {"layer_norm", OperatorFamily::kNormalization},
    {"batch_norm", OperatorFamily::kNormalization},
    {"group_norm", OperatorFamily::kNormalization},
    {"instance_norm", OperatorFamily::kNormalization},
    {"rms_norm", OperatorFamily::kNormalization},
    {"norm", OperatorFamily::kVectorNorm},
    {"pool", OperatorFamily::kPooling},
    {"upsample", OperatorFamily::kPooling},
    {"dropout", OperatorFamily::kDropout},
    {"bernoulli", OperatorFamily::kDropout},
    {"loss", OperatorFamily::kLoss},
    {"cross_entropy", OperatorFamily::kLoss},
    {"embedding", OperatorFamily::kEmbedding},
};

// Namespaces of communication operators, which keep their order even if their schemas declare no effects.
constexpr std::string_view kCollectiveNamespaces[] = {
    "c10d", "_c10d_functional", "_c10d_functional_autograd", "c10d_functional", "_dtensor", "sg_c10d"};

}  // namespace operator_rows

std::span<const OperatorRow> operator_table() { return operator_rows::kRows; }
std::span<const std::string_view> collective_namespaces() { return operator_rows::kCollectiveNamespaces; }

OperatorRow operator_row(std::string_view name) {
  static const OperatorRows<OperatorRow> index(operator_rows::kRows);
  OperatorRow joined;
  index.for_each(name, [&](const OperatorRow& row) {
    joined.is = joined.is | row.is;
    using Row = OperatorRow;
    for (const auto field :
         {&Row::writes, &Row::when, &Row::alias_of, &Row::why, &Row::functional, &Row::spares, &Row::unless,
          &Row::dimensions, &Row::dimensions_of_result, &Row::same_dtype, &Row::same_dtype_or_float}) {
      if ((joined.*field).empty()) joined.*field = row.*field;
    }
    if (joined.devices == DeviceRule::kCommon) joined.devices = row.devices;
    if (joined.contents == ContentsRule::kNone) joined.contents = row.contents;
    if (joined.layout_free == LayoutFree::kIntegers) joined.layout_free = row.layout_free;
  });
  return joined;
}

OperatorFamily operator_family(std::string_view name) {
  name = short_name(name);
  for (const auto& [part, family] : operator_rows::kFamilies) {
    if (name.find(part) != name.npos) return family;
  }
  return OperatorFamily::kNone;
}

}  // namespace shadowgraph
