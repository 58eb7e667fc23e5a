// Compiled for wider vectors too; the machine's are chosen when the library is loaded. Sums are of single products and
// whole amounts: the same on every machine.
#pragma once

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define SHADOWGRAPH_SOLVER_LOOPS __attribute__((target_clones("avx2", "default")))
#else
#define SHADOWGRAPH_SOLVER_LOOPS
#endif
