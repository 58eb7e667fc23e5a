# Text files compiled in: every *.json of a folder, or what matches the patterns given, becomes a row of a table in one source.
#   shadowgraph_embed(target folder function [pattern...])
#   folder/x.json: an EmbeddedFile {"x", text} in what `function` gives; folder/x.css: {"x.css", text}
function(shadowgraph_embed target folder function)
  set(patterns ${ARGN})
  if(NOT patterns)
    set(patterns *.json)
  endif()
  list(TRANSFORM patterns PREPEND ${folder}/)
  file(GLOB files CONFIGURE_DEPENDS ${patterns})
  set(rows "")
  foreach(path ${files})
    cmake_path(GET path FILENAME name)
    string(REGEX REPLACE "\\.json$" "" name "${name}")
    file(READ ${path} text)
    string(APPEND rows "    {\"${name}\", R\"embedded(${text})embedded\"},\n")
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${path})
  endforeach()
  set(source ${PROJECT_BINARY_DIR}/generated/${function}.cpp)
  file(CONFIGURE OUTPUT ${source} @ONLY CONTENT
"// Written by cmake/embed.cmake from ${folder}.
#include <span>

#include \"support/embedded_file.h\"

namespace shadowgraph {

std::span<const EmbeddedFile> @function@() {
  static constexpr EmbeddedFile kFiles[] = {
@rows@  };
  return kFiles;
}

}  // namespace shadowgraph
")
  target_sources(${target} PRIVATE ${source})
endfunction()
