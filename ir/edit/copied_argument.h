// Copies arguments from one graph into another, or within one. Internal to the library.
#pragma once

#include <string>
#include <vector>

#include "shadowgraph/graph.h"

namespace shadowgraph {

// Copies what an argument has in pools of its graph: strings, lists of integers, complex numbers. A list gets what
// `element` makes of each of its elements. Values and tensor constants come back as they are.
template <class CopyElement>
Argument copied_argument(Graph& into, const Graph& from, const Argument& argument, const CopyElement& element) {
  switch (argument.kind) {
    case ArgumentKind::kString:
    case ArgumentKind::kOpaque: {
      Argument copy = into.string_argument(std::string(from.text_or_empty(argument.string)));
      copy.kind = argument.kind;
      return copy;
    }
    case ArgumentKind::kIntList: {
      const auto ints = from.ints(argument);  // of a pool that may grow, if both are one graph
      return into.int_list(std::vector<int64_t>(ints.begin(), ints.end()));
    }
    case ArgumentKind::kComplex: {
      const auto parts = from.complex_parts(argument);
      return into.complex_argument(parts[0], parts[1]);
    }
    case ArgumentKind::kList: {
      const auto list = from.list(argument);
      std::vector<Argument> elements(list.begin(), list.end());
      for (Argument& e : elements) e = element(e);
      return into.make_list(elements);
    }
    default:
      return argument;
  }
}

}  // namespace shadowgraph
