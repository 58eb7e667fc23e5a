#include "core/capture/pickle_sizes.h"

#include <cstdint>
#include <string>

#include "shadowgraph/error.h"

namespace shadowgraph {
namespace {

// What stands behind an instruction: so many bytes, so many lines, or a length of so many bytes and as many as it says.
// A memo's number is stored in `bytes`.
struct PickleOperand {
  const char* instructions;
  int bytes = 0;
  int lines = 0;
  int length = 0;
  bool memo = false;
};

constexpr PickleOperand kPickleOperands[] = {
    {.instructions = "(.012NQRbdeaslotu})]\x81\x85\x86\x87\x88\x89\x8f\x90\x91\x92\x93\x94"},
    {.instructions = "K\x80\x82", .bytes = 1},
    {.instructions = "M\x83", .bytes = 2},
    {.instructions = "J\x84", .bytes = 4},
    {.instructions = "G\x95", .bytes = 8},
    {.instructions = "FILVSPpg", .lines = 1},
    {.instructions = "ci", .lines = 2},
    {.instructions = "UC\x8a\x8c", .length = 1},
    {.instructions = "TXB\x8b", .length = 4},
    {.instructions = "\x8d\x8e", .length = 8},
    {.instructions = "qh", .bytes = 1, .memo = true},
    {.instructions = "rj", .bytes = 4, .memo = true},
};

const PickleOperand* operand_of(char instruction) {
  for (const PickleOperand& row : kPickleOperands) {
    if (std::string_view(row.instructions).find(instruction) != std::string_view::npos) return &row;
  }
  return nullptr;
}

}  // namespace

void check_pickle_sizes(std::string_view pickle) {
  size_t at = 0;
  const auto fail = [&](const std::string& what) { throw Error("byte " + std::to_string(at) + ": " + what); };
  const auto number = [&](int bytes) {
    if (pickle.size() - at < static_cast<size_t>(bytes)) fail("it ends within an instruction");
    uint64_t value = 0;
    for (int i = 0; i < bytes; ++i) {
      value |= uint64_t{static_cast<unsigned char>(pickle[at + static_cast<size_t>(i)])} << (8 * i);
    }
    at += static_cast<size_t>(bytes);
    return value;
  };
  while (at < pickle.size()) {
    const char instruction = pickle[at];
    const PickleOperand* operand = operand_of(instruction);
    if (operand == nullptr) return fail("no instruction of a pickle");
    ++at;
    const uint64_t value = number(operand->bytes);
    if (operand->memo && value > pickle.size()) fail("the number of a memo is larger than the record");
    for (int i = 0; i < operand->lines; ++i) {
      const size_t end = pickle.find('\n', at);
      if (end == std::string_view::npos) fail("a line does not end");
      at = end + 1;
    }
    const uint64_t length = number(operand->length);
    if (length > pickle.size() - at) fail("a length is larger than what is left of the record");
    at += length;
    if (instruction == '.') return;
  }
  fail("it does not end");
}

}  // namespace shadowgraph
