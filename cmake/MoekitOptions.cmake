# SPDX-License-Identifier: Apache-2.0
# Compiler settings shared by every target.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_C_STANDARD 11)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

find_program(MOEKIT_CCACHE ccache)
if(MOEKIT_CCACHE)
  set(CMAKE_C_COMPILER_LAUNCHER ${MOEKIT_CCACHE})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${MOEKIT_CCACHE})
endif()

add_library(moekit_options INTERFACE)
target_include_directories(moekit_options INTERFACE
  ${CMAKE_CURRENT_SOURCE_DIR}/include ${CMAKE_CURRENT_SOURCE_DIR}/src)
# -ffp-contract=off: quantisers and elementary functions are defined without contraction; a compiler
# that fused a multiply and an add would give other bits on one ISA than on another.
target_compile_options(moekit_options INTERFACE
  -Wall -Wextra -Wpedantic -Wconversion -Wshadow
  $<$<COMPILE_LANGUAGE:CXX>:-Wnon-virtual-dtor -Wold-style-cast>
  -ffp-contract=off
  $<$<BOOL:${MOEKIT_WERROR}>:-Werror>)
if(CMAKE_UNITY_BUILD)
  # g++ takes a source of a batch for a header, whose unnamed namespaces would be one too many.
  target_compile_options(moekit_options INTERFACE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-subobject-linkage>)
endif()
if(MOEKIT_SANITIZE)
  target_compile_options(moekit_options INTERFACE
    -fsanitize=${MOEKIT_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(moekit_options INTERFACE -fsanitize=${MOEKIT_SANITIZE})
endif()

# moekit_alone(SOURCES...): not compiled in one batch with others of their target where a preset compiles in batches, at
# half the time: what JSON and GoogleTest instantiate is instantiated once per batch. Names of one target's unnamed
# namespaces differ for it; sources that keep a name of their own stand apart.
function(moekit_alone)
  set_source_files_properties(${ARGN} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()

# moekit_quick_to_compile(TARGET): what calls the library and computes little. Optimising assertions and option tables
# takes twice as long as compiling them and makes no test faster.
function(moekit_quick_to_compile target)
  target_compile_options(${target} PRIVATE -O0)
endfunction()
