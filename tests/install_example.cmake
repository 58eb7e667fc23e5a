# ctest install_example: installs into BUILD/stage, then configures, builds and runs EXAMPLE as an outside project would.
function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE status)
  if(NOT status EQUAL 0)
    list(JOIN ARGN " " line)
    message(FATAL_ERROR "${line}: ${status}")
  endif()
endfunction()

file(REMOVE_RECURSE ${BUILD}/stage ${BUILD}/stage-build)
set(flags "")
if(SANITIZE)
  set(flags -DCMAKE_CXX_FLAGS=-fsanitize=${SANITIZE})
endif()
run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${BUILD}/stage --config ${CONFIG})
run(${CMAKE_COMMAND} -G ${GENERATOR} -S ${EXAMPLE} -B ${BUILD}/stage-build -DCMAKE_PREFIX_PATH=${BUILD}/stage
    -DCMAKE_CXX_COMPILER=${CXX} -DCMAKE_BUILD_TYPE=${CONFIG} ${flags})
run(${CMAKE_COMMAND} --build ${BUILD}/stage-build)
run(${BUILD}/stage-build/capture_module)
# The installed tool runs, too.
run(${BUILD}/stage/bin/shadowgraph --version)
