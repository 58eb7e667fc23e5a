# Settings that every translation unit of the project shares.
add_library(shadowgraph_settings INTERFACE)
target_include_directories(shadowgraph_settings INTERFACE ${PROJECT_SOURCE_DIR})
# libtorch ships fmt's headers without its library, Debian another version of both: header-only works with either.
target_compile_definitions(shadowgraph_settings INTERFACE FMT_HEADER_ONLY SHADOWGRAPH_VERSION="${PROJECT_VERSION}")
target_compile_options(shadowgraph_settings INTERFACE -Wall -Wextra -Wno-unused-parameter -Wno-missing-field-initializers)
if(SHADOWGRAPH_WARNINGS_AS_ERRORS)
  target_compile_options(shadowgraph_settings INTERFACE -Werror)
endif()
# Calls inside the shared library need no detour for symbols that nobody replaces.
target_compile_options(shadowgraph_settings INTERFACE -fno-semantic-interposition)
add_library(shadowgraph_sanitizers INTERFACE)
if(SHADOWGRAPH_SANITIZE)
  target_compile_options(shadowgraph_sanitizers INTERFACE -fsanitize=${SHADOWGRAPH_SANITIZE} -fno-omit-frame-pointer)
  target_link_options(shadowgraph_sanitizers INTERFACE -fsanitize=${SHADOWGRAPH_SANITIZE})
endif()
target_link_libraries(shadowgraph_settings INTERFACE shadowgraph_sanitizers)
target_link_libraries(shadowgraph_settings INTERFACE libtorch::cpu nlohmann_json::nlohmann_json)

# The folder `name` as an object library sg_<name>. All layers share the precompiled headers of ir/, the lowest one.
function(shadowgraph_layer name)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/${name}/*.cpp)
  add_library(sg_${name} OBJECT ${sources})
  target_link_libraries(sg_${name} PUBLIC shadowgraph_settings)
  if(name STREQUAL "ir")
    target_precompile_headers(sg_ir PRIVATE ${PROJECT_SOURCE_DIR}/cmake/precompiled.h)
  else()
    target_precompile_headers(sg_${name} REUSE_FROM sg_ir)
  endif()
  if(name STREQUAL "viz")
    target_link_libraries(sg_viz PRIVATE PkgConfig::GRAPHVIZ)
  endif()
endfunction()

function(shadowgraph_assemble target)
  foreach(layer ${ARGN})
    target_sources(${target} PRIVATE $<TARGET_OBJECTS:sg_${layer}>)
  endforeach()
  # shadowgraph itself calls libtorch_cpu only. With a CUDA build of libtorch, that keeps libtorch_cuda and the
  # libraries behind it out of the tool (it starts in 0.23 s, not 0.40, 1.4 when cold), which pretends to have CUDA anyway.
  # Programs that use the installed package get the whole of libtorch, CUDA included, as from find_package(Torch).
  target_link_libraries(${target}
    PUBLIC $<BUILD_INTERFACE:libtorch::cpu> $<INSTALL_INTERFACE:libtorch::libtorch> nlohmann_json::nlohmann_json
    PRIVATE $<BUILD_INTERFACE:PkgConfig::GRAPHVIZ> $<BUILD_INTERFACE:shadowgraph_sanitizers>)
  target_include_directories(${target} PUBLIC
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}> $<BUILD_INTERFACE:${PROJECT_BINARY_DIR}/include>
    $<INSTALL_INTERFACE:include> $<INSTALL_INTERFACE:include/shadowgraph>)
  target_compile_features(${target} PUBLIC cxx_std_20)
  set_target_properties(${target} PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR})
  # <shadowgraph/ir/graph.h> works in the build tree as it does installed.
  file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/include/shadowgraph)
  foreach(entry ${ARGN} shadowgraph.h)
    file(CREATE_LINK ${PROJECT_SOURCE_DIR}/${entry} ${PROJECT_BINARY_DIR}/include/shadowgraph/${entry} SYMBOLIC)
  endforeach()
endfunction()

# Programs and libraries that need all of <torch/torch.h> share one precompiled copy of it (45 s to make).
function(shadowgraph_use_torch_pch target)
  if(NOT TARGET sg_torch_pch)
    add_library(sg_torch_pch OBJECT ${PROJECT_SOURCE_DIR}/cmake/torch_precompiled.cpp)
    target_link_libraries(sg_torch_pch PUBLIC shadowgraph_settings)
    target_precompile_headers(sg_torch_pch PRIVATE ${PROJECT_SOURCE_DIR}/cmake/torch_precompiled.h)
  endif()
  target_link_libraries(${target} PRIVATE shadowgraph_settings)
  get_target_property(type ${target} TYPE)
  if(type STREQUAL "EXECUTABLE")
    # GCC takes a precompiled header only with the same code model: -fPIC, where CMake gives programs -fPIE.
    set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
    target_compile_options(${target} PRIVATE -fPIC)
  endif()
  target_precompile_headers(${target} REUSE_FROM sg_torch_pch)
endfunction()
