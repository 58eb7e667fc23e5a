# Settings shared by all translation units of the project.
add_library(shadowgraph_settings INTERFACE)
target_include_directories(shadowgraph_settings INTERFACE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/include)
target_compile_definitions(shadowgraph_settings INTERFACE SHADOWGRAPH_VERSION="${PROJECT_VERSION}")
target_compile_options(shadowgraph_settings INTERFACE -Wall -Wextra -Wno-unused-parameter -Wno-missing-field-initializers)
if(SHADOWGRAPH_WARNINGS_AS_ERRORS)
  target_compile_options(shadowgraph_settings INTERFACE -Werror)
endif()
# Calls inside the shared library need no indirection, since its symbols are never interposed.
target_compile_options(shadowgraph_settings INTERFACE -fno-semantic-interposition)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # GCC's garbage collector would traverse the precompiled header several times per unit and free almost nothing.
  target_compile_options(shadowgraph_settings INTERFACE --param=ggc-min-expand=1000 --param=ggc-min-heapsize=8000000)
endif()
add_library(shadowgraph_sanitizers INTERFACE)
if(SHADOWGRAPH_SANITIZE)
  target_compile_options(shadowgraph_sanitizers INTERFACE -fsanitize=${SHADOWGRAPH_SANITIZE} -fno-omit-frame-pointer)
  target_link_options(shadowgraph_sanitizers INTERFACE -fsanitize=${SHADOWGRAPH_SANITIZE})
endif()
target_link_libraries(shadowgraph_settings INTERFACE shadowgraph_sanitizers)
target_link_libraries(shadowgraph_settings INTERFACE libtorch::cpu nlohmann_json::nlohmann_json)
# Makes libtorch's headers include only the operators that they call, not all 4,000 operator headers.
target_compile_definitions(shadowgraph_settings INTERFACE AT_PER_OPERATOR_HEADERS)
add_library(shadowgraph_fmt STATIC ${CMAKE_CURRENT_LIST_DIR}/fmt_library.cpp)
target_link_libraries(shadowgraph_fmt PRIVATE libtorch::cpu)
set_target_properties(shadowgraph_fmt PROPERTIES CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
target_link_libraries(shadowgraph_settings INTERFACE shadowgraph_fmt)

# Compiles the sources of each folder of `target` in groups, in the order of their paths, of up to
# SHADOWGRAPH_GROUP_BYTES each, so that edits do not change the groups of other folders. With a precompiled header of
# libtorch, a small file still spends most of its time on instantiating the headers' templates; a group does so once
# (CONTRIBUTING.md#build). Names local to a file must therefore be unique within the folder.
function(shadowgraph_group target)
  if(SHADOWGRAPH_GROUP_BYTES EQUAL 0)
    return()
  endif()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  # In a group GCC treats every file as included, and would warn about its local types.
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

# Returns the text of a precompiled header, with the project's headers that it includes.
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

# Writes what ccache uses as contents of target's precompiled header, which depend on libtorch's version, the compiler
# and the text of `header`. The flags are hashed with each unit.
function(shadowgraph_pch_sum target header)
  shadowgraph_pch_text(${header} text)
  get_target_property(folder ${target} BINARY_DIR)
  file(CONFIGURE OUTPUT ${folder}/CMakeFiles/${target}.dir/cmake_pch.hxx.gch.sum @ONLY
    CONTENT "${Libtorch_VERSION} ${Libtorch_WITH_CUDA} ${CMAKE_CXX_COMPILER_VERSION} ${CMAKE_BUILD_TYPE} ${text}")
endfunction()

# Returns how much of libtorch a file includes, directly or through the project's headers. 0: only c10's value types. 1:
# ATen. 2: the C++ frontend.
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

# Object library `name` of a layer; all share the precompiled header created by the first that uses `header`.
function(shadowgraph_layer_part name header)
  add_library(${name} OBJECT ${ARGN})
  target_link_libraries(${name} PUBLIC shadowgraph_settings)
  # The library exports what the public headers declare (include/shadowgraph/export.h).
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

# The folder `name` as object libraries: sg_<name>, and sg_<name>_libtorch of the sources that include libtorch, so that
# the others do not pay for its headers.
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
    # Headers only: the library is loaded when a picture is drawn (viz/svg_writer.cpp).
    target_include_directories(sg_viz SYSTEM PRIVATE ${GRAPHVIZ_INCLUDE_DIRS})
    target_link_libraries(sg_viz PRIVATE ${CMAKE_DL_LIBS})
  endif()
endfunction()

# Adds the objects of some layers to `target`.
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
  # shadowgraph itself only calls libtorch_cpu. With a CUDA build of libtorch, that avoids loading libtorch_cuda and its
  # dependencies in the tool (it starts in 0.23 s instead of 0.40, or 1.4 when cold), which simulates CUDA anyway.
  # Programs that use the installed package link all of libtorch, CUDA included, as with find_package(Torch).
  target_link_libraries(${target}
    PUBLIC $<BUILD_INTERFACE:libtorch::cpu> $<INSTALL_INTERFACE:libtorch::libtorch> nlohmann_json::nlohmann_json
    PRIVATE ${CMAKE_DL_LIBS} $<BUILD_INTERFACE:ZLIB::ZLIB> $<INSTALL_INTERFACE:z> $<BUILD_INTERFACE:shadowgraph_fmt> $<BUILD_INTERFACE:shadowgraph_sanitizers>)
  target_include_directories(${target} PUBLIC
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:include>)
  target_compile_features(${target} PUBLIC cxx_std_20)
  set_target_properties(${target} PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR})
