# Text files compiled in: every *.json of a folder becomes a row of a table in one source.
#   shadowgraph_embed_devices(target folder)
function(shadowgraph_embed_devices target folder)
  file(GLOB files CONFIGURE_DEPENDS ${folder}/*.json)
  set(rows "")
  foreach(path ${files})
    get_filename_component(name ${path} NAME_WE)
    file(READ ${path} text)
    string(APPEND rows "    {\"${name}\", R\"json(${text})json\"},\n")
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${path})
  endforeach()
  set(source ${PROJECT_BINARY_DIR}/generated/device_files.cpp)
  file(CONFIGURE OUTPUT ${source} @ONLY CONTENT
"// Written by cmake/embed.cmake from profiler/time/devices/.
#include \"profiler/time/device_files.h\"

namespace shadowgraph {

std::span<const DeviceFile> device_files() {
  static constexpr DeviceFile kFiles[] = {
@rows@  };
  return kFiles;
}

}  // namespace shadowgraph
")
  target_sources(${target} PRIVATE ${source})
endfunction()
