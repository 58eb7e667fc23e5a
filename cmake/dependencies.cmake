list(APPEND CMAKE_MODULE_PATH ${PROJECT_SOURCE_DIR}/cmake)
if(SKBUILD AND NOT TORCH_DIR)
  # `pip install .` builds against the torch that its Python imports, with or without build isolation.
  execute_process(COMMAND ${Python_EXECUTABLE} -c
    "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"
    OUTPUT_VARIABLE TORCH_DIR OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
endif()
# Not find_package(Torch), which requires a CUDA toolkit for a CUDA build of libtorch (cmake/FindLibtorch.cmake).
find_package(Libtorch REQUIRED)
include(torch_versions)

if(NOT Libtorch_WITH_DISTRIBUTED)
  message(FATAL_ERROR "this libtorch (${Libtorch_ROOT_DIR}) was built without USE_DISTRIBUTED or has no c10d headers; "
                      "collectives are captured through c10d. Use a wheel or a libtorch from pytorch.org.")
endif()

find_package(nlohmann_json 3.11 REQUIRED)
if(SHADOWGRAPH_BUILD_TOOL OR SHADOWGRAPH_BUILD_PYTHON)
  find_package(CLI11 REQUIRED)
endif()
find_package(Boost 1.74 REQUIRED)
find_package(ZLIB REQUIRED)  # for the page written by viz/
find_package(PkgConfig REQUIRED)
pkg_check_modules(GRAPHVIZ REQUIRED IMPORTED_TARGET libgvc libcgraph)
