# SPDX-License-Identifier: Apache-2.0
# Installs BUILD below WORK, moves the prefix (a package is relocatable), builds the consumer in SOURCE and runs it.
function(must)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE result OUTPUT_VARIABLE out ERROR_VARIABLE out)
  if(result)
    message(FATAL_ERROR "failed (${result}): ${ARGN}\n${out}")
  endif()
  set(output "${out}" PARENT_SCOPE)
endfunction()

file(REMOVE_RECURSE ${WORK})
must(${CMAKE_COMMAND} --install ${BUILD} --config ${CONFIG} --prefix ${WORK}/first)
file(RENAME ${WORK}/first ${WORK}/prefix)
must(${CMAKE_COMMAND} -S ${SOURCE} -B ${WORK}/build -DCMAKE_PREFIX_PATH=${WORK}/prefix
  -DCMAKE_CXX_COMPILER=${COMPILER} -DCMAKE_BUILD_TYPE=Release -DEXPECTED_VERSION=${VERSION})
must(${CMAKE_COMMAND} --build ${WORK}/build)
must(${WORK}/build/consumer)
message(STATUS "${output}")
file(GLOB_RECURSE installed RELATIVE ${WORK}/prefix ${WORK}/prefix/*)
list(FILTER installed EXCLUDE REGEX "^(include/moekit/|lib.*/(libmoekit\\.|cmake/moekit/)|bin/moekit$|share/)")
if(installed)
  message(FATAL_ERROR "installed what nobody asked for: ${installed}")
endif()
