# SPDX-License-Identifier: Apache-2.0
# Library, headers and a CMake package: find_package(moekit) gives moekit::moekit.
include(CMakePackageConfigHelpers)
install(TARGETS moekit EXPORT moekitTargets
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
  RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(DIRECTORY include/moekit DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
set(moekit_cmake_dir ${CMAKE_INSTALL_LIBDIR}/cmake/moekit)
install(EXPORT moekitTargets NAMESPACE moekit:: DESTINATION ${moekit_cmake_dir})
configure_package_config_file(cmake/moekitConfig.cmake.in
  ${CMAKE_CURRENT_BINARY_DIR}/moekitConfig.cmake INSTALL_DESTINATION ${moekit_cmake_dir})
write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/moekitConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/moekitConfig.cmake
  ${CMAKE_CURRENT_BINARY_DIR}/moekitConfigVersion.cmake DESTINATION ${moekit_cmake_dir})
