// Compiles functions for wider vectors too; the library takes the machine's when it is loaded. Sums are of single
// products and whole amounts, so they are the same on every machine.
#pragma once

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define SHADOWGRAPH_SOLVER_LOOPS __attribute__((target_clones("avx2", "default")))
#else
#define SHADOWGRAPH_SOLVER_LOOPS
#endif
