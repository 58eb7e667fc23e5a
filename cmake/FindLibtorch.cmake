# Finds libtorch, of any build, without a CUDA toolkit on the machine.
#
# PyTorch's own TorchConfig.cmake of a CUDA build includes Caffe2's public/cuda.cmake, which requires nvcc, the CUDA
# headers and enable_language(CUDA), and otherwise fails with "Your installed Caffe2 version uses CUDA but I cannot find
# the CUDA libraries". That fails on most machines with the CUDA wheel, since pip installs the CUDA libraries but no
# toolkit. Nothing here includes a CUDA header, so the shared libraries and the include folders are sufficient.
#
# Search order: TORCH_DIR (variable, then environment), a Torch that find_package(Torch) has found already,
# CMAKE_PREFIX_PATH (variable, then environment), the virtual environment of this checkout. Each may be the torch folder
# of a wheel, an unpacked libtorch, or a folder below one (share/cmake, share/cmake/Torch).
#
# Sets   libtorch::libtorch    as linked by find_package(Torch): libtorch, libtorch_cpu, libc10, and for a CUDA build
#                              libtorch_cuda behind libtorch
#        libtorch::cpu         libtorch_cpu and libc10 only: all that shadowgraph itself calls
#        Libtorch_ROOT_DIR, Libtorch_VERSION, Libtorch_WITH_CUDA, Libtorch_WITH_DISTRIBUTED

set(_libtorch_candidates ${TORCH_DIR} "$ENV{TORCH_DIR}" ${TORCH_INSTALL_PREFIX} ${CMAKE_PREFIX_PATH})
string(REPLACE ":" ";" _libtorch_environment "$ENV{CMAKE_PREFIX_PATH}")
list(APPEND _libtorch_candidates ${_libtorch_environment})
if(PROJECT_SOURCE_DIR)
  file(GLOB _libtorch_wheel LIST_DIRECTORIES true ${PROJECT_SOURCE_DIR}/.venv/lib/python3*/site-packages/torch)
  list(APPEND _libtorch_candidates ${_libtorch_wheel})
endif()

set(Libtorch_ROOT_DIR "")
foreach(_libtorch_candidate IN LISTS _libtorch_candidates)
  foreach(_libtorch_below "" /torch /../.. /../../..)
    if(NOT Libtorch_ROOT_DIR AND _libtorch_candidate
       AND EXISTS "${_libtorch_candidate}${_libtorch_below}/include/ATen/ATen.h"
       AND EXISTS "${_libtorch_candidate}${_libtorch_below}/lib/libtorch_cpu.so")
      get_filename_component(Libtorch_ROOT_DIR "${_libtorch_candidate}${_libtorch_below}" REALPATH)
    endif()
  endforeach()
endforeach()
# An explicitly given folder without libtorch is an error; continuing with the next candidate would hide it.
foreach(_libtorch_asked "${TORCH_DIR}" "$ENV{TORCH_DIR}")
  if(_libtorch_asked)
    get_filename_component(_libtorch_asked "${_libtorch_asked}" REALPATH)
    string(FIND "${_libtorch_asked}/" "${Libtorch_ROOT_DIR}" _libtorch_position)
    string(FIND "${Libtorch_ROOT_DIR}" "${_libtorch_asked}" _libtorch_reverse)
    if(NOT Libtorch_ROOT_DIR OR (NOT _libtorch_position EQUAL 0 AND NOT _libtorch_reverse EQUAL 0))
      message(FATAL_ERROR "TORCH_DIR is ${_libtorch_asked}, but there is no include/ATen/ATen.h and lib/libtorch_cpu.so "
                          "in it. Point it at the torch folder of a wheel (python -c 'import torch; "
                          "print(torch.__path__[0])') or at an unpacked libtorch.")
    endif()
    break()
  endif()
endforeach()

