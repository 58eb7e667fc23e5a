list(APPEND CMAKE_MODULE_PATH ${PROJECT_SOURCE_DIR}/cmake)
# Not find_package(Torch): with a CUDA build of libtorch that demands a CUDA toolkit (cmake/FindLibtorch.cmake).
find_package(Libtorch REQUIRED)
if(NOT Libtorch_VERSION MATCHES "^2\\.13\\.")
  message(WARNING "shadowgraph is written and tested against libtorch 2.13.0; this one is ${Libtorch_VERSION}")
endif()

find_package(nlohmann_json 3.11 REQUIRED)
find_package(CLI11 REQUIRED)
find_package(Boost 1.74 REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(GRAPHVIZ REQUIRED IMPORTED_TARGET libgvc libcgraph)
