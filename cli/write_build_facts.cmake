# SPDX-License-Identifier: Apache-2.0
# Run at build time: writes OUTPUT with version, commit and dirty flag of SOURCE_DIR, only when it
# changed, so that a rebuild without changes compiles nothing.
set(commit unknown)
set(dirty false)
find_program(git git)
if(git)
  execute_process(COMMAND ${git} -C ${SOURCE_DIR} rev-parse HEAD
    OUTPUT_VARIABLE head RESULT_VARIABLE failed OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  if(NOT failed)
    set(commit ${head})
    execute_process(COMMAND ${git} -C ${SOURCE_DIR} status --porcelain --untracked-files=no
      OUTPUT_VARIABLE changes OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    if(changes)
      set(dirty true)
    endif()
  endif()
endif()
set(text "// SPDX-License-Identifier: Apache-2.0
#include \"cli/build_facts.h\"

namespace moekit::cli {

std::string_view build_version() noexcept { return \"${VERSION}\"; }

std::string_view build_commit() noexcept { return \"${commit}\"; }

bool build_is_dirty() noexcept { return ${dirty}; }

}  // namespace moekit::cli
")
file(WRITE ${OUTPUT}.next "${text}")
execute_process(COMMAND ${CMAKE_COMMAND} -E copy_if_different ${OUTPUT}.next ${OUTPUT})
