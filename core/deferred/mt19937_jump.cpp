#include "core/deferred/mt19937_jump.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

// Compiles functions for several vector widths; the machine's is selected at load time.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define SHADOWGRAPH_WIDE_VECTORS __attribute__((target_clones("arch=x86-64-v4", "avx2", "default"), optimize("O3")))
#else
#define SHADOWGRAPH_WIDE_VECTORS
#endif

namespace shadowgraph {
namespace {

constexpr size_t kWords = 624;  // of a state, and of a block of outputs
constexpr size_t kShift = 397;
constexpr size_t kDegree = 19937;

constexpr uint16_t kExponents[] = {
    0,     1189,  1416,  1585,  1643,  1870,  2493,  2773,  3000,  3227,  3454,  3681,  3908,  4135,  4362,
    4753,  5661,  6337,  6569,  7129,  7477,  7525,  7583,  7752,  7979,  8206,  9505,  9901,  9969,  10128,
    10693, 10761, 10920, 11089, 11147, 11157, 11215, 11321, 11374, 11384, 11485, 11611, 11712, 11717, 11838,
    11881, 11944, 11997, 12277, 12335, 12393, 12504, 12509, 12620, 12673, 12731, 12736, 12789, 12905, 12958,
    12963, 13137, 13185, 13190, 13243, 13301, 13412, 13528, 13533, 13639, 13697, 13760, 13813, 13866, 14093,
    14151, 14209, 14320, 14325, 14436, 14547, 14552, 14605, 14721, 14774, 14779, 14953, 15001, 15006, 15059,
    15117, 15228, 15344, 15349, 15455, 15513, 15576, 15629, 15682, 15909, 15967, 16025, 16136, 16141, 16252,
    16363, 16368, 16421, 16537, 16590, 16595, 16817, 16822, 16875, 16933, 17044, 17160, 17271, 17329, 17445,
    17498, 17725, 17783, 17841, 17952, 18068, 18179, 18237, 18406, 18633, 18691, 18860, 19087, 19314, 19937};
static_assert(std::size(kExponents) == 135 && kExponents[134] == kDegree);
// Eight words are folded at once, so no term may come from those words themselves.
static_assert(kDegree - kExponents[133] >= 9 * 64);

// ---- Polynomials over GF(2), reduced: bit i is the coefficient of x^i

using Polynomial = std::array<uint64_t, (kDegree + 63) / 64>;
constexpr size_t kPolynomialWords = std::tuple_size_v<Polynomial>;

// Adds bits << position.
void add_shifted(uint64_t* to, uint64_t bits, size_t position) {
  const size_t shift = position % 64;
  to[position / 64] ^= bits << shift;
  if (shift != 0) to[position / 64 + 1] ^= bits >> (64 - shift);
}

// Spreads bits 0, 1, 2, ... of `half` to 0, 2, 4, ...
uint64_t spread(uint32_t half) {
  uint64_t x = half;
  x = (x | x << 16) & 0x0000FFFF0000FFFFU;
  x = (x | x << 8) & 0x00FF00FF00FF00FFU;
  x = (x | x << 4) & 0x0F0F0F0F0F0F0F0FU;
  x = (x | x << 2) & 0x3333333333333333U;
  return (x | x << 1) & 0x5555555555555555U;
}

constexpr size_t kTop = kDegree / 64;
using Eight [[gnu::vector_size(64)]] = uint64_t;

// Reduces the words above kTop into the eight words from `low` on. x^i is x^(i - 19937) times the polynomial without
// its leading term, whose next exponent is at least 623 lower, so all terms come from words beyond these eight. `high`
// holds those words, final, at their positions, and zeros elsewhere.
SHADOWGRAPH_WIDE_VECTORS void fold_into(uint64_t* words, const uint64_t* high, size_t low) {
  Eight sum;
  std::memcpy(&sum, words + low, sizeof sum);
  for (size_t e = std::size(kExponents) - 1; e-- > 0;) {
    const size_t down = kDegree - kExponents[e];
    const size_t first = low + down / 64;
    if (first >= 2 * kPolynomialWords) break;
    if (first + 8 <= kTop) continue;
    Eight lower, upper;
    std::memcpy(&lower, high + first, sizeof lower);
    std::memcpy(&upper, high + first + 1, sizeof upper);
    sum ^= lower >> (down % 64) | upper << 1 << (63 - down % 64);
  }
  std::memcpy(words + low, &sum, sizeof sum);
}

void square(Polynomial& p) {
  std::array<uint64_t, 2 * kPolynomialWords> wide;
  for (size_t i = 0; i < kPolynomialWords; ++i) {
    wide[2 * i] = spread(static_cast<uint32_t>(p[i]));
    wide[2 * i + 1] = spread(static_cast<uint32_t>(p[i] >> 32));
  }
  static_assert(kPolynomialWords % 8 == 0 && kPolynomialWords == kTop + 1);
  std::array<uint64_t, 2 * kPolynomialWords + 16> high{};
  for (size_t low = wide.size(); low > kPolynomialWords;) {
    low -= 8;
    fold_into(wide.data(), high.data(), low);
    std::copy_n(wide.begin() + low, 8, high.begin() + low);
  }
  for (size_t low = 0; low < kPolynomialWords; low += 8) fold_into(wide.data(), high.data(), low);
  const uint64_t over = wide[kTop] >> (kDegree % 64);
  wide[kTop] &= (uint64_t{1} << (kDegree % 64)) - 1;
  for (size_t e = 0; e + 1 < std::size(kExponents); ++e) add_shifted(wide.data(), over, kExponents[e]);
  std::copy_n(wide.begin(), kPolynomialWords, p.begin());
}

void multiply_by_x(Polynomial& p) {
  for (size_t i = kPolynomialWords; i-- > 1;) p[i] = p[i] << 1 | p[i - 1] >> 63;
  p[0] <<= 1;
  uint64_t& top = p[kDegree / 64];
  if ((top >> (kDegree % 64) & 1) == 0) return;
  for (const uint16_t e : kExponents) p[e / 64] ^= uint64_t{1} << (e % 64);
}

Polynomial power_of_x(uint64_t exponent) {
  int bits = 0;
  while (exponent >> bits >= kDegree) ++bits;
  Polynomial p{};
  const uint64_t first = exponent >> bits;
  p[first / 64] |= uint64_t{1} << (first % 64);
  while (bits-- > 0) {
    square(p);
    if ((exponent >> bits & 1) != 0) multiply_by_x(p);
  }
  return p;
}

uint32_t next_word(uint32_t far, uint32_t a, uint32_t b) {
  return far ^ ((a & 0x80000000U) | (b & 0x7FFFFFFFU)) >> 1 ^ ((b & 1) != 0 ? 0x9908B0DFU : 0U);
}

using State = std::array<uint32_t, kWords>;

void next_block(State& s) {
  for (size_t i = 0; i < kWords - kShift; ++i) s[i] = next_word(s[i + kShift], s[i], s[i + 1]);
  for (size_t i = kWords - kShift; i < kWords - 1; ++i) s[i] = next_word(s[i + kShift - kWords], s[i], s[i + 1]);
  s[kWords - 1] = next_word(s[kShift - 1], s[kWords - 1], s[0]);
}

// Sums the windows of 624 words that begin at words[i] for each x^i of `power`. Windows are first grouped by the
// pattern of six consecutive coefficients, which needs a third of the additions.
constexpr size_t kGroup = 6;
constexpr size_t kGroups = (kDegree + kGroup - 1) / kGroup;
constexpr size_t kWindow = kWords + kGroup - 1;

SHADOWGRAPH_WIDE_VECTORS void add_window(uint32_t* to, const uint32_t* window, size_t size) {
  for (size_t j = 0; j < size; ++j) to[j] ^= window[j];
}

void sum_of_windows(const Polynomial& power, const uint32_t* words, State& sum) {
  constexpr size_t kPatterns = size_t{1} << kGroup;
  std::vector<uint32_t> by_pattern(kPatterns * kWindow);
  for (size_t group = 0; group < kGroups; ++group) {
    const size_t bit = group * kGroup;
    uint64_t bits = power[bit / 64] >> (bit % 64);
    if (bit % 64 > 64 - kGroup && bit / 64 + 1 < kPolynomialWords) bits |= power[bit / 64 + 1] << (64 - bit % 64);
    const size_t pattern = bits % kPatterns;
    if (pattern != 0) add_window(by_pattern.data() + pattern * kWindow, words + bit, kWindow);
  }
  sum.fill(0);
  for (size_t pattern = 1; pattern < kPatterns; ++pattern) {
    for (size_t bit = 0; bit < kGroup; ++bit) {
      if ((pattern >> bit & 1) != 0) add_window(sum.data(), by_pattern.data() + pattern * kWindow + bit, kWords);
    }
  }
}

void jump_blocks(State& state, uint64_t blocks) {
  // The state begins at the second word: the low bits of the first are not part of it.
  const Polynomial power = power_of_x(blocks * kWords - 1);
  std::vector<uint32_t> words(1 + kGroups * kGroup + kWords);
  std::copy(state.begin(), state.end(), words.begin());
  for (size_t i = 0; i + kWords < words.size(); ++i) {
    words[i + kWords] = next_word(words[i + kShift], words[i], words[i + 1]);
  }
  sum_of_windows(power, words.data() + 1, state);
}

// From here on a jump is faster than running the recurrence: 0.3 ms against half a microsecond per block.
constexpr uint64_t kJumpFrom = 768;

}  // namespace

std::span<const uint16_t> mt19937_polynomial() { return kExponents; }

// Advances the engine and its counters. After k draws of a block, next_ is k and left_ is 625 - k; freshly seeded,
// left_ is 1 and next_ is 0.
void advance(at::mt19937_data_pod& engine, uint64_t draws) {
  const auto available = static_cast<uint64_t>(engine.left_ - 1);
  if (draws <= available) {
    engine.left_ -= static_cast<int>(draws);
    engine.next_ += static_cast<uint32_t>(draws);
    return;
  }
  const uint64_t beyond = draws - available;
  const uint64_t blocks = (beyond - 1) / kWords + 1;
  if (blocks < kJumpFrom) {
    for (uint64_t i = 0; i < blocks; ++i) next_block(engine.state_);
  } else {
    jump_blocks(engine.state_, blocks);
  }
  const auto used = static_cast<uint32_t>(beyond - (blocks - 1) * kWords);
  engine.next_ = used;
  engine.left_ = static_cast<int>(kWords + 1 - used);
}

}  // namespace shadowgraph
