// libFuzzer target: round trip of assignment problems in both formats.
#include <cstdio>
#include <cstdlib>
#include <sstream>

#include "shadowgraph/error.h"
#include "shadowgraph/shard/solver.h"

using namespace shadowgraph;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const AssignmentProblem problem = read_assignment({reinterpret_cast<const char*>(data), size});
    std::ostringstream first, again;
    write_assignment(problem, AssignmentFormat::kJson, first);
    write_assignment(read_assignment(first.str()), AssignmentFormat::kJson, again);
    if (again.str() != first.str()) {
      std::fprintf(stderr, "round trip differs:\n%s\n", first.str().c_str());
      std::abort();
    }
  } catch (const Error&) {}
  return 0;
}
