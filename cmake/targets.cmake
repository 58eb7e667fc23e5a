# Settings that every translation unit of the project shares.
add_library(shadowgraph_settings INTERFACE)
target_include_directories(shadowgraph_settings INTERFACE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/include)
target_compile_definitions(shadowgraph_settings INTERFACE SHADOWGRAPH_VERSION="${PROJECT_VERSION}")
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
add_library(shadowgraph_fmt STATIC ${CMAKE_CURRENT_LIST_DIR}/fmt_library.cpp)
target_link_libraries(shadowgraph_fmt PRIVATE libtorch::cpu)
set_target_properties(shadowgraph_fmt PROPERTIES CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
target_link_libraries(shadowgraph_settings INTERFACE shadowgraph_fmt)

# Compiles the sources of `target` in groups: those of one folder, in the order of their names, up to SHADOWGRAPH_GROUP_BYTES
# together. Behind a precompiled header of libtorch a small file still spends most of its time on templates that the
# headers leave to instantiate, in every unit alike; a group does so once (docs/architecture.md#building). What is local
# to a file must therefore have a name of its own within its folder.
function(shadowgraph_group target)
  if(SHADOWGRAPH_GROUP_BYTES EQUAL 0)
    return()
  endif()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  # In a group GCC takes every file for an included one, and warns of what is local to it.
  target_compile_options(${target} PRIVATE -Wno-subobject-linkage)
  get_target_property(folder ${target} SOURCE_DIR)
  get_target_property(sources ${target} SOURCES)
  list(FILTER sources INCLUDE REGEX "\\.cpp$")
  list(SORT sources)
  set(group_folder "")
  set(number 0)
  set(filled 0)
  foreach(source IN LISTS sources)
    cmake_path(ABSOLUTE_PATH source BASE_DIRECTORY ${folder} OUTPUT_VARIABLE path)
    file(SIZE ${path} bytes)
    cmake_path(GET path PARENT_PATH source_folder)
    math(EXPR sum "${filled} + ${bytes}")
    if(NOT source_folder STREQUAL group_folder OR sum GREATER SHADOWGRAPH_GROUP_BYTES)
      math(EXPR number "${number} + 1")
      set(group_folder ${source_folder})
      set(sum ${bytes})
    endif()
    set(filled ${sum})
    set_property(SOURCE ${path} DIRECTORY ${folder} PROPERTY UNITY_GROUP ${target}_${number})
  endforeach()
endfunction()

# What ccache takes for the contents of target's precompiled header: they follow from libtorch's version, the compiler and
# the text of `header`, which includes nothing of this project. The flags are hashed with each unit.
function(shadowgraph_pch_sum target header)
  file(READ ${header} text)
  get_target_property(folder ${target} BINARY_DIR)
  file(CONFIGURE OUTPUT ${folder}/CMakeFiles/${target}.dir/cmake_pch.hxx.gch.sum @ONLY
    CONTENT "${Libtorch_VERSION} ${Libtorch_WITH_CUDA} ${CMAKE_CXX_COMPILER_VERSION} ${CMAKE_BUILD_TYPE} ${text}")
endfunction()

# The folder `name` as an object library sg_<name>. All layers share the precompiled headers of ir/, the lowest one.
function(shadowgraph_layer name)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/${name}/*.cpp)
  add_library(sg_${name} OBJECT ${sources})
  target_link_libraries(sg_${name} PUBLIC shadowgraph_settings)
  # The library shows what the public headers declare (include/shadowgraph/export.h).
  set_target_properties(sg_${name} PROPERTIES CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
  shadowgraph_group(sg_${name})
  if(name STREQUAL "ir")
    target_precompile_headers(sg_ir PRIVATE ${PROJECT_SOURCE_DIR}/cmake/precompiled.h)
    shadowgraph_pch_sum(sg_ir ${PROJECT_SOURCE_DIR}/cmake/precompiled.h)
  else()
    target_precompile_headers(sg_${name} REUSE_FROM sg_ir)
  endif()
  if(name STREQUAL "viz")
    # Headers alone: the library is opened when a picture is drawn (viz/svg_writer.cpp).
    target_include_directories(sg_viz SYSTEM PRIVATE ${GRAPHVIZ_INCLUDE_DIRS})
    target_link_libraries(sg_viz PRIVATE ${CMAKE_DL_LIBS})
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
    PRIVATE ${CMAKE_DL_LIBS} $<BUILD_INTERFACE:ZLIB::ZLIB> $<INSTALL_INTERFACE:z> $<BUILD_INTERFACE:shadowgraph_fmt> $<BUILD_INTERFACE:shadowgraph_sanitizers>)
  target_include_directories(${target} PUBLIC
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:include>)
  target_compile_features(${target} PUBLIC cxx_std_20)
  set_target_properties(${target} PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR})
endfunction()

# The same objects for programs that look inside, as the tests do: linked in, not from the shared library, whose internals
# are hidden.
function(shadowgraph_internals target)
  add_library(${target} INTERFACE)
  foreach(layer ${ARGN})
    target_sources(${target} INTERFACE $<TARGET_OBJECTS:sg_${layer}>)
  endforeach()
  target_link_libraries(${target} INTERFACE shadowgraph_settings ZLIB::ZLIB ${CMAKE_DL_LIBS})
endfunction()

# What needs all of <torch/torch.h>: a precompiled copy of it, one at -O0 for tests and one as the rest is optimised.
function(shadowgraph_torch_pch name options)
  add_library(${name} OBJECT ${PROJECT_SOURCE_DIR}/cmake/torch_precompiled.cpp)
  target_link_libraries(${name} PUBLIC shadowgraph_settings)
  target_compile_options(${name} PRIVATE ${options})
  target_precompile_headers(${name} PRIVATE ${PROJECT_SOURCE_DIR}/cmake/torch_precompiled.h)
  shadowgraph_pch_sum(${name} ${PROJECT_SOURCE_DIR}/cmake/torch_precompiled.h)
endfunction()

# `target` takes the precompiled <torch/torch.h> `header` and is compiled with the same `options`.
function(shadowgraph_use_torch_pch target header options)
  if(NOT TARGET ${header})
    shadowgraph_torch_pch(${header} "${options}")
  endif()
  target_link_libraries(${target} PRIVATE shadowgraph_settings)
  target_compile_options(${target} PRIVATE ${options})
  get_target_property(type ${target} TYPE)
  if(type STREQUAL "EXECUTABLE")
    # GCC takes a precompiled header only with the same code model: -fPIC, where CMake gives programs -fPIE.
    set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
    target_compile_options(${target} PRIVATE -fPIC)
  endif()
  target_precompile_headers(${target} REUSE_FROM ${header})
  shadowgraph_group(${target})
endfunction()

# Programs whose own code need not be fast: libtorch and shadowgraph do the work. An optimiser takes half of their build.
function(shadowgraph_unoptimised target)
  shadowgraph_use_torch_pch(${target} sg_torch_pch -O0)
endfunction()
function(shadowgraph_optimised target)
  shadowgraph_use_torch_pch(${target} sg_torch_pch_optimised -O2)
endfunction()
