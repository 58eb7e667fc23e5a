option(SHADOWGRAPH_BUILD_TOOL "Build the tool and its models, which tests and benchmarks need, too" ON)
option(SHADOWGRAPH_BUILD_TESTS "Build the tests" ${PROJECT_IS_TOP_LEVEL})
option(SHADOWGRAPH_BUILD_BENCH "Build the benchmarks" ${PROJECT_IS_TOP_LEVEL})
option(SHADOWGRAPH_BUILD_PYTHON "Build the Python package" OFF)
option(SHADOWGRAPH_FUZZ "Build the fuzz targets, with clang, and nothing else" OFF)
option(SHADOWGRAPH_WARNINGS_AS_ERRORS "Treat warnings as errors" OFF)
# Shared, because registrations (kernels on the fake key, the engine stub, hooks) must exist once in a process, and
# because the linker would drop them from an archive.
option(BUILD_SHARED_LIBS "Build libshadowgraph as a shared library" ON)
set(SHADOWGRAPH_SANITIZE "" CACHE STRING "Sanitizers to build with, e.g. address,undefined")

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
add_compile_options(-fmacro-prefix-map=${PROJECT_SOURCE_DIR}/=) # no folder of this machine in messages
# Installed programs find libshadowgraph relative to their path and libtorch where it was at build time.
set(CMAKE_INSTALL_RPATH $ORIGIN/../lib)
set(CMAKE_INSTALL_RPATH_USE_LINK_PATH ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)

find_program(SHADOWGRAPH_CCACHE ccache)
if(SHADOWGRAPH_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # Precompiled headers contain time stamps, and GCC's are never identical: without this sloppiness, and the checksums
  # written by shadowgraph_pch_sum (cmake/targets.cmake), every unit that uses one would miss the cache. The base
  # directory makes a clone hit what another clone has compiled.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_PCH_EXTSUM=1 CCACHE_BASEDIR=${PROJECT_SOURCE_DIR}
      CCACHE_NOHASHDIR=1
      CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime ${SHADOWGRAPH_CCACHE})
endif()
set(SHADOWGRAPH_GROUP_BYTES 90000 CACHE STRING
  "Maximum total size of sources of a folder that are compiled together (cmake/targets.cmake); 0 compiles each alone")
