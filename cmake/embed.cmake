# Text files compiled in: every *.json of a folder, or what `pattern` says, becomes a row of a table in one source.
#   shadowgraph_embed(target folder function [pattern])   folder/x.json: an EmbeddedFile {"x", text} in what `function`
#                                                         gives
function(shadowgraph_embed target folder function)
  set(pattern "*.json")
  if(ARGC GREATER 3)
    set(pattern ${ARGV3})
  endif()
  file(GLOB files CONFIGURE_DEPENDS ${folder}/${pattern})
  set(rows "")
  foreach(path ${files})
    get_filename_component(name ${path} NAME_WE)
    file(READ ${path} text)
    string(APPEND rows "    {\"${name}\", R\"json(${text})json\"},\n")
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${path})
  endforeach()
  set(source ${PROJECT_BINARY_DIR}/generated/${function}.cpp)
  file(CONFIGURE OUTPUT ${source} @ONLY CONTENT
"// Written by cmake/embed.cmake from ${folder}.
#include \"profiler/embedded_files.h\"

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
