# Install rules: library, header, find_package(quire) and pkg-config.
include(CMakePackageConfigHelpers)

install(TARGETS quire_shared EXPORT quire
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(FILES "${PROJECT_SOURCE_DIR}/include/quire/quire.h" DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/quire)
if(TARGET quire_cuda)
  install(TARGETS quire_cuda LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
endif()
install(EXPORT quire FILE quire-config.cmake NAMESPACE quire:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/quire)
write_basic_package_version_file("${PROJECT_BINARY_DIR}/quire-config-version.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/quire-config-version.cmake" DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/quire)

configure_file("${PROJECT_SOURCE_DIR}/cmake/quire.pc.in" "${PROJECT_BINARY_DIR}/quire.pc" @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/quire.pc" DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" "${PROJECT_SOURCE_DIR}/lib/third_party/LICENSES"
  DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/quire)
if(TARGET quire_command)
  install(TARGETS quire_command RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
