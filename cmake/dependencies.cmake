find_package(Torch REQUIRED)
if(NOT Torch_VERSION MATCHES "^2\\.13\\.")
  message(WARNING "shadowgraph is written and tested against libtorch 2.13.0; this one is ${Torch_VERSION}")
endif()
# TorchConfig appends its ABI and CUDA flags here rather than to a target.
set(CMAKE_CXX_FLAGS "${CMAKE_CXX_FLAGS} ${TORCH_CXX_FLAGS}")

find_package(fmt REQUIRED)
find_package(nlohmann_json 3.11 REQUIRED)
find_package(CLI11 REQUIRED)
find_package(Boost 1.74 REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(GRAPHVIZ REQUIRED IMPORTED_TARGET libgvc libcgraph)
