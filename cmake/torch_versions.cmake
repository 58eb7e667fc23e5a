# Reads torch_versions.txt: the supported versions of libtorch, and the CUDA and cuDNN versions of this one's wheel.
#
# Sets   SHADOWGRAPH_TORCH_VERSIONS   "2.12.1;2.13.0;..."
#        SHADOWGRAPH_CUDA_VERSION, SHADOWGRAPH_CUDNN_VERSION   of the row of this minor; else of the newest
set(SHADOWGRAPH_TORCH_VERSIONS "")
set(SHADOWGRAPH_TORCH_KNOWN FALSE)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/torch_versions.txt)
file(STRINGS ${CMAKE_CURRENT_LIST_DIR}/torch_versions.txt _torch_rows REGEX "^[0-9]")
foreach(_torch_row IN LISTS _torch_rows)
  string(REGEX MATCHALL "[^ ]+" _torch_row "${_torch_row}")
  list(GET _torch_row 0 _torch_version)
  list(APPEND SHADOWGRAPH_TORCH_VERSIONS ${_torch_version})
  string(REGEX REPLACE "[.][0-9]+$" "." _torch_minor "${_torch_version}")
  string(FIND "${Libtorch_VERSION}" "${_torch_minor}" _torch_position)
  if(NOT SHADOWGRAPH_TORCH_KNOWN)
    list(GET _torch_row 1 SHADOWGRAPH_CUDA_VERSION)
    list(GET _torch_row 2 SHADOWGRAPH_CUDNN_VERSION)
  endif()
  if(_torch_position EQUAL 0)
    set(SHADOWGRAPH_TORCH_KNOWN TRUE)
  endif()
endforeach()
if(NOT SHADOWGRAPH_TORCH_KNOWN)
  list(JOIN SHADOWGRAPH_TORCH_VERSIONS ", " _torch_text)
  message(WARNING "shadowgraph is tested with libtorch ${_torch_text}, but this is ${Libtorch_VERSION}. "
                  "See CONTRIBUTING.md for adding a version.")
endif()