endfunction()

# The same objects for programs that use internals, such as the tests: linked directly, since the shared library hides
# its internals.
function(shadowgraph_internals target)
  add_library(${target} INTERFACE)
  shadowgraph_objects(${target} INTERFACE ${ARGN})
  target_link_libraries(${target} INTERFACE shadowgraph_settings ZLIB::ZLIB ${CMAKE_DL_LIBS})
endfunction()

# Programs whose own code need not be fast are compiled with -O0, since libtorch and shadowgraph do the work and
# optimization takes half of their build time.

# An object library of `sources` at -O0 with the precompiled `header`, which the first library that uses it creates. GCC
# requires the same code model for a precompiled header: -fPIC, where CMake uses -fPIE for programs.
function(shadowgraph_unoptimized_part name header)
  add_library(${name} OBJECT ${ARGN})
  target_link_libraries(${name} PUBLIC shadowgraph_settings)
  target_compile_options(${name} PRIVATE -O0)
  cmake_path(GET header FILENAME key)
  get_property(first GLOBAL PROPERTY "unoptimized ${key}")
  if(first)
    target_precompile_headers(${name} REUSE_FROM ${first})
  else()
    target_precompile_headers(${name} PRIVATE ${header})
    shadowgraph_pch_sum(${name} ${header})
    set_property(GLOBAL PROPERTY "unoptimized ${key}" ${name})
  endif()
  shadowgraph_group(${name})
endfunction()

# Adds some of the tests' sources to `target`, at -O0, each with the smaller sufficient precompiled header: ATen, or the
# C++ frontend, which costs 5 s more per unit. LIBRARIES: dependencies other than libtorch.
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
      shadowgraph_unoptimized_part(${target}_${part} ${PROJECT_SOURCE_DIR}/tests/precompiled_${part}.h ${${part}})
      target_link_libraries(${target}_${part} PRIVATE GTest::gtest GTest::gmock ${given_LIBRARIES})
      target_compile_definitions(${target}_${part} PRIVATE SHADOWGRAPH_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
      target_sources(${target} PRIVATE $<TARGET_OBJECTS:${target}_${part}>)
    endif()
  endforeach()
  set_target_properties(${target} PROPERTIES LINKER_LANGUAGE CXX)
endfunction()
