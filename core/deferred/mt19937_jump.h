// Skips draws of libtorch's CPU generator without making them.
//
//     at::mt19937_data_pod engine = generator.engine().data();
//     advance(engine, 60'000'000'000);   // 0.5 ms; making the draws takes a minute
//
// The Mersenne twister is linear over GF(2). What it gives J words on is x^J modulo the characteristic polynomial of
// its recurrence, applied to what it gives now. (Haramoto, Matsumoto, Nishimura, Panneton, L'Ecuyer, "Efficient jump
// ahead for F2-linear random number generators", 2008.) Near skips simply run the recurrence.
#pragma once

#include <ATen/core/MT19937RNGEngine.h>

#include <cstdint>
#include <span>

namespace shadowgraph {

// Leaves the engine as `draws` calls of random() do (random64() is two of them), every word of its state included.
void advance(at::mt19937_data_pod& engine, uint64_t draws);

// The exponents of the characteristic polynomial, ascending from 0 to 19937. Berlekamp and Massey's algorithm finds
// them from one bit of 2 * 19937 consecutive outputs; tests/core/deferred/mt19937_jump_test.cpp derives them again.
std::span<const uint16_t> mt19937_polynomial();

}  // namespace shadowgraph
