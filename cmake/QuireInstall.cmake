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

# quire.pc finds the prefix from where it lies itself, so that an installation may be moved, or its prefix chosen when it
# is installed. Where the folder of libraries or headers is absolute, it cannot move.
set(pc_prefix "${CMAKE_INSTALL_PREFIX}")
if(NOT IS_ABSOLUTE "${CMAKE_INSTALL_LIBDIR}")
  file(RELATIVE_PATH pc_prefix "/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/")
  set(pc_prefix "\${pcfiledir}/${pc_prefix}")
endif()
foreach(dir libdir includedir)
  string(TOUPPER "${dir}" name)
  set(pc_${dir} "${CMAKE_INSTALL_${name}}")
  if(NOT IS_ABSOLUTE "${pc_${dir}}")
    set(pc_${dir} "\${prefix}/${pc_${dir}}")
  endif()
endforeach()
configure_file("${PROJECT_SOURCE_DIR}/cmake/quire.pc.in" "${PROJECT_BINARY_DIR}/quire.pc" @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/quire.pc" DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" "${PROJECT_SOURCE_DIR}/lib/third_party/LICENSES"
  DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/quire)
if(TARGET quire_command)
  install(TARGETS quire_command RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
