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
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # GCC's collector would walk over the precompiled header several times a unit, and free next to nothing.
  target_compile_options(shadowgraph_settings INTERFACE --param=ggc-min-expand=1000 --param=ggc-min-heapsize=8000000)
endif()
add_library(shadowgraph_sanitizers INTERFACE)
if(SHADOWGRAPH_SANITIZE)
  target_compile_options(shadowgraph_sanitizers INTERFACE -fsanitize=${SHADOWGRAPH_SANITIZE} -fno-omit-frame-pointer)
  target_link_options(shadowgraph_sanitizers INTERFACE -fsanitize=${SHADOWGRAPH_SANITIZE})
endif()
target_link_libraries(shadowgraph_settings INTERFACE shadowgraph_sanitizers)
target_link_libraries(shadowgraph_settings INTERFACE libtorch::cpu nlohmann_json::nlohmann_json)
# Headers of libtorch then include the operators that they call, not all 4,000 headers of operators.
target_compile_definitions(shadowgraph_settings INTERFACE AT_PER_OPERATOR_HEADERS)
add_library(shadowgraph_fmt STATIC ${CMAKE_CURRENT_LIST_DIR}/fmt_library.cpp)
target_link_libraries(shadowgraph_fmt PRIVATE libtorch::cpu)
set_target_properties(shadowgraph_fmt PROPERTIES CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
target_link_libraries(shadowgraph_settings INTERFACE shadowgraph_fmt)

# Compiles the sources of a folder of `target` in groups, in the order of their paths, up to SHADOWGRAPH_GROUP_BYTES
# together: an edit moves no file of another folder into another group. Behind a precompiled header of libtorch a small
# file still spends most of its time on templates that the headers leave to instantiate, in every unit alike; a group does
# so once (CONTRIBUTING.md#build). What is local to a file must therefore have a name of its own within its folder.
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
  set(group "")
  foreach(source IN LISTS sources)
    cmake_path(ABSOLUTE_PATH source BASE_DIRECTORY ${folder} OUTPUT_VARIABLE path)
    file(SIZE ${path} bytes)
    cmake_path(GET path PARENT_PATH room)
    cmake_path(RELATIVE_PATH room BASE_DIRECTORY ${PROJECT_SOURCE_DIR})
    string(MAKE_C_IDENTIFIER "${room}" room)
    if(NOT room STREQUAL group)
      set(group ${room})
      set(number 1)
      set(filled 0)
    endif()
    math(EXPR filled "${filled} + ${bytes}")
    if(filled GREATER SHADOWGRAPH_GROUP_BYTES AND filled GREATER bytes)
      math(EXPR number "${number} + 1")
      set(filled ${bytes})
    endif()
    set_property(SOURCE ${path} DIRECTORY ${folder} PROPERTY UNITY_GROUP ${target}_${room}_${number})
  endforeach()
endfunction()

# The text of a precompiled header with those of this project that it includes.
function(shadowgraph_pch_text header result)
  file(READ ${header} text)
  file(STRINGS ${header} includes REGEX "^#include \"")
  foreach(line IN LISTS includes)
    string(REGEX REPLACE "^#include \"(.*)\"$" "\\1" name "${line}")
    shadowgraph_pch_text(${PROJECT_SOURCE_DIR}/${name} inner)
    string(APPEND text "${inner}")
  endforeach()
  set(${result} "${text}" PARENT_SCOPE)
endfunction()

# What ccache takes for the contents of target's precompiled header: they follow from libtorch's version, the compiler and
# the text of `header`. The flags are hashed with each unit.
function(shadowgraph_pch_sum target header)
  shadowgraph_pch_text(${header} text)
  get_target_property(folder ${target} BINARY_DIR)
  file(CONFIGURE OUTPUT ${folder}/CMakeFiles/${target}.dir/cmake_pch.hxx.gch.sum @ONLY
    CONTENT "${Libtorch_VERSION} ${Libtorch_WITH_CUDA} ${CMAKE_CXX_COMPILER_VERSION} ${CMAKE_BUILD_TYPE} ${text}")
endfunction()

# How much of libtorch a file includes, directly or by the project's own headers. 0: nothing but c10's value types.
# 1: ATen. 2: the C++ frontend.
function(shadowgraph_depth_of_libtorch path result)
  get_property(depth GLOBAL PROPERTY "depth of libtorch ${path}")
  if("${depth}" STREQUAL "")
    set(depth 0)
    set_property(GLOBAL PROPERTY "depth of libtorch ${path}" 0)
    file(STRINGS ${path} includes REGEX "^ *# *include [<\"]")
    foreach(line IN LISTS includes)
      string(REGEX REPLACE "^ *# *include [<\"]([^>\"]*)[>\"].*" "\\1" name "${line}")
      set(other 0)
      if(name MATCHES "^torch/(nn|optim)/|^torch/torch\\.h")
        set(other 2)
      elseif(name MATCHES "^(ATen|torch)/" AND NOT name MATCHES "^torch/headeronly/")
        set(other 1)
      elseif(EXISTS ${PROJECT_SOURCE_DIR}/include/${name})
        shadowgraph_depth_of_libtorch(${PROJECT_SOURCE_DIR}/include/${name} other)
      elseif(EXISTS ${PROJECT_SOURCE_DIR}/${name})
        shadowgraph_depth_of_libtorch(${PROJECT_SOURCE_DIR}/${name} other)
      endif()
      if(other GREATER depth)
        set(depth ${other})
      endif()
      if(depth EQUAL 2)
        break()
      endif()
    endforeach()
    set_property(GLOBAL PROPERTY "depth of libtorch ${path}" ${depth})
  endif()
  set(${result} ${depth} PARENT_SCOPE)
endfunction()

# Object library `name` of a layer; all share the precompiled header of the first that takes `header`.
function(shadowgraph_layer_part name header)
  add_library(${name} OBJECT ${ARGN})
  target_link_libraries(${name} PUBLIC shadowgraph_settings)
  # The library shows what the public headers declare (include/shadowgraph/export.h).
  set_target_properties(${name} PROPERTIES CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
  shadowgraph_group(${name})
  get_property(first GLOBAL PROPERTY "precompiled ${header}")
  if(first)
    target_precompile_headers(${name} REUSE_FROM ${first})
  else()
    target_precompile_headers(${name} PRIVATE ${PROJECT_SOURCE_DIR}/cmake/${header})
    shadowgraph_pch_sum(${name} ${PROJECT_SOURCE_DIR}/cmake/${header})
    set_property(GLOBAL PROPERTY "precompiled ${header}" ${name})
  endif()
endfunction()

# The folder `name` as object libraries: sg_<name>, and sg_<name>_libtorch of the sources that include libtorch. Nobody
# pays for headers that others need.
set(SHADOWGRAPH_LAYER_PARTS "" _libtorch)
function(shadowgraph_layer name)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/${name}/*.cpp)
  foreach(source IN LISTS sources)
    shadowgraph_depth_of_libtorch(${source} depth)
    list(APPEND sources_${depth} ${source})
  endforeach()
  shadowgraph_layer_part(sg_${name} precompiled.h ${sources_0})
  if(sources_1 OR sources_2)
    shadowgraph_layer_part(sg_${name}_libtorch libtorch_precompiled.h ${sources_1} ${sources_2})
  endif()
  if(name STREQUAL "viz")
    # Headers alone: the library is opened when a picture is drawn (viz/svg_writer.cpp).
    target_include_directories(sg_viz SYSTEM PRIVATE ${GRAPHVIZ_INCLUDE_DIRS})
    target_link_libraries(sg_viz PRIVATE ${CMAKE_DL_LIBS})
  endif()
endfunction()

# Gives `target` the objects of some layers.
function(shadowgraph_objects target scope)
  foreach(layer ${ARGN})
    foreach(part IN LISTS SHADOWGRAPH_LAYER_PARTS)
      if(TARGET sg_${layer}${part})
        target_sources(${target} ${scope} $<TARGET_OBJECTS:sg_${layer}${part}>)
      endif()
    endforeach()
  endforeach()
endfunction()

function(shadowgraph_assemble target)
  shadowgraph_objects(${target} PRIVATE ${ARGN})
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
  shadowgraph_objects(${target} INTERFACE ${ARGN})
  target_link_libraries(${target} INTERFACE shadowgraph_settings ZLIB::ZLIB ${CMAKE_DL_LIBS})
endfunction()

# Programs whose own code need not be fast are compiled with -O0: libtorch and shadowgraph do the work, and an optimiser
# takes half of their build.

# An object library of `sources` at -O0 behind the precompiled `header`, which the first library that names it makes. GCC
# takes a precompiled header only with the same code model: -fPIC, where CMake gives programs -fPIE.
function(shadowgraph_unoptimised_part name header)
  add_library(${name} OBJECT ${ARGN})
  target_link_libraries(${name} PUBLIC shadowgraph_settings)
  target_compile_options(${name} PRIVATE -O0)
  cmake_path(GET header FILENAME key)
  get_property(first GLOBAL PROPERTY "unoptimised ${key}")
  if(first)
    target_precompile_headers(${name} REUSE_FROM ${first})
  else()
    target_precompile_headers(${name} PRIVATE ${header})
    shadowgraph_pch_sum(${name} ${header})
    set_property(GLOBAL PROPERTY "unoptimised ${key}" ${name})
  endif()
  shadowgraph_group(${name})
endfunction()

# Gives `target` some of the tests' sources, at -O0, each behind the smaller of two precompiled headers that it can do
# with: ATen, or the C++ frontend, which costs 5 s more a unit. LIBRARIES are what the sources need beside libtorch.
function(shadowgraph_test_sources target)
  cmake_parse_arguments(PARSE_ARGV 1 given "" "" "SOURCES;LIBRARIES")
  foreach(source IN LISTS given_SOURCES)
    cmake_path(ABSOLUTE_PATH source)
    shadowgraph_depth_of_libtorch(${source} depth)
    file(STRINGS ${source} frontend REGEX "torch::" LIMIT_COUNT 1)
    if(depth EQUAL 2 OR frontend)
      list(APPEND torch ${source})
    else()
      list(APPEND aten ${source})
    endif()
  endforeach()
  foreach(part aten torch)
    if(${part})
      shadowgraph_unoptimised_part(${target}_${part} ${PROJECT_SOURCE_DIR}/tests/precompiled_${part}.h ${${part}})
      target_link_libraries(${target}_${part} PRIVATE GTest::gtest GTest::gmock ${given_LIBRARIES})
      target_compile_definitions(${target}_${part} PRIVATE SHADOWGRAPH_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
      target_sources(${target} PRIVATE $<TARGET_OBJECTS:${target}_${part}>)
    endif()
  endforeach()
  set_target_properties(${target} PROPERTIES LINKER_LANGUAGE CXX)
endfunction()
