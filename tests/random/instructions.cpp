// The instructions of random programs: one row each.
#include "tests/random/program_maker.h"

namespace shadowgraph::testing {
namespace {

using Group = InstructionGroup;
using Results = std::vector<at::Tensor>;
using I = const RandomInstruction&;
using R = Registers&;

at::Tensor& at_(R registers, I instruction, size_t operand) {
  return registers[static_cast<size_t>(instruction.in[operand])];
}
int64_t number_of(I instruction, size_t index) { return instruction.ints[index]; }

// ---- Operands

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

// Its value is written as a whole, so elements may be there several times.
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

// A tensor that is read, overwritten as a whole, and what was made of it before read again.
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

// Makes two stretches of one tensor that overlap, one row apart. Eager refuses those that lie dense in memory. For
// others it cannot tell, and what comes out is what the kernel makes of it, the same every time.
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

// If it is resized, nobody knows what is in the gap.
bool begins_after_its_storage(const at::Tensor& tensor) {
  return static_cast<size_t>(tensor.storage_offset()) * tensor.itemsize() > tensor.storage().nbytes();
}

// A register to write a result of this shape and dtype to, or one without elements, which is resized; else a new one.
bool out_of(ProgramMaker& maker, RandomInstruction& i, at::IntArrayRef sizes, at::ScalarType dtype) {
  const int out = maker.writable_where([&](const at::Tensor& t) {
    if (t.scalar_type() != dtype) return false;
    if (t.sizes() != sizes && (t.numel() != 0 || !maker.options.resize || begins_after_its_storage(t))) return false;
    for (const int operand : i.in) {
      if (operand >= 0 && overlap_partly(t, maker.tensor(operand))) return false;
    }
    // Resized without elements: its storage may be that of an operand, which would then move.
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
  // What the storage gains is filled: nobody knows what is there.
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

// A tensor to write and others of its shape and dtype, none of which share a storage: a parameter, its gradient, its
// state.
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

bool one_with_out(ProgramMaker& maker, RandomInstruction& i, at::IntArrayRef sizes) {
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

bool one_floating_dimension(ProgramMaker& maker, RandomInstruction& i) {
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

// Two results, written to two registers that share nothing with one another.
bool maximum_with_outs(ProgramMaker& maker, RandomInstruction& i) {
  if (!one_floating_dimension(maker, i)) return false;
  std::vector<int64_t> sizes = maker.tensor(i.in[0]).sizes().vec();
  sizes.erase(sizes.begin() + i.ints[0]);
  out_of(maker, i, sizes, at::kFloat);
  out_of(maker, i, sizes, at::kLong);
  return i.in[1] < 0 || i.in[2] < 0 || !maker.tensor(i.in[1]).is_alias_of(maker.tensor(i.in[2]));
}

// set_ with a storage: `source`'s, looked at as as_strided would.
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

// Eager keeps the strides of a row of the storage's own length, beyond the end of the storage.
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

}  // namespace

// NOLINTBEGIN(readability-function-size)
const std::vector<InstructionRow>& instruction_rows() {
  static const std::vector<InstructionRow> rows{
      // ---- New tensors
      {"full", Group::kPlain, 2, &new_tensor, [](I i, R r) -> Results { return {at::full(i.ints, i.number, i.dtype)}; }},
      {"zeros", Group::kPlain, 1, &new_tensor, [](I i, R r) -> Results { return {at::zeros(i.ints, i.dtype)}; }},
      {"ones", Group::kPlain, 1, &new_tensor, [](I i, R r) -> Results { return {at::ones(i.ints, i.dtype)}; }},
      {"empty_then_fill_", Group::kWrite, 2, &new_tensor,
       [](I i, R r) -> Results { return {at::empty(i.ints, i.dtype).fill_(i.number)}; }},
      {"zeros_like", Group::kPlain, 1, &one, [](I i, R r) -> Results { return {at::zeros_like(at_(r, i, 0))}; }},
      {"clone", Group::kPlain, 3, &one, [](I i, R r) -> Results { return {at_(r, i, 0).clone()}; }},
      {"contiguous", Group::kPlain, 2, &one, [](I i, R r) -> Results { return {at_(r, i, 0).contiguous()}; }},
      {"to_double", Group::kPlain, 1, &one,
       [](I i, R r) -> Results {
         return {at_(r, i, 0).is_complex() ? at_(r, i, 0).to(at::kComplexDouble) : at_(r, i, 0).to(at::kDouble)};
       }},

      // ---- Arithmetic
      {"add", Group::kPlain, 4, &two, [](I i, R r) -> Results { return {at::add(at_(r, i, 0), at_(r, i, 1))}; }},
      {"add_scalar", Group::kPlain, 3, &one, [](I i, R r) -> Results { return {at::add(at_(r, i, 0), i.number)}; }},
      {"add_alpha", Group::kPlain, 2, &two, [](I i, R r) -> Results { return {at::add(at_(r, i, 0), at_(r, i, 1), 2)}; }},
      {"sub", Group::kPlain, 2, &two, [](I i, R r) -> Results { return {at::sub(at_(r, i, 0), at_(r, i, 1))}; }},
      {"mul", Group::kPlain, 3, &two, [](I i, R r) -> Results { return {at::mul(at_(r, i, 0), at_(r, i, 1))}; }},
      {"mul_scalar", Group::kPlain, 2, &one, [](I i, R r) -> Results { return {at::mul(at_(r, i, 0), i.number)}; }},
      {"div_scalar", Group::kPlain, 1, &one,
       [](I i, R r) -> Results { return {at::div(at_(r, i, 0), i.number == 0 ? 1.0 : i.number)}; }},
      {"maximum", Group::kPlain, 1, &two, [](I i, R r) -> Results { return {at::maximum(at_(r, i, 0), at_(r, i, 1))}; }},
      {"neg", Group::kPlain, 1, &one, [](I i, R r) -> Results { return {at::neg(at_(r, i, 0))}; }},
      {"abs", Group::kPlain, 1, &one, [](I i, R r) -> Results { return {at::abs(at_(r, i, 0))}; }},
      {"relu", Group::kPlain, 1, &one_floating, [](I i, R r) -> Results { return {at::relu(at_(r, i, 0))}; }},
      {"sigmoid", Group::kPlain, 1, &one_floating, [](I i, R r) -> Results { return {at::sigmoid(at_(r, i, 0))}; }},
      {"clamp", Group::kPlain, 1, &one, [](I i, R r) -> Results { return {at::clamp(at_(r, i, 0), i.number, i.number + 2)}; }},
      {"gt", Group::kPlain, 2, &two, [](I i, R r) -> Results { return {at::gt(at_(r, i, 0), at_(r, i, 1))}; }},
      {"le_scalar", Group::kPlain, 2, &one, [](I i, R r) -> Results { return {at::le(at_(r, i, 0), i.number)}; }},
      {"where", Group::kPlain, 1, &two,
       [](I i, R r) -> Results { return {at::where(at::gt(at_(r, i, 0), at_(r, i, 1)), at_(r, i, 0), at_(r, i, 1))}; }},
      {"sum", Group::kPlain, 1, &one_and_dimension, [](I i, R r) -> Results { return {at::sum(at_(r, i, 0), i.ints)}; }},
      {"cumsum", Group::kPlain, 1, &one_and_dimension,
       [](I i, R r) -> Results { return {at::cumsum(at_(r, i, 0), number_of(i, 0))}; }},
      {"softmax", Group::kPlain, 1, &one_and_dimension,
       [](I i, R r) -> Results { return {at::softmax(at_(r, i, 0), number_of(i, 0))}; }},
      {"flip", Group::kPlain, 1, &one_and_dimension, [](I i, R r) -> Results { return {at::flip(at_(r, i, 0), i.ints)}; }},
      {"cat", Group::kPlain, 2, &concatenated,
       [](I i, R r) -> Results { return {at::cat({at_(r, i, 0), at_(r, i, 1)}, number_of(i, 0))}; }},
      {"mm", Group::kPlain, 1, &multiplied, [](I i, R r) -> Results { return {at::mm(at_(r, i, 0), at_(r, i, 1))}; }},
      {"index", Group::kPlain, 1, &written_and_indices,
       [](I i, R r) -> Results { return {at::index(at_(r, i, 0), index_list(i.constant))}; }},
      {"index_select", Group::kPlain, 1, &written_and_indices,
       [](I i, R r) -> Results { return {at::index_select(at_(r, i, 0), 0, i.constant)}; }},

      // ---- Views
      {"view", Group::kView, 4, &one_and_shape, [](I i, R r) -> Results { return {at_(r, i, 0).view(i.ints)}; }},
      {"reshape", Group::kView, 2, &one_and_shape, [](I i, R r) -> Results { return {at_(r, i, 0).reshape(i.ints)}; }},
      {"select", Group::kView, 3, &one_and_dimension,
       [](I i, R r) -> Results { return {at::select(at_(r, i, 0), number_of(i, 0), 0)}; }},
      {"select_last", Group::kView, 3, &one_and_dimension,
       [](I i, R r) -> Results { return {at::select(at_(r, i, 0), number_of(i, 0), -1)}; }},
      {"slice", Group::kView, 4, &one_and_dimension,
       [](I i, R r) -> Results { return {at::slice(at_(r, i, 0), number_of(i, 0), 1, std::nullopt, 1)}; }},
      {"slice_step", Group::kView, 4, &one_and_dimension,
       [](I i, R r) -> Results { return {at::slice(at_(r, i, 0), number_of(i, 0), 0, std::nullopt, 2)}; }},
      {"narrow", Group::kView, 3, &one_and_dimension,
       [](I i, R r) -> Results {
         const at::Tensor& t = at_(r, i, 0);
         return {t.narrow(number_of(i, 0), 0, (t.size(number_of(i, 0)) + 1) / 2)};
       }},
      {"transpose", Group::kView, 3, &one_and_two_dimensions,
       [](I i, R r) -> Results { return {at::transpose(at_(r, i, 0), number_of(i, 0), number_of(i, 1))}; }},
      {"permute", Group::kView, 2, &one,
       [](I i, R r) -> Results {
         std::vector<int64_t> order;
         for (int64_t d = at_(r, i, 0).dim(); d-- > 0;) order.push_back(d);
         return {at_(r, i, 0).permute(order)};
       }},
      {"squeeze", Group::kView, 1, &one, [](I i, R r) -> Results { return {at_(r, i, 0).squeeze()}; }},
      {"unsqueeze", Group::kView, 2, &one, [](I i, R r) -> Results { return {at_(r, i, 0).unsqueeze(0)}; }},
      {"diagonal", Group::kView, 2, &one_and_two_dimensions,
       [](I i, R r) -> Results { return {at::diagonal(at_(r, i, 0), 0, number_of(i, 0), number_of(i, 1))}; }},
      {"detach", Group::kView, 2, &one, [](I i, R r) -> Results { return {at_(r, i, 0).detach()}; }},
      {"variable_data", Group::kView, 2, &one, [](I i, R r) -> Results { return {at_(r, i, 0).variable_data()}; }},
      {"chunk", Group::kView, 2, &one_and_dimension,
       [](I i, R r) -> Results { return at::chunk(at_(r, i, 0), 2, number_of(i, 0)); }},
      {"split", Group::kView, 2, &one_and_dimension,
       [](I i, R r) -> Results { return at::split(at_(r, i, 0), 2, number_of(i, 0)); }},
      {"unbind", Group::kView, 2, &one_and_dimension,
       [](I i, R r) -> Results { return at::unbind(at_(r, i, 0), number_of(i, 0)); }},
      {"as_strided", Group::kView, 4, &as_strided_operands,
       [](I i, R r) -> Results { return {at::as_strided(at_(r, i, 0), sizes_in(i), strides_in(i), i.ints[0])}; }},
      {"expand", Group::kOverlappingView, 3, &one,
       [](I i, R r) -> Results {
         std::vector<int64_t> sizes{2};
         for (const int64_t size : at_(r, i, 0).sizes()) sizes.push_back(size == 1 ? 3 : size);
         return {at_(r, i, 0).expand(sizes)};
       }},
      {"unfold", Group::kOverlappingView, 2, &one_and_dimension,
       [](I i, R r) -> Results { return {at_(r, i, 0).unfold(number_of(i, 0), 2, 1)}; }},
      {"unfold_step", Group::kView, 1, &one_and_dimension,
       [](I i, R r) -> Results { return {at_(r, i, 0).unfold(number_of(i, 0), 1, 2)}; }},
      {"flatten", Group::kView, 2, &one, [](I i, R r) -> Results { return {at_(r, i, 0).flatten()}; }},
      {"movedim", Group::kView, 2, &one_and_two_dimensions,
       [](I i, R r) -> Results { return {at_(r, i, 0).movedim(number_of(i, 0), number_of(i, 1))}; }},
      {"split_with_sizes", Group::kView, 1, &one_and_dimension,
       [](I i, R r) -> Results {
         const int64_t size = at_(r, i, 0).size(number_of(i, 0));
         return at::split_with_sizes(at_(r, i, 0), {0, size}, number_of(i, 0));
       }},
      {"slice_nothing", Group::kView, 1, &one_and_dimension,
       [](I i, R r) -> Results { return {at::slice(at_(r, i, 0), number_of(i, 0), 1, 1)}; }},
      {"view_dtype", Group::kView, 1, &same_width, [](I i, R r) -> Results { return {at_(r, i, 0).view(i.dtype)}; }},
      {"neg_view", Group::kComplex, 2, &one_floating, [](I i, R r) -> Results { return {at::_neg_view(at_(r, i, 0))}; }},
      {"resolve", Group::kComplex, 1, &one,
       [](I i, R r) -> Results { return {at_(r, i, 0).resolve_conj().resolve_neg()}; }},
      {"view_as_complex", Group::kComplex, 2, &one,
       [](I i, R r) -> Results { return {at::view_as_complex(at_(r, i, 0))}; }},
      {"complex", Group::kComplex, 2, &one_floating,
       [](I i, R r) -> Results { return {at::complex(at_(r, i, 0), at_(r, i, 0))}; }},
      {"real", Group::kComplex, 2, &one, [](I i, R r) -> Results { return {at::real(at_(r, i, 0))}; }},
      {"imag", Group::kComplex, 2, &one, [](I i, R r) -> Results { return {at::imag(at_(r, i, 0))}; }},
      {"view_as_real", Group::kComplex, 1, &one, [](I i, R r) -> Results { return {at::view_as_real(at_(r, i, 0))}; }},
      {"conj", Group::kComplex, 1, &one, [](I i, R r) -> Results { return {at::conj(at_(r, i, 0))}; }},

      // ---- Writes
      {"add_", Group::kWrite, 5, &written_and_operand, [](I i, R r) -> Results { at_(r, i, 0).add_(at_(r, i, 1)); return {}; }},
      {"add_alpha_", Group::kWrite, 2, &written_and_operand,
       [](I i, R r) -> Results { at_(r, i, 0).add_(at_(r, i, 1), 3); return {}; }},
      {"add_scalar_", Group::kWrite, 5, &written, [](I i, R r) -> Results { at_(r, i, 0).add_(i.number); return {}; }},
      {"sub_", Group::kWrite, 2, &written_and_operand, [](I i, R r) -> Results { at_(r, i, 0).sub_(at_(r, i, 1)); return {}; }},
      {"mul_", Group::kWrite, 4, &written_and_operand, [](I i, R r) -> Results { at_(r, i, 0).mul_(at_(r, i, 1)); return {}; }},
      {"mul_scalar_", Group::kWrite, 4, &written, [](I i, R r) -> Results { at_(r, i, 0).mul_(i.number); return {}; }},
      {"copy_", Group::kWrite, 6, &written_and_operand, [](I i, R r) -> Results { at_(r, i, 0).copy_(at_(r, i, 1)); return {}; }},
      {"fill_", Group::kWrite, 4, &filled, [](I i, R r) -> Results { at_(r, i, 0).fill_(i.number); return {}; }},
      {"zero_", Group::kWrite, 3, &filled, [](I i, R r) -> Results { at_(r, i, 0).zero_(); return {}; }},
      {"neg_", Group::kWrite, 1, &written, [](I i, R r) -> Results { at_(r, i, 0).neg_(); return {}; }},
      {"relu_", Group::kWrite, 1, &written_floating, [](I i, R r) -> Results { at::relu_(at_(r, i, 0)); return {}; }},
      {"sigmoid_", Group::kWrite, 1, &written_floating, [](I i, R r) -> Results { at_(r, i, 0).sigmoid_(); return {}; }},
      {"clamp_", Group::kWrite, 1, &written, [](I i, R r) -> Results { at_(r, i, 0).clamp_(-1, i.number + 3); return {}; }},
      {"addcmul_", Group::kWrite, 2, &written_and_two_operands,
       [](I i, R r) -> Results { at_(r, i, 0).addcmul_(at_(r, i, 1), at_(r, i, 2)); return {}; }},
      {"masked_fill_", Group::kWrite, 3, &masked,
       [](I i, R r) -> Results { at_(r, i, 0).masked_fill_(at_(r, i, 1), i.number); return {}; }},
      {"index_put_", Group::kWrite, 3, &written_and_indices,
       [](I i, R r) -> Results {
         at::Tensor& self = at_(r, i, 0);
         at::index_put_(self, index_list(i.constant), at::full({}, i.number, self.scalar_type()), i.ints[0] != 0);
         return {};
       }},
      {"index_fill_", Group::kWrite, 2, &written_and_indices,
       [](I i, R r) -> Results { at_(r, i, 0).index_fill_(0, i.constant, i.number); return {}; }},
      {"cumsum_", Group::kWrite, 1, &written_and_dimension,
       [](I i, R r) -> Results { at_(r, i, 0).cumsum_(number_of(i, 0)); return {}; }},
      {"foreach_add_", Group::kWrite, 2, &lists_written,
       [](I i, R r) -> Results { at::_foreach_add_({at_(r, i, 0), at_(r, i, 1)}, i.number); return {}; }},

      {"neg_then_copy_", Group::kWrite, 2, &overwritten,
       [](I i, R r) -> Results {
         const at::Tensor before = at_(r, i, 0).neg();
         at_(r, i, 0).copy_(at_(r, i, 1));
         return {before.mul(i.number)};
       }},
      {"add_shifted_", Group::kWrite, 2, &shifted,
       [](I i, R r) -> Results { stretch(i, r, i.ints[1]).add_(stretch(i, r, 1 - i.ints[1])); return {}; }},
      {"mul_shifted_", Group::kWrite, 1, &shifted,
       [](I i, R r) -> Results { stretch(i, r, i.ints[1]).mul_(stretch(i, r, 1 - i.ints[1])); return {}; }},
      {"lerp_", Group::kWrite, 1, &written_and_operand,
       [](I i, R r) -> Results { at_(r, i, 0).lerp_(at_(r, i, 1), 0.25); return {}; }},
      {"eq_", Group::kWrite, 1, &written_and_operand, [](I i, R r) -> Results { at_(r, i, 0).eq_(at_(r, i, 1)); return {}; }},
      {"index_copy_", Group::kWrite, 2, &written_and_source_rows,
       [](I i, R r) -> Results { at_(r, i, 0).index_copy_(0, i.constant, at_(r, i, 1)); return {}; }},
      {"index_add_", Group::kWrite, 2, &written_and_source_rows,
       [](I i, R r) -> Results { at_(r, i, 0).index_add_(0, i.constant, at_(r, i, 1)); return {}; }},
      {"masked_scatter_", Group::kWrite, 1, &masked,
       [](I i, R r) -> Results {
         at_(r, i, 0).masked_scatter_(at_(r, i, 1), at::ones_like(at_(r, i, 0), at::MemoryFormat::Contiguous));
         return {};
       }},
      {"addmm_", Group::kWrite, 2, &written_matrix,
       [](I i, R r) -> Results { at_(r, i, 0).addmm_(at_(r, i, 1), at_(r, i, 2), i.number); return {}; }},
      {"fill_diagonal_", Group::kWrite, 1, &written, [](I i, R r) -> Results { at_(r, i, 0).fill_diagonal_(i.number); return {}; }},
      {"tril_", Group::kWrite, 1, &written, [](I i, R r) -> Results { at_(r, i, 0).tril_(); return {}; }},
      {"conj_physical_", Group::kComplex, 1, &written, [](I i, R r) -> Results { at_(r, i, 0).conj_physical_(); return {}; }},

      // ---- Optimizer steps
      {"foreach_mul_", Group::kWrite, 1, &lists_written,
       [](I i, R r) -> Results { at::_foreach_mul_({at_(r, i, 0), at_(r, i, 1)}, i.number); return {}; }},
      {"foreach_addcmul_", Group::kWrite, 1, &lists_written,
       [](I i, R r) -> Results {
         const std::vector<at::Tensor> list{at_(r, i, 0), at_(r, i, 1)};
         at::_foreach_addcmul_(list, list, list, i.number);
         return {};
       }},
      {"foreach_copy_", Group::kWrite, 1, &written_and_operand,
       [](I i, R r) -> Results { at::_foreach_copy_({at_(r, i, 0)}, {at_(r, i, 1)}); return {}; }},
      {"sgd_step", Group::kWrite, 2, &optimized,
       [](I i, R r) -> Results {
         const at::Tensor momentum = at::zeros_like(at_(r, i, 0));
         momentum.mul_(0.5).add_(at_(r, i, 1));
         at_(r, i, 0).add_(momentum, -i.number);
         return {momentum};
       }},
      {"foreach_sgd_step", Group::kWrite, 2, &optimized,
       [](I i, R r) -> Results {
         const std::vector<at::Tensor> momenta{at::full_like(at_(r, i, 0), 0.25)};
         at::_foreach_mul_(momenta, 0.5);
         at::_foreach_add_(momenta, {at_(r, i, 1)}, 1);
         at::_foreach_add_({at_(r, i, 0)}, momenta, -i.number);
         return momenta;
       }},
      {"adam_step", Group::kWrite, 2, &optimized,
       [](I i, R r) -> Results {
         at::Tensor& parameter = at_(r, i, 0);
         const at::Tensor gradient = at_(r, i, 1);
         const at::Tensor average = at::zeros_like(parameter);
         const at::Tensor square = at::zeros_like(parameter);
         average.lerp_(gradient, 0.25);
         square.mul_(0.5).addcmul_(gradient, gradient, 0.5);
         parameter.mul_(0.75).addcdiv_(average, square.sqrt().add_(0.5), -i.number);
         return {average, square};
       }},
      {"fused_adamw_step", Group::kWrite, 2, &optimized,
       [](I i, R r) -> Results {
         at::Tensor& parameter = at_(r, i, 0);
         const at::Tensor average = at::zeros_like(parameter);
         const at::Tensor square = at::zeros_like(parameter);
         const at::Tensor step = at::ones({}, at::kFloat);
         at::_fused_adamw_({parameter}, {at_(r, i, 1)}, {average}, {square}, {}, {step}, i.number, 0.5, 0.75, 0.25, 0.5,
                           false, false);
         return {average, square};
       }},
      {"fused_sgd_step", Group::kWrite, 1, &optimized,
       [](I i, R r) -> Results {
         const at::Tensor momentum = at::zeros_like(at_(r, i, 0));
         at::_fused_sgd_({at_(r, i, 0)}, {at_(r, i, 1)}, {momentum}, 0.25, 0.5, i.number, 0.0, true, false, true);
         return {momentum};
       }},

      // ---- out=
      {"cat_out", Group::kOut, 2, &concatenated_with_out,
       [](I i, R r) -> Results {
         at::Tensor out = out_tensor(i, r, 2, i.dtype);
         at::cat_out(out, {at_(r, i, 0), at_(r, i, 1)}, number_of(i, 0));
         return {out};
       }},
      {"cumsum_out", Group::kOut, 1, &cumsum_with_out,
       [](I i, R r) -> Results {
         at::Tensor out = out_tensor(i, r, 1, i.dtype);
         at::cumsum_out(out, at_(r, i, 0), number_of(i, 0));
         return {out};
       }},
      {"max_out", Group::kOut, 2, &maximum_with_outs,
       [](I i, R r) -> Results {
         at::Tensor values = out_tensor(i, r, 1, at::kFloat);
         at::Tensor indices = out_tensor(i, r, 2, at::kLong);
         at::max_out(values, indices, at_(r, i, 0), number_of(i, 0));
         return {values, indices};
       }},
      {"mm_out", Group::kOut, 1, &written_matrix,
       [](I i, R r) -> Results { at::mm_out(at_(r, i, 0), at_(r, i, 1), at_(r, i, 2)); return {}; }},
      {"add_out", Group::kOut, 3, &two_with_out,
       [](I i, R r) -> Results {
         at::Tensor out = out_tensor(i, r, 2, i.dtype);
         at::add_out(out, at_(r, i, 0), at_(r, i, 1));
         return {out};
       }},
      {"mul_out", Group::kOut, 3, &two_with_out,
       [](I i, R r) -> Results {
         at::Tensor out = out_tensor(i, r, 2, i.dtype);
         at::mul_out(out, at_(r, i, 0), at_(r, i, 1));
         return {out};
       }},
      {"sigmoid_out", Group::kOut, 2, &one_floating_with_out,
       [](I i, R r) -> Results {
         at::Tensor out = out_tensor(i, r, 1, i.dtype);
         at::sigmoid_out(out, at_(r, i, 0));
         return {out};
       }},

      // ---- Random
      {"uniform_", Group::kRandomWrite, 3, &written_floating, [](I i, R r) -> Results { at_(r, i, 0).uniform_(); return {}; }},
      {"normal_", Group::kRandomWrite, 3, &written_floating, [](I i, R r) -> Results { at_(r, i, 0).normal_(i.number); return {}; }},
      {"bernoulli_", Group::kRandomWrite, 2, &probability, [](I i, R r) -> Results { at_(r, i, 0).bernoulli_(i.number); return {}; }},
      {"random_", Group::kRandomWrite, 2, &written, [](I i, R r) -> Results { at_(r, i, 0).random_(-5, 9); return {}; }},
      {"exponential_", Group::kRandomWrite, 1, &written_floating, [](I i, R r) -> Results { at_(r, i, 0).exponential_(); return {}; }},
      {"log_normal_", Group::kRandomWrite, 1, &written_floating, [](I i, R r) -> Results { at_(r, i, 0).log_normal_(); return {}; }},
      {"cauchy_", Group::kRandomWrite, 1, &written_floating, [](I i, R r) -> Results { at_(r, i, 0).cauchy_(); return {}; }},
      {"geometric_", Group::kRandomWrite, 1, &written_floating, [](I i, R r) -> Results { at_(r, i, 0).geometric_(0.5); return {}; }},
      {"bernoulli", Group::kRandom, 1, &one_floating,
       [](I i, R r) -> Results { return {at::bernoulli(at::sigmoid(at::nan_to_num(at_(r, i, 0))))}; }},
      {"dropout", Group::kRandom, 2, &one_floating, [](I i, R r) -> Results { return {at::dropout(at_(r, i, 0), 0.5, true)}; }},
      {"dropout_", Group::kRandomWrite, 1, &written_floating,
       [](I i, R r) -> Results { at::dropout_(at_(r, i, 0), 0.25, true); return {}; }},
      {"rand_like", Group::kRandom, 2, &one_floating, [](I i, R r) -> Results { return {at::rand_like(at_(r, i, 0))}; }},
      {"randn_like", Group::kRandom, 1, &one_floating, [](I i, R r) -> Results { return {at::randn_like(at_(r, i, 0))}; }},
      {"randint_like", Group::kRandom, 1, &one_floating, [](I i, R r) -> Results { return {at::randint_like(at_(r, i, 0), 7)}; }},
      {"randn", Group::kRandom, 1, &new_tensor, [](I i, R r) -> Results { return {at::randn(i.ints)}; }},

      // ---- Geometry in place
      {"t_", Group::kMetadataWrite, 2, &one, [](I i, R r) -> Results { at_(r, i, 0).t_(); return {}; }},
      {"transpose_", Group::kMetadataWrite, 2, &one_and_two_dimensions,
       [](I i, R r) -> Results { at_(r, i, 0).transpose_(number_of(i, 0), number_of(i, 1)); return {}; }},
      {"squeeze_", Group::kMetadataWrite, 1, &one, [](I i, R r) -> Results { at_(r, i, 0).squeeze_(); return {}; }},
      {"unsqueeze_", Group::kMetadataWrite, 2, &one, [](I i, R r) -> Results { at_(r, i, 0).unsqueeze_(0); return {}; }},

      {"squeeze_dim_", Group::kMetadataWrite, 1, &one_and_dimension,
       [](I i, R r) -> Results { at_(r, i, 0).squeeze_(number_of(i, 0)); return {}; }},
      {"swapdims_", Group::kMetadataWrite, 1, &one_and_two_dimensions,
       [](I i, R r) -> Results { at_(r, i, 0).swapdims_(number_of(i, 0), number_of(i, 1)); return {}; }},
      {"as_strided_", Group::kMetadataWrite, 2, &as_strided_operands,
       [](I i, R r) -> Results { at_(r, i, 0).as_strided_(sizes_in(i), strides_in(i), i.ints[0]); return {}; }},
      {"detach_", Group::kMetadataWrite, 1, &one, [](I i, R r) -> Results { at_(r, i, 0).detach_(); return {}; }},

      // ---- Storages exchanged and resized
      {"set_", Group::kSet, 2, &set_to_tensor, [](I i, R r) -> Results { at_(r, i, 0).set_(at_(r, i, 1)); return {}; }},
      {"set_storage", Group::kSet, 2, &set_to_storage,
       [](I i, R r) -> Results {
         at_(r, i, 0).set_(at_(r, i, 1).storage(), i.ints[0], sizes_in(i), strides_in(i));
         return {};
       }},
      {"set_whole_storage", Group::kSet, 1, &set_to_whole_storage,
       [](I i, R r) -> Results { at_(r, i, 0).set_(at_(r, i, 1).storage()); return {}; }},
      {"set_nothing", Group::kSet, 1, &one, [](I i, R r) -> Results { at_(r, i, 0).set_(); return {}; }},
      {"set_data", Group::kSet, 3, &set_to_tensor, [](I i, R r) -> Results { at_(r, i, 0).set_data(at_(r, i, 1)); return {}; }},
      {"resize_", Group::kResize, 2, &resized,
       [](I i, R r) -> Results {
         at::Tensor& t = at_(r, i, 0);
         t.resize_(at::IntArrayRef(i.ints).slice(1));
         if (i.ints[0] != 0) t.fill_(i.number);
         return {};
       }},
  };
  return rows;
}
// NOLINTEND(readability-function-size)

}  // namespace shadowgraph::testing
