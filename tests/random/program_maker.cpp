#include "tests/random/program_maker.h"

#include <c10/core/GradMode.h>

#include <algorithm>

namespace shadowgraph::testing {
namespace {

bool is_on(InstructionGroup group, const RandomProgramOptions& options) {
  switch (group) {
    case InstructionGroup::kPlain:
    case InstructionGroup::kView:
      return true;
    case InstructionGroup::kOverlappingView:
      return options.overlapping_views;
    case InstructionGroup::kWrite:
      return options.writes;
    case InstructionGroup::kOut:
      return options.out_variants;
    case InstructionGroup::kRandom:
      return options.random;
    case InstructionGroup::kRandomWrite:
      return options.random && options.writes;
    case InstructionGroup::kMetadataWrite:
      return options.metadata_writes;
    case InstructionGroup::kSet:
      return options.set;
    case InstructionGroup::kResize:
      return options.resize;
    case InstructionGroup::kComplex:
      return options.complex;
  }
  return false;
}

// Calls f with the first byte of every element, in order.
template <class F>
void for_each_element(const at::Tensor& tensor, F&& f) {
  if (tensor.numel() == 0) return;
  const auto item = static_cast<int64_t>(tensor.itemsize());
  std::vector<int64_t> index(static_cast<size_t>(tensor.dim()));
  while (true) {
    int64_t offset = tensor.storage_offset();
    for (size_t d = 0; d < index.size(); ++d) offset += index[d] * tensor.strides()[d];
    f(offset * item);
    size_t d = index.size();
    while (d > 0 && ++index[d - 1] == tensor.sizes()[d - 1]) index[--d] = 0;
    if (d == 0) return;
  }
}

std::vector<bool> bytes_touched(const at::Tensor& tensor) {
  std::vector<bool> touched(tensor.storage().nbytes());
  for_each_element(tensor, [&](int64_t byte) {
    for (size_t i = 0; i < tensor.itemsize(); ++i) touched[static_cast<size_t>(byte) + i] = true;
  });
  return touched;
}

bool may_change_geometry(InstructionGroup group) {
  switch (group) {
    case InstructionGroup::kWrite:
    case InstructionGroup::kOut:
    case InstructionGroup::kMetadataWrite:
    case InstructionGroup::kSet:
    case InstructionGroup::kResize:
      return true;
    default:
      return false;
  }
}

constexpr int64_t kLargest = 400;  // elements; bounds the growth by outer products

}  // namespace

bool is_one_to_one(const at::Tensor& tensor) {
  std::vector<bool> touched(tensor.storage().nbytes());
  bool unique = true;
  for_each_element(tensor, [&](int64_t byte) {
    unique = unique && !touched[static_cast<size_t>(byte)];
    touched[static_cast<size_t>(byte)] = true;
  });
  return unique;
}

bool overlap_partly(const at::Tensor& a, const at::Tensor& b) {
  if (!a.is_alias_of(b)) return false;
  if (a.sizes() == b.sizes() && a.strides() == b.strides() && a.storage_offset() == b.storage_offset() &&
      a.scalar_type() == b.scalar_type()) {
    return false;
  }
  const auto x = bytes_touched(a);
  const auto y = bytes_touched(b);
  for (size_t i = 0; i < x.size(); ++i) {
    if (x[i] && y[i]) return true;
  }
  return false;
}

// splitmix64 (Steele, Lea and Flood 2014), because it is the same on every machine and standard library.
uint64_t RandomSource::next() {
  state_ += 0x9E3779B97F4A7C15U;
  uint64_t z = state_;
  z = (z ^ (z >> 30U)) * 0xBF58476D1CE4E5B9U;
  z = (z ^ (z >> 27U)) * 0x94D049BB133111EBU;
  return z ^ (z >> 31U);
}

int ProgramMaker::any() {
  const auto count = static_cast<int64_t>(registers.size());
  // Prefers recent registers, which gives nested views and reads after writes.
  if (random.chance(50)) return static_cast<int>(count - 1 - random.below(std::min<int64_t>(count, 4)));
  return static_cast<int>(random.below(count));
}

int ProgramMaker::any_where(const std::function<bool(const at::Tensor&)>& wanted) {
  for (int tries = 0; tries < 12; ++tries) {
    const int index = any();
    if (wanted(tensor(index))) return index;
  }
  return -1;
}

bool ProgramMaker::may_write(const at::Tensor& tensor) const {
  return options.write_inputs || std::find(input_storages_.begin(), input_storages_.end(),
                                           tensor.storage().unsafeGetStorageImpl()) == input_storages_.end();
}

int ProgramMaker::writable() {
  return any_where([&](const at::Tensor& t) { return may_write(t) && is_one_to_one(t); });
}

int ProgramMaker::writable_where(const std::function<bool(const at::Tensor&)>& wanted) {
  return any_where([&](const at::Tensor& t) { return wanted(t) && may_write(t) && is_one_to_one(t); });
}

int ProgramMaker::operand_for(const at::Tensor& written) {
  return any_where([&](const at::Tensor& t) {
    return at::is_expandable_to(t.sizes(), written.sizes()) && at::canCast(t.scalar_type(), written.scalar_type()) &&
           !overlap_partly(written, t);
  });
}

int ProgramMaker::broadcastable_with(const at::Tensor& other) {
  return any_where([&](const at::Tensor& t) { return at::are_expandable(t.sizes(), other.sizes()); });
}

std::vector<int64_t> ProgramMaker::shape() {
  std::vector<int64_t> sizes;
  const int64_t rank = random.chance(10) ? 0 : random.between(1, 3);
  for (int64_t d = 0; d < rank; ++d) sizes.push_back(random.chance(3) ? 0 : random.between(1, 4));
  return sizes;
}

at::ScalarType ProgramMaker::dtype() {
  static constexpr at::ScalarType kDtypes[] = {at::kFloat, at::kFloat, at::kFloat, at::kFloat,    at::kDouble,
                                               at::kLong,  at::kInt,   at::kBool,  at::kBFloat16, at::kComplexFloat};
  return kDtypes[random.below(options.complex ? 10 : 9)];
}

at::Tensor ProgramMaker::indices(int64_t bound, int64_t count) {
  std::vector<int64_t> all(static_cast<size_t>(bound));
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int64_t>(i);
  for (size_t i = all.size(); i > 1; --i)
    std::swap(all[i - 1], all[static_cast<size_t>(random.below(static_cast<int64_t>(i)))]);
  at::Tensor tensor = at::empty({count}, at::kLong);
  std::copy(all.begin(), all.begin() + count, tensor.mutable_data_ptr<int64_t>());
  return tensor;
}

at::Tensor ProgramMaker::fresh_input() {
  const std::vector<int64_t> sizes = shape();
  const int64_t elements = c10::multiply_integers(sizes) + 3;
  at::Tensor numbers = at::empty({elements}, at::kDouble);
  for (int64_t i = 0; i < elements; ++i) numbers.mutable_data_ptr<double>()[i] = random.number();
  const at::Tensor flat = numbers.to(dtype());
  const at::Tensor base = flat.narrow(0, 0, elements - 3).view(sizes);
  switch (random.below(6)) {
    case 0:
      return base.dim() > 1 ? base.transpose(0, base.dim() - 1) : base;
    case 1:
      return flat.narrow(0, 2, elements - 3).view(sizes);
    case 2:
      return base.dim() > 0 && base.size(0) > 1 ? base.slice(0, 0, std::nullopt, 2) : base;
    case 3:
      return options.overlapping_views && base.dim() > 0 && base.size(0) > 0 ? base.narrow(0, 0, 1).expand_as(base)
                                                                             : base;
    default:
      return base;
  }
}

at::Tensor ProgramMaker::view_of_input(const at::Tensor& base) {
  if (base.dim() == 0 || random.chance(30)) return base.detach();
  if (random.chance(50)) return base.select(0, 0);
  return base.transpose(0, base.dim() - 1);
}

void ProgramMaker::add_inputs() {
  const int64_t count = random.between(1, 4);
  for (int64_t i = 0; i < count; ++i) {
    RandomProgramBody::Input input;
    if (options.shared_inputs && i > 0 && random.chance(20)) {
      input.shares_with = static_cast<int>(random.below(i));
      const at::Tensor& base = body_.inputs[static_cast<size_t>(input.shares_with)].original;
      if (base.numel() != 0) input.original = view_of_input(base);
    }
    if (!input.original.defined()) {
      input.shares_with = -1;
      input.original = fresh_input();
    } else if (const int root = body_.inputs[static_cast<size_t>(input.shares_with)].shares_with; root >= 0) {
      input.shares_with = root;
    }
    body_.inputs.push_back(std::move(input));
  }
}

// Replays the program so far on new inputs.
void ProgramMaker::start_again() {
  registers = fresh_inputs(body_);
  input_storages_.clear();
  for (const at::Tensor& input : registers) input_storages_.push_back(input.storage().unsafeGetStorageImpl());
  for (const RandomInstruction& instruction : body_.instructions) {
    const Registers results = instruction.row->run(instruction, registers);
    registers.insert(registers.end(), results.begin(), results.end());
  }
}

bool ProgramMaker::try_instruction() {
  RandomInstruction instruction;
  instruction.row = rows_[static_cast<size_t>(random.below(static_cast<int64_t>(rows_.size())))];
  if (!instruction.row->make(*this, instruction)) return false;
  Registers results;
  bool keep = true;
  try {
    results = instruction.row->run(instruction, registers);
  } catch (const c10::Error&) {
    keep = false;  // refused by eager
  }
  for (const at::Tensor& result : results) keep = keep && result.numel() <= kLargest && result.dim() <= 5;
  if (!keep) {
    // a failed instruction may already have changed geometry
    if (may_change_geometry(instruction.row->group)) start_again();
    return false;
  }
  if (!results.empty()) instruction.out = static_cast<int>(registers.size());
  registers.insert(registers.end(), results.begin(), results.end());
  body_.instructions.push_back(std::move(instruction));
  return true;
}

void ProgramMaker::choose_outputs() {
  const int64_t count = random.between(1, 4);
  for (int64_t i = 0; i < count; ++i) body_.outputs.push_back(any());
}

std::shared_ptr<const RandomProgramBody> ProgramMaker::make(int size) {
  const c10::NoGradGuard no_grad;
  for (const InstructionRow& row : instruction_rows()) {
    for (int i = 0; is_on(row.group, options) && i < row.weight; ++i) rows_.push_back(&row);
  }
  add_inputs();
  start_again();
  for (int tried = 0; tried < size; ++tried) {
    for (int again = 0; again < 4 && !try_instruction(); ++again) {}
  }
  choose_outputs();
  return std::make_shared<const RandomProgramBody>(std::move(body_));
}

}  // namespace shadowgraph::testing
