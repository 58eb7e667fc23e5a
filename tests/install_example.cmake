# ctest install_example: installs into BUILD/stage, then configures, builds and runs the projects of EXAMPLES as an outside
# project would be.
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
foreach(name capture_module own_operator own_pass deferred_init)
  set(folder ${BUILD}/stage-build/${name})
  run(${CMAKE_COMMAND} -G ${GENERATOR} -S ${EXAMPLES}/${name} -B ${folder} -DCMAKE_PREFIX_PATH=${BUILD}/stage
      -DCMAKE_CXX_COMPILER=${CXX} -DCMAKE_BUILD_TYPE=${CONFIG} ${flags})
  run(${CMAKE_COMMAND} --build ${folder})
  execute_process(COMMAND ${folder}/${name} WORKING_DIRECTORY ${folder} RESULT_VARIABLE status)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "${name}: ${status}")
  endif()
endforeach()
# The installed tool runs, too.
run(${BUILD}/stage/bin/shadowgraph --version)