set(Libtorch_VERSION "")
set(Libtorch_WITH_CUDA FALSE)
if(Libtorch_ROOT_DIR)
  file(STRINGS ${Libtorch_ROOT_DIR}/include/torch/headeronly/version.h _libtorch_lines
       REGEX "define TORCH_VERSION_(MAJOR|MINOR|PATCH) ")
  string(REGEX MATCHALL "[0-9]+" _libtorch_numbers "${_libtorch_lines}")
  list(JOIN _libtorch_numbers "." Libtorch_VERSION)
  if(EXISTS ${Libtorch_ROOT_DIR}/lib/libtorch_cuda.so)
    set(Libtorch_WITH_CUDA TRUE)
  endif()
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Libtorch
  REQUIRED_VARS Libtorch_ROOT_DIR VERSION_VAR Libtorch_VERSION
  REASON_FAILURE_MESSAGE "make setup installs it into .venv, or set TORCH_DIR to a torch folder or an unpacked libtorch")

if(Libtorch_FOUND AND NOT TARGET libtorch::cpu)
  # Some headers depend on these definitions (including class layouts), so they must match this build of libtorch.
  set(_libtorch_definitions "")
  if(EXISTS ${Libtorch_ROOT_DIR}/share/cmake/Caffe2/Caffe2Targets.cmake)
    file(READ ${Libtorch_ROOT_DIR}/share/cmake/Caffe2/Caffe2Targets.cmake _libtorch_text)
    if(_libtorch_text MATCHES "set_target_properties\\(torch_cpu PROPERTIES[^)]*INTERFACE_COMPILE_DEFINITIONS \"([A-Z0-9_;]*)\"")
      set(_libtorch_definitions ${CMAKE_MATCH_1})
    endif()
  endif()

  set(Libtorch_WITH_DISTRIBUTED FALSE)
  if("USE_DISTRIBUTED" IN_LIST _libtorch_definitions
     AND EXISTS ${Libtorch_ROOT_DIR}/include/torch/csrc/distributed/c10d/ProcessGroup.hpp)
    set(Libtorch_WITH_DISTRIBUTED TRUE)
  endif()

  add_library(libtorch::c10 SHARED IMPORTED)
  set_target_properties(libtorch::c10 PROPERTIES
    IMPORTED_LOCATION ${Libtorch_ROOT_DIR}/lib/libc10.so IMPORTED_SONAME libc10.so
    INTERFACE_INCLUDE_DIRECTORIES
      "${Libtorch_ROOT_DIR}/include;${Libtorch_ROOT_DIR}/include/torch/csrc/api/include")
  add_library(libtorch::cpu SHARED IMPORTED)
  set_target_properties(libtorch::cpu PROPERTIES
    IMPORTED_LOCATION ${Libtorch_ROOT_DIR}/lib/libtorch_cpu.so IMPORTED_SONAME libtorch_cpu.so
    INTERFACE_COMPILE_DEFINITIONS "${_libtorch_definitions}"
    INTERFACE_COMPILE_FEATURES cxx_std_20
    INTERFACE_LINK_LIBRARIES libtorch::c10)

  add_library(libtorch::torch SHARED IMPORTED)
  set_target_properties(libtorch::torch PROPERTIES
    IMPORTED_LOCATION ${Libtorch_ROOT_DIR}/lib/libtorch.so IMPORTED_SONAME libtorch.so)
  # libtorch.so defines no symbols; it only depends on libtorch_cpu and, in a CUDA build, libtorch_cuda, whose static
  # initializers register the CUDA kernels, hooks and guards. A linker that drops unneeded libraries (Ubuntu's default)
  # would drop it, and CUDA with it.
  set(CMAKE_LINK_LIBRARY_USING_libtorch_keep_SUPPORTED TRUE)
  set(CMAKE_LINK_LIBRARY_USING_libtorch_keep
    "LINKER:--push-state,--no-as-needed" "<LINK_ITEM>" "LINKER:--pop-state")
  add_library(libtorch::libtorch INTERFACE IMPORTED)
  set_target_properties(libtorch::libtorch PROPERTIES
    INTERFACE_LINK_LIBRARIES "$<LINK_LIBRARY:libtorch_keep,libtorch::torch>;libtorch::cpu")
  if(Libtorch_WITH_CUDA)
    # Otherwise the linker would require the CUDA libraries that libtorch_cuda depends on.
    set_property(TARGET libtorch::libtorch APPEND PROPERTY INTERFACE_LINK_OPTIONS LINKER:--allow-shlib-undefined)
  endif()
endif()
