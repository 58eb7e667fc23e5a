# ctest install: puts the package into BUILD/stage, for the install_example_NAME, and runs the installed tool.
file(REMOVE_RECURSE ${BUILD}/stage)
execute_process(COMMAND ${CMAKE_COMMAND} --install ${BUILD} --prefix ${BUILD}/stage --config ${CONFIG}
  OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${BUILD}/stage/bin/shadowgraph --version COMMAND_ERROR_IS_FATAL ANY)
