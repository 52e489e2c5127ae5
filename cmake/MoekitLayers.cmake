# SPDX-License-Identifier: Apache-2.0
# moekit_layer(NAME): an object library of src/NAME/**.cc without tests, benches and fuzz targets (those are in
# MoekitDeveloper.cmake). Only *_avx2.cc, *_avx512.cc and *_amx.cc get -m flags.
set(MOEKIT_LAYERS "" CACHE INTERNAL "")

# g++ 12 takes its own _mm512_undefined_* for an uninitialised read (GCC bug 105593). For AVX2 it keeps the branches of selects, and
# vectorises no activation, unless exception flags are given up, which nobody reads; the activations' bits stay (body_test.cc).
# Both compilers take half of AVX-512's vectors unless told. A sanitizer makes these the longest to compile by far: of
# undefined behaviour clang takes 326 s where it takes 42 without, and sees the same sources in src/panels/emulated/.
function(moekit_isa_flags)
  set(level -O3)
  if(MOEKIT_SANITIZE MATCHES "undefined")
    set(level "-O1;-fno-sanitize=undefined")
  elseif(MOEKIT_SANITIZE)
    set(level -O1)
  endif()
  foreach(source IN LISTS ARGN)
    if(source MATCHES "_avx2\\.cc$")
      set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS "-mavx2;-mfma;-mf16c;-O3;-fno-trapping-math")
    elseif(source MATCHES "_(avx512|amx)\\.cc$")
      set(tiles "")
      if(source MATCHES "_amx\\.cc$")
        set(tiles "-mamx-tile;-mamx-bf16;-mavx512fp16;")
      endif()
      set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS
        "${tiles}-mavx512f;-mavx512bw;-mavx512vl;-mavx512dq;-mavx512vbmi;-mavx512bf16;-mavx512vnni;-mavx2;-mfma;-mf16c;${level};-mprefer-vector-width=512;$<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>;$<$<CXX_COMPILER_ID:GNU>:-Wno-uninitialized>")
    endif()
  endforeach()
endfunction()

function(moekit_layer layer)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/src/${layer}/*.cc")
  set(tests ${sources})
  list(FILTER tests INCLUDE REGEX "_test\\.cc$")
  list(FILTER sources EXCLUDE REGEX "(_test|/bench|_fuzz)\\.cc$")
  moekit_isa_flags(${sources})
  # One table per arch or layout, each with the same names; tests whose fixtures are named after what they test.
  set(alone ${sources} ${tests})
  list(FILTER alone INCLUDE REGEX "/(tuning/sm_[0-9a-z]*|packing_[a-z0-9]*|checkpoint/(layer|stored_orders)_test|jit/store_test)\\.cc$")
  if(alone)
    moekit_alone(${alone})
  endif()
  if(sources)
    add_library(moekit_${layer} OBJECT ${sources})
    target_link_libraries(moekit_${layer} PRIVATE moekit_options nlohmann_json::nlohmann_json)
    set(MOEKIT_LAYERS ${MOEKIT_LAYERS} moekit_${layer} CACHE INTERNAL "")
  endif()
  set(MOEKIT_${layer}_TESTS ${tests} CACHE INTERNAL "")
  set(MOEKIT_ALL_LAYER_NAMES ${MOEKIT_ALL_LAYER_NAMES} ${layer} PARENT_SCOPE)
endfunction()

# moekit_embed_sources(): the device sources and the headers that they reach, inside libmoekit.
function(moekit_embed_sources)
  set(root "${PROJECT_SOURCE_DIR}/src")
  file(GLOB_RECURSE shared CONFIGURE_DEPENDS RELATIVE "${root}" "${root}/device/*.h" "${root}/device/*.cuh"
    "${root}/kernels/*/device/*.h" "${root}/kernels/*/device/*.cuh")
  file(GLOB described CONFIGURE_DEPENDS RELATIVE "${root}" "${root}/kernels/*/spec.h" "${root}/kernels/*/args.h")
  set(names ${shared} ${described})
  list(SORT names)
  list(TRANSFORM names PREPEND "${root}/" OUTPUT_VARIABLE paths)
  set(list "${PROJECT_BINARY_DIR}/generated/embedded_sources.txt")
  set(output "${PROJECT_BINARY_DIR}/generated/embedded_sources.cc")
  string(JOIN "\n" lines ${names})
  file(CONFIGURE OUTPUT "${list}" CONTENT "${lines}\n" @ONLY)
  add_custom_command(OUTPUT "${output}"
    COMMAND ${CMAKE_COMMAND} "-DROOT=${root}" "-DLIST=${list}" "-DOUTPUT=${output}"
      -P "${PROJECT_SOURCE_DIR}/cmake/embed_sources.cmake"
    DEPENDS "${PROJECT_SOURCE_DIR}/cmake/embed_sources.cmake" "${list}" ${paths}
    COMMENT "Embedding device sources" VERBATIM)
  moekit_alone("${output}")
  target_sources(moekit_jit PRIVATE "${output}")
endfunction()

# moekit_library(): libmoekit from all layers.
function(moekit_library)
  add_library(moekit)
  add_library(moekit::moekit ALIAS moekit)
  foreach(layer IN LISTS MOEKIT_LAYERS)
    target_sources(moekit PRIVATE $<TARGET_OBJECTS:${layer}>)
  endforeach()
  target_include_directories(moekit PUBLIC
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_compile_features(moekit PUBLIC cxx_std_20)
  target_link_libraries(moekit PUBLIC Threads::Threads ${CMAKE_DL_LIBS})
  set_target_properties(moekit PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}
    LINKER_LANGUAGE CXX)
  if(MOEKIT_SANITIZE)
    target_link_options(moekit PUBLIC -fsanitize=${MOEKIT_SANITIZE})
  endif()
endfunction()
