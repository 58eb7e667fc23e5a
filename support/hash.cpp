#include "support/hash.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <cstring>

namespace shadowgraph {
namespace {

struct Sha256Constants {
  std::array<uint32_t, 8> start;   // fractional parts of the square roots of the first primes
  std::array<uint32_t, 64> round;  // fractional parts of their cube roots
};

Sha256Constants make_constants() {
  Sha256Constants constants{};
  const auto fraction = [](long double root) {
    return static_cast<uint32_t>((root - std::floor(root)) * 4294967296.0L);
  };
  uint32_t found = 0;
  for (uint32_t candidate = 2; found < 64; ++candidate) {
    bool prime = true;
    for (uint32_t d = 2; d * d <= candidate; ++d) prime = prime && candidate % d != 0;
    if (!prime) continue;
    if (found < 8) constants.start[found] = fraction(std::sqrt(static_cast<long double>(candidate)));
    constants.round[found++] = fraction(std::cbrt(static_cast<long double>(candidate)));
  }
  return constants;
}

void sha256_block(std::array<uint32_t, 8>& state, const uint8_t* bytes, const std::array<uint32_t, 64>& round) {
  std::array<uint32_t, 64> w;
  for (int i = 0; i < 16; ++i) {
    w[i] = static_cast<uint32_t>(bytes[4 * i]) << 24 | static_cast<uint32_t>(bytes[4 * i + 1]) << 16 |
           static_cast<uint32_t>(bytes[4 * i + 2]) << 8 | bytes[4 * i + 3];
  }
  for (int i = 16; i < 64; ++i) {
    const uint32_t a = std::rotr(w[i - 15], 7) ^ std::rotr(w[i - 15], 18) ^ (w[i - 15] >> 3);
    const uint32_t b = std::rotr(w[i - 2], 17) ^ std::rotr(w[i - 2], 19) ^ (w[i - 2] >> 10);
    w[i] = w[i - 16] + a + w[i - 7] + b;
  }
  auto [a, b, c, d, e, f, g, h] = state;
  for (int i = 0; i < 64; ++i) {
    const uint32_t t1 =
        h + (std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25)) + ((e & f) ^ (~e & g)) + round[i] + w[i];
    const uint32_t t2 = (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
    h = g;
    g = f;
    f = e;
    e = d + t1;
    d = c;
    c = b;
    b = a;
    a = t1 + t2;
  }
  const std::array<uint32_t, 8> added = {a, b, c, d, e, f, g, h};
  for (int i = 0; i < 8; ++i) state[i] += added[i];
}

}  // namespace

std::string sha256(std::string_view bytes) {
  static const Sha256Constants constants = make_constants();
  std::array<uint32_t, 8> state = constants.start;
  const auto* data = reinterpret_cast<const uint8_t*>(bytes.data());
  const size_t whole = bytes.size() / 64;
  for (size_t i = 0; i < whole; ++i) sha256_block(state, data + 64 * i, constants.round);
  std::array<uint8_t, 128> tail{};
  const size_t rest = bytes.size() - 64 * whole;
  if (rest != 0) std::memcpy(tail.data(), data + 64 * whole, rest);
  tail[rest] = 0x80;
  const size_t blocks = rest + 9 <= 64 ? 1 : 2;
  const uint64_t bits = uint64_t{bytes.size()} * 8;
  for (size_t i = 0; i < 8; ++i) tail[64 * blocks - 1 - i] = static_cast<uint8_t>(bits >> (8 * i));
  for (size_t i = 0; i < blocks; ++i) sha256_block(state, tail.data() + 64 * i, constants.round);
  std::string out;
  for (const uint32_t word : state) out += fmt::format("{:08x}", word);
  return out;
}

}  // namespace shadowgraph
