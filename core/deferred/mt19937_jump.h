// Skips draws of libtorch's CPU generator without computing them.
//
//     at::mt19937_data_pod engine = generator.engine().data();
//     advance(engine, 60'000'000'000);   // 0.5 ms; drawing takes a minute
//
// The Mersenne Twister is linear over GF(2): its output J words ahead is x^J, modulo the characteristic polynomial of
// its recurrence, applied to the current output (Haramoto, Matsumoto, Nishimura, Panneton, L'Ecuyer, "Efficient jump
// ahead for F2-linear random number generators", 2008). Short skips run the recurrence.
#pragma once

#include <ATen/core/MT19937RNGEngine.h>

#include <cstdint>
#include <span>

namespace shadowgraph {

// Has the same effect on the engine, including every word of its state, as `draws` calls of random() (random64() counts
// as two).
void advance(at::mt19937_data_pod& engine, uint64_t draws);

// Returns the exponents of the characteristic polynomial, ascending from 0 to 19937. The Berlekamp-Massey algorithm
// finds them from one bit of 2 * 19937 consecutive outputs, as tests/core/deferred/mt19937_jump_test.cpp does.
std::span<const uint16_t> mt19937_polynomial();

}  // namespace shadowgraph
