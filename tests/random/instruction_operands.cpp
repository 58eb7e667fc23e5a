// Chooses operands for the instructions of random programs.
#include "tests/random/instruction_operands.h"

namespace shadowgraph::testing {

bool one(ProgramMaker& maker, RandomInstruction& i) {
  i.in = {maker.any()};
  i.number = maker.random.number();
  return true;
}

bool one_floating(ProgramMaker& maker, RandomInstruction& i) {
  i.in = {maker.any_where([](const at::Tensor& t) { return t.is_floating_point(); })};
  i.number = maker.random.number();
  return i.in[0] >= 0;
}

bool two(ProgramMaker& maker, RandomInstruction& i) {
  const int a = maker.any();
  const int b = maker.broadcastable_with(maker.tensor(a));
  i.in = {a, b};
  i.number = maker.random.number();
  return b >= 0;
}

bool one_and_dimension(ProgramMaker& maker, RandomInstruction& i) {
  const int a = maker.any_where([](const at::Tensor& t) { return t.dim() > 0; });
  if (a < 0) return false;
  i.in = {a};
  i.ints = {maker.random.below(maker.tensor(a).dim())};
  i.number = maker.random.number();
  return true;
}

bool one_and_two_dimensions(ProgramMaker& maker, RandomInstruction& i) {
  if (!one_and_dimension(maker, i)) return false;
  i.ints.push_back(maker.random.below(maker.tensor(i.in[0]).dim()));
  return true;
}

bool one_and_shape(ProgramMaker& maker, RandomInstruction& i) {
  i.in = {maker.any()};
  const int64_t numel = maker.tensor(i.in[0]).numel();
  if (numel == 0) {
    i.ints = maker.random.chance(50) ? std::vector<int64_t>{0} : std::vector<int64_t>{2, 0};
    return true;
  }
  const int64_t first = maker.random.between(1, 4);
  if (numel % first != 0) {
    i.ints = {numel};
  } else {
    i.ints = {first, numel / first};
    if (maker.random.chance(30)) i.ints.push_back(1);
  }
  return true;
}

bool written(ProgramMaker& maker, RandomInstruction& i) {
  i.in = {maker.writable()};
  i.number = maker.random.number();
  return i.in[0] >= 0;
}

bool written_floating(ProgramMaker& maker, RandomInstruction& i) {
  i.in = {maker.writable_where([](const at::Tensor& t) { return t.is_floating_point(); })};
  i.number = maker.random.number();
  return i.in[0] >= 0;
}

// The tensor is filled with one value, so it may have overlapping elements.
bool filled(ProgramMaker& maker, RandomInstruction& i) {
  i.in = {maker.options.overlapping_views && maker.random.chance(20)
              ? maker.any_where([&](const at::Tensor& t) { return maker.may_write(t); })
              : maker.writable()};
  i.number = maker.random.number();
  return i.in[0] >= 0;
}

bool written_and_operand(ProgramMaker& maker, RandomInstruction& i) {
  const int a = maker.writable();
  if (a < 0) return false;
  const int b = maker.operand_for(maker.tensor(a));
  i.in = {a, b};
  i.number = maker.random.number();
  return b >= 0;
}

bool written_and_two_operands(ProgramMaker& maker, RandomInstruction& i) {
  if (!written_and_operand(maker, i)) return false;
  i.in.push_back(maker.operand_for(maker.tensor(i.in[0])));
  return i.in[2] >= 0;
}

bool written_and_dimension(ProgramMaker& maker, RandomInstruction& i) {
  const int a = maker.writable_where([](const at::Tensor& t) { return t.dim() > 0; });
  if (a < 0) return false;
  i.in = {a};
  i.ints = {maker.random.below(maker.tensor(a).dim())};
  i.number = maker.random.number();
  return true;
}

bool written_and_indices(ProgramMaker& maker, RandomInstruction& i) {
  const int a = maker.writable_where([](const at::Tensor& t) { return t.dim() > 0 && t.size(0) > 0; });
  if (a < 0) return false;
  i.in = {a};
  i.ints = {maker.random.below(2)};
  i.number = maker.random.number();
  const int64_t size = maker.tensor(a).size(0);
  i.constant = maker.indices(size, maker.random.between(1, size));
  return true;
}

bool masked(ProgramMaker& maker, RandomInstruction& i) {
  if (!written(maker, i)) return false;
  const at::Tensor& a = maker.tensor(i.in[0]);
  const int mask = maker.any_where([&](const at::Tensor& t) {
    return t.scalar_type() == at::kBool && at::is_expandable_to(t.sizes(), a.sizes()) && !t.is_alias_of(a);
  });
  i.in.push_back(mask);
  return mask >= 0;
}

// Reads a tensor, overwrites all of it, and reads again a result computed from the old contents.
bool overwritten(ProgramMaker& maker, RandomInstruction& i) {
  i.in = {maker.writable_where([](const at::Tensor& t) { return t.is_contiguous() && t.numel() != 0; })};
  if (i.in[0] < 0) return false;
  const at::Tensor& a = maker.tensor(i.in[0]);
  i.in.push_back(maker.any_where([&](const at::Tensor& t) {
    return t.sizes() == a.sizes() && at::canCast(t.scalar_type(), a.scalar_type()) && !t.is_alias_of(a);
  }));
  i.number = maker.random.number();
  return i.in[1] >= 0;
}

// Creates two overlapping views of one tensor, one row apart. Eager refuses dense views; for others it cannot detect
// the overlap, and the result depends on the kernel but is deterministic.
bool shifted(ProgramMaker& maker, RandomInstruction& i) {
  i.in = {maker.writable_where([](const at::Tensor& t) {
    return t.dim() > 1 && std::any_of(t.sizes().begin(), t.sizes().end(), [](int64_t size) { return size > 2; });
  })};
  if (i.in[0] < 0) return false;
  const at::Tensor& a = maker.tensor(i.in[0]);
  i.ints = {maker.random.below(a.dim()), maker.random.below(2)};
  return a.size(i.ints[0]) > 2;
}

at::Tensor stretch(I i, R r, int64_t begin) {
  const at::Tensor& a = r[static_cast<size_t>(i.in[0])];
  return a.narrow(i.ints[0], begin, a.size(i.ints[0]) - 1);
}

// A resize would leave unwritten memory in the gap.
static bool begins_after_its_storage(const at::Tensor& tensor) {
  return static_cast<size_t>(tensor.storage_offset()) * tensor.itemsize() > tensor.storage().nbytes();
}

// Picks a register for a result of this shape and dtype: a matching one, or an empty one, which is resized; else a new
// one.
static bool out_of(ProgramMaker& maker, RandomInstruction& i, at::IntArrayRef sizes, at::ScalarType dtype) {
  const int out = maker.writable_where([&](const at::Tensor& t) {
    if (t.scalar_type() != dtype) return false;
    if (t.sizes() != sizes && (t.numel() != 0 || !maker.options.resize || begins_after_its_storage(t))) return false;
    for (const int operand : i.in) {
      if (operand >= 0 && overlap_partly(t, maker.tensor(operand))) return false;
    }
    // Resizing an empty tensor could move the storage of an operand.
    return t.sizes() == sizes || std::none_of(i.in.begin(), i.in.end(), [&](int operand) {
             return operand >= 0 && t.is_alias_of(maker.tensor(operand));
           });
  });
  i.in.push_back(out);
  return true;
}

at::Tensor out_tensor(I i, R r, size_t operand, at::ScalarType dtype) {
  return i.in[operand] >= 0 ? at_(r, i, operand) : at::empty({0}, dtype);
}

bool as_strided_operands(ProgramMaker& maker, RandomInstruction& i) {
  const int a = maker.any_where([](const at::Tensor& t) { return t.storage().nbytes() >= t.itemsize(); });
  if (a < 0) return false;
  i.in = {a};
  const auto elements = static_cast<int64_t>(maker.tensor(a).storage().nbytes() / maker.tensor(a).itemsize());
  const int64_t rank = maker.random.between(1, 3);
  const int64_t offset = maker.random.below(std::min<int64_t>(elements, 3));
  int64_t room = elements - 1 - offset;
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
  for (int64_t d = 0; d < rank; ++d) {
    const int64_t stride = maker.random.between(maker.options.overlapping_views ? 0 : 1, 4);
    int64_t size = maker.random.between(1, 3);
    if (stride * (size - 1) > room) size = 1;
    room -= stride * (size - 1);
    sizes.push_back(size);
    strides.push_back(stride);
  }
  i.ints = {offset, rank};
  i.ints.insert(i.ints.end(), sizes.begin(), sizes.end());
  i.ints.insert(i.ints.end(), strides.begin(), strides.end());
  return true;
}

at::IntArrayRef sizes_in(I i) { return {i.ints.data() + 2, static_cast<size_t>(i.ints[1])}; }
at::IntArrayRef strides_in(I i) { return {i.ints.data() + 2 + i.ints[1], static_cast<size_t>(i.ints[1])}; }

bool resized(ProgramMaker& maker, RandomInstruction& i) {
  i.in = {maker.any_where(
      [&](const at::Tensor& t) { return maker.may_write(t) && !t.is_conj() && !begins_after_its_storage(t); })};
  if (i.in[0] < 0) return false;
  const at::Tensor& t = maker.tensor(i.in[0]);
  i.ints = maker.shape();
  i.number = maker.random.number();
  const int64_t needed = (t.storage_offset() + c10::multiply_integers(i.ints)) * static_cast<int64_t>(t.itemsize());
  // Memory added to the storage is filled, because its contents are undefined.
  i.ints.insert(i.ints.begin(), needed > static_cast<int64_t>(t.storage().nbytes()) ? 1 : 0);
  return true;
}

bool set_to_tensor(ProgramMaker& maker, RandomInstruction& i) {
  const int a = maker.any();
  const int b = maker.any_where([&](const at::Tensor& t) {
    return t.scalar_type() == maker.tensor(a).scalar_type() && !t.is_conj() && !maker.tensor(a).is_conj();
  });
  i.in = {a, b};
  return b >= 0;
}

bool probability(ProgramMaker& maker, RandomInstruction& i) {
  if (!written_floating(maker, i)) return false;
  i.number = static_cast<double>(maker.random.between(0, 4)) / 4;
  return true;
}

bool new_tensor(ProgramMaker& maker, RandomInstruction& i) {
  i.ints = maker.shape();
  i.dtype = maker.dtype();
  i.number = maker.random.number();
  return true;
}

bool two_with_out(ProgramMaker& maker, RandomInstruction& i) {
  if (!two(maker, i)) return false;
  const at::Tensor& a = maker.tensor(i.in[0]);
  const at::Tensor& b = maker.tensor(i.in[1]);
  i.dtype = at::result_type(a, b);
  return out_of(maker, i, at::infer_size(a.sizes(), b.sizes()), i.dtype);
}

bool one_floating_with_out(ProgramMaker& maker, RandomInstruction& i) {
  if (!one_floating(maker, i)) return false;
  i.dtype = maker.tensor(i.in[0]).scalar_type();
  return out_of(maker, i, maker.tensor(i.in[0]).sizes(), i.dtype);
}

bool concatenated(ProgramMaker& maker, RandomInstruction& i) {
  const int a = maker.any_where([](const at::Tensor& t) { return t.dim() > 0; });
  if (a < 0) return false;
  const at::Tensor& first = maker.tensor(a);
  const int64_t dimension = maker.random.below(first.dim());
  const int b = maker.any_where([&](const at::Tensor& t) {
    if (t.dim() != first.dim()) return false;
    for (int64_t d = 0; d < t.dim(); ++d) {
      if (d != dimension && t.size(d) != first.size(d)) return false;
    }
    return true;
  });
  i.in = {a, b < 0 ? a : b};
  i.ints = {dimension};
  return true;
}

bool multiplied(ProgramMaker& maker, RandomInstruction& i) {
  const int a = maker.any_where([](const at::Tensor& t) { return t.dim() == 2 && t.scalar_type() == at::kFloat; });
  if (a < 0) return false;
  i.in = {a, maker.any_where([&](const at::Tensor& t) {
            return t.dim() == 2 && t.scalar_type() == at::kFloat && t.size(0) == maker.tensor(a).size(1);
          })};
  return i.in[1] >= 0;
}

bool lists_written(ProgramMaker& maker, RandomInstruction& i) {
  const int a = maker.writable_where([](const at::Tensor& t) { return t.is_floating_point(); });
  const int b = maker.writable_where([](const at::Tensor& t) { return t.is_floating_point(); });
  if (a < 0 || b < 0 || maker.tensor(a).is_alias_of(maker.tensor(b))) return false;
  i.in = {a, b};
  i.number = maker.random.number();
  return true;
}

// A tensor to update and others of its shape and dtype, all in different storages: parameter, gradient, state.
bool optimized(ProgramMaker& maker, RandomInstruction& i) {
  const int a = maker.writable_where(
      [](const at::Tensor& t) { return t.scalar_type() == at::kFloat && t.is_contiguous() && t.numel() != 0; });
  if (a < 0) return false;
  const int b = maker.any_where([&](const at::Tensor& t) {
    return t.scalar_type() == at::kFloat && t.is_contiguous() && t.sizes() == maker.tensor(a).sizes() &&
           !t.is_alias_of(maker.tensor(a));
  });
  i.in = {a, b};
  i.number = static_cast<double>(maker.random.between(1, 4)) / 4;
  return b >= 0;
}

bool written_and_source_rows(ProgramMaker& maker, RandomInstruction& i) {
  if (!written_and_indices(maker, i)) return false;
  const at::Tensor& a = maker.tensor(i.in[0]);
  const int b = maker.any_where([&](const at::Tensor& t) {
    return t.scalar_type() == a.scalar_type() && !t.is_alias_of(a) && t.dim() == a.dim() &&
           t.size(0) == i.constant.numel() && t.sizes().slice(1) == a.sizes().slice(1);
  });
  i.in.push_back(b);
  return b >= 0;
}

bool written_matrix(ProgramMaker& maker, RandomInstruction& i) {
  if (!multiplied(maker, i)) return false;
  const int out = maker.writable_where([&](const at::Tensor& t) {
    if (t.scalar_type() != at::kFloat || t.dim() != 2 || t.size(0) != maker.tensor(i.in[0]).size(0) ||
        t.size(1) != maker.tensor(i.in[1]).size(1)) {
      return false;
    }
    return !t.is_alias_of(maker.tensor(i.in[0])) && !t.is_alias_of(maker.tensor(i.in[1]));
  });
  i.in.insert(i.in.begin(), out);
  i.number = maker.random.number();
  return out >= 0;
}

static bool one_with_out(ProgramMaker& maker, RandomInstruction& i, at::IntArrayRef sizes) {
  i.dtype = maker.tensor(i.in[0]).scalar_type();
  return out_of(maker, i, sizes, i.dtype);
}

bool concatenated_with_out(ProgramMaker& maker, RandomInstruction& i) {
  if (!concatenated(maker, i)) return false;
  const at::Tensor& a = maker.tensor(i.in[0]);
  const at::Tensor& b = maker.tensor(i.in[1]);
  if (a.scalar_type() != b.scalar_type()) return false;
  std::vector<int64_t> sizes = a.sizes().vec();
  sizes[static_cast<size_t>(i.ints[0])] += b.size(i.ints[0]);
  return one_with_out(maker, i, sizes);
}

static bool one_floating_dimension(ProgramMaker& maker, RandomInstruction& i) {
  const int a = maker.any_where(
      [](const at::Tensor& t) { return t.dim() > 0 && t.scalar_type() == at::kFloat && t.numel() != 0; });
  if (a < 0) return false;
  i.in = {a};
  i.ints = {maker.random.below(maker.tensor(a).dim())};
  return true;
}

bool cumsum_with_out(ProgramMaker& maker, RandomInstruction& i) {
  return one_floating_dimension(maker, i) && one_with_out(maker, i, maker.tensor(i.in[0]).sizes());
}

// Two results, written to two registers that do not alias.
bool maximum_with_outs(ProgramMaker& maker, RandomInstruction& i) {
  if (!one_floating_dimension(maker, i)) return false;
  std::vector<int64_t> sizes = maker.tensor(i.in[0]).sizes().vec();
  sizes.erase(sizes.begin() + i.ints[0]);
  out_of(maker, i, sizes, at::kFloat);
  out_of(maker, i, sizes, at::kLong);
  return i.in[1] < 0 || i.in[2] < 0 || !maker.tensor(i.in[1]).is_alias_of(maker.tensor(i.in[2]));
}

// set_ with the storage of `source`, using a geometry valid for as_strided.
bool set_to_storage(ProgramMaker& maker, RandomInstruction& i) {
  if (!as_strided_operands(maker, i)) return false;
  const at::Tensor& source = maker.tensor(i.in[0]);
  const int a = maker.any_where([&](const at::Tensor& t) {
    return t.scalar_type() == source.scalar_type() && !t.is_conj() && !t.is_neg() && !source.is_conj() &&
           !source.is_neg();
  });
  i.in.insert(i.in.begin(), a);
  return a >= 0;
}

// Eager accepts strides of a row as long as the storage, which reach beyond its end.
bool set_to_whole_storage(ProgramMaker& maker, RandomInstruction& i) {
  return set_to_storage(maker, i) && (maker.tensor(i.in[0]).dim() != 1 || maker.tensor(i.in[0]).is_contiguous());
}

bool same_width(ProgramMaker& maker, RandomInstruction& i) {
  i.in = {maker.any_where([](const at::Tensor& t) { return t.itemsize() == 4; })};
  if (i.in[0] < 0) return false;
  i.dtype = maker.tensor(i.in[0]).scalar_type() == at::kFloat ? at::kInt : at::kFloat;
  return true;
}

c10::List<std::optional<at::Tensor>> index_list(const at::Tensor& indices) {
  c10::List<std::optional<at::Tensor>> list;
  list.push_back(indices);
  return list;
}

}  // namespace shadowgraph::testing
