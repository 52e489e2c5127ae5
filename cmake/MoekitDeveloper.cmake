# SPDX-License-Identifier: Apache-2.0
# What developers build beside the library: tests, fuzz targets, the export check (benches: bench/CMakeLists.txt).
#   x_test.cc                 label `unit`
#   x_LABEL_test.cc           that label, one of MOEKIT_TEST_LABELS; one program per layer and label
#   x_fuzz.cc                 program moekit_x_fuzz (libFuzzer, with MOEKIT_FUZZ)
set(MOEKIT_TEST_LABELS property golden stress slow gpu nvrtc)

if(BUILD_SHARED_LIBS)
  message(FATAL_ERROR "tests reach behind the exported symbols: MOEKIT_DEVELOPER_MODE needs BUILD_SHARED_LIBS=OFF")
endif()

# moekit_test(NAME LABEL SOURCES...): one GoogleTest program whose tests all carry LABEL. An nvrtc program is one CTest
# test: its tests share a bundle that takes a minute to compile.
function(moekit_test name label)
  add_executable(${name} ${ARGN})
  target_link_libraries(${name} PRIVATE moekit moekit_options nlohmann_json::nlohmann_json GTest::gtest_main)
  target_compile_definitions(${name} PRIVATE MOEKIT_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  if(MOEKIT_SANITIZE OR MOEKIT_QUICK_TESTS)
    moekit_quick_to_compile(${name})
  endif()
  if(MOEKIT_SANITIZE)
    target_compile_definitions(${name} PRIVATE MOEKIT_SANITIZED)  # compilers say it in ways of their own
  endif()
  if(label STREQUAL nvrtc)
    add_test(NAME ${name} COMMAND ${name})
    # The longest tests begin first.
    set_tests_properties(${name} PROPERTIES LABELS ${label} TIMEOUT 1200 COST 100 SKIP_REGULAR_EXPRESSION "\\[  SKIPPED \\]")
    return()
  endif()
  include(GoogleTest)
  gtest_discover_tests(${name} TEST_PREFIX "${MOEKIT_TEST_PREFIX}" DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 60
    PROPERTIES LABELS ${label} TIMEOUT 600)
endfunction()

function(moekit_layer_tests)
  foreach(layer IN LISTS MOEKIT_ALL_LAYER_NAMES)
    set(rest ${MOEKIT_${layer}_TESTS})
    list(FILTER rest EXCLUDE REGEX "/emulated/")
    foreach(label IN LISTS MOEKIT_TEST_LABELS)
      set(labelled ${rest})
      list(FILTER labelled INCLUDE REGEX "_${label}_test\\.cc$")
      list(FILTER rest EXCLUDE REGEX "_${label}_test\\.cc$")
      if(labelled)
        moekit_test(moekit_${layer}_${label}_test ${label} ${labelled})
      endif()
    endforeach()
    if(rest)
      moekit_test(moekit_${layer}_test unit ${rest})
    endif()
  endforeach()
endfunction()

# The tests of src/panels once more, over src/panels/emulated/: the AVX-512 and AMX bodies on every machine. The program
# has its own definitions of what cpu_info.cc and body.cc define, so that the linker leaves these two in the archive.
function(moekit_emulated_tests)
  set(panels "${PROJECT_SOURCE_DIR}/src/panels")
  set(sources ${MOEKIT_panels_TESTS})
  list(FILTER sources INCLUDE REGEX "/(emulated/.*|body|expert_steps|layer_case)_test\\.cc$")
  set(equipment ${sources})
  list(FILTER equipment INCLUDE REGEX "/emulated/")
  moekit_alone(${equipment} "${PROJECT_SOURCE_DIR}/src/base/cpu_info.cc" "${panels}/body.cc")
  # Whatever the build: what an instruction does is computed lane by lane, and what a layer is judged by in double.
  set_source_files_properties("${panels}/layer_case_test.cc" PROPERTIES COMPILE_OPTIONS "-O2")
  set_source_files_properties("${panels}/emulated/avx512_test.cc" "${panels}/emulated/amx_test.cc"
    PROPERTIES COMPILE_OPTIONS "-O3")
  set_source_files_properties("${panels}/emulated/body_avx512_test.cc" "${panels}/emulated/body_amx_test.cc"
    PROPERTIES COMPILE_OPTIONS "-O0;-Wno-psabi")
  set(MOEKIT_TEST_PREFIX "emulated.")
  moekit_test(moekit_panels_emulated_test unit ${sources})
endfunction()

# The shared library from the objects that are there anyway, for scripts/check_exports.
function(moekit_exports)
  add_library(moekit_exports SHARED EXCLUDE_FROM_ALL)
  foreach(layer IN LISTS MOEKIT_LAYERS)
    target_sources(moekit_exports PRIVATE $<TARGET_OBJECTS:${layer}>)
  endforeach()
  target_link_libraries(moekit_exports PRIVATE Threads::Threads ${CMAKE_DL_LIBS})
  set_target_properties(moekit_exports PROPERTIES LINKER_LANGUAGE CXX)
endfunction()

# Linked with the layers up to its own and with plan, which names the public enumerators: the rest would double
# what is built with another compiler.
function(moekit_fuzzers)
  file(GLOB_RECURSE fuzzers CONFIGURE_DEPENDS RELATIVE "${PROJECT_SOURCE_DIR}/src" "${PROJECT_SOURCE_DIR}/src/*_fuzz.cc")
  foreach(fuzzer IN LISTS fuzzers)
    cmake_path(GET fuzzer STEM name)
    string(REGEX REPLACE "/.*" "" own ${fuzzer})
    # What is fuzzed tells which branches an input took; all else would only be slower for it.
    target_compile_options(moekit_${own} PRIVATE -fsanitize=fuzzer-no-link)
    add_executable(moekit_${name} "${PROJECT_SOURCE_DIR}/src/${fuzzer}")
    set(below TRUE)
    foreach(layer IN LISTS MOEKIT_ALL_LAYER_NAMES)
      if(TARGET moekit_${layer} AND (below OR layer STREQUAL "plan"))
        target_sources(moekit_${name} PRIVATE $<TARGET_OBJECTS:moekit_${layer}>)
      endif()
      if(layer STREQUAL own)
        set(below FALSE)
      endif()
    endforeach()
    target_link_libraries(moekit_${name} PRIVATE
      moekit_options nlohmann_json::nlohmann_json Threads::Threads ${CMAKE_DL_LIBS})
    target_compile_options(moekit_${name} PRIVATE -fsanitize=fuzzer)
    target_link_options(moekit_${name} PRIVATE -fsanitize=fuzzer)
  endforeach()
endfunction()

moekit_layer_tests()
moekit_emulated_tests()
moekit_exports()
if(MOEKIT_FUZZ)
  moekit_fuzzers()
endif()
