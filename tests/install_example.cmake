# ctest install_example_NAME: configures, builds and runs EXAMPLES/NAME as an outside project against the package in
# BUILD/stage, which the test `install` created. Optimization is off, because only compiling, linking and running are
# tested and libtorch's headers compile slowly.
function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE status)
  if(NOT status EQUAL 0)
    list(JOIN ARGN " " line)
    message(FATAL_ERROR "${line}: ${status}")
  endif()
endfunction()

set(flags -O0)
if(SANITIZE)
  string(APPEND flags " -fsanitize=${SANITIZE}")
endif()
set(launcher "")
if(LAUNCHER)
  set(launcher -DCMAKE_CXX_COMPILER_LAUNCHER=${LAUNCHER})
endif()
set(folder ${BUILD}/stage-build/${NAME})
file(REMOVE_RECURSE ${folder})
run(${CMAKE_COMMAND} -G ${GENERATOR} -S ${EXAMPLES}/${NAME} -B ${folder} -DCMAKE_PREFIX_PATH=${BUILD}/stage
    -DCMAKE_CXX_COMPILER=${CXX} "-DCMAKE_CXX_FLAGS=${flags}" ${launcher})
run(${CMAKE_COMMAND} --build ${folder})
execute_process(COMMAND ${folder}/${NAME} WORKING_DIRECTORY ${folder} RESULT_VARIABLE status)
if(NOT status EQUAL 0)
  message(FATAL_ERROR "${NAME}: ${status}")
endif()
