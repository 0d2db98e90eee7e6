# Install rules: what PACKAGING.md lists, in four components (cmake --install BUILD --component NAME):
#   runtime      the shared library
#   development  the headers, and the files for find_package(quire) and pkg-config
#   command      quire
#   cuda         the CUDA plugin
# Each of those that contain what others wrote brings its licences and its bill of materials.
include(CMakePackageConfigHelpers)
include(QuireSbom)
set(cmake_files "${CMAKE_INSTALL_LIBDIR}/cmake/quire")
set(doc_files "${CMAKE_INSTALL_DATADIR}/doc/quire")

install(TARGETS quire_shared EXPORT quire
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT runtime NAMELINK_COMPONENT development
  RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT runtime)
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" "${PROJECT_SOURCE_DIR}/lib/third_party/LICENSES"
  "${PROJECT_BINARY_DIR}/sbom/libquire.spdx.json" DESTINATION ${doc_files} COMPONENT runtime)

install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/quire" DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT development
  FILES_MATCHING PATTERN "*.h" PATTERN "*.hpp")
install(EXPORT quire FILE quire-config.cmake NAMESPACE quire:: DESTINATION ${cmake_files} COMPONENT development)
# Which versions a program may take in place of that which it asks for: those that ABI.md promises it.
set(compatibility SameMajorVersion)
if(PROJECT_VERSION VERSION_LESS 1)
  set(compatibility SameMinorVersion)
endif()
write_basic_package_version_file("${PROJECT_BINARY_DIR}/quire-config-version.cmake" COMPATIBILITY ${compatibility})
install(FILES "${PROJECT_BINARY_DIR}/quire-config-version.cmake" DESTINATION ${cmake_files} COMPONENT development)

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
install(FILES "${PROJECT_BINARY_DIR}/quire.pc" DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT development)

if(TARGET quire_command)
  install(TARGETS quire_command RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT command)
  configure_file("${PROJECT_SOURCE_DIR}/cmake/quire.1.in" "${PROJECT_BINARY_DIR}/quire.1" @ONLY)
  install(FILES "${PROJECT_BINARY_DIR}/quire.1" DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 COMPONENT command)
  install(FILES "${PROJECT_SOURCE_DIR}/cmake/licenses/command.txt" DESTINATION ${doc_files} COMPONENT command
    RENAME LICENSES.command)
  install(FILES "${PROJECT_BINARY_DIR}/sbom/quire.spdx.json" DESTINATION ${doc_files} COMPONENT command)
endif()

if(TARGET quire_cuda)
  # Beside the library, which looks for it there.
  install(TARGETS quire_cuda LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT cuda)
  install(FILES "${PROJECT_SOURCE_DIR}/cmake/licenses/cuda.txt" DESTINATION ${doc_files} COMPONENT cuda
    RENAME LICENSES.cuda)
  # NVIDIA's agreement, where the toolkit has it: in its folder, or beside the Python package that it is from.
  get_filename_component(toolkit "${CUDAToolkit_BIN_DIR}/.." REALPATH)
  file(GLOB agreements "${toolkit}/EULA.txt" "${toolkit}/dist-info/nvidia_cuda_runtime-*/licenses/License.txt")
  if(agreements)
    list(GET agreements 0 agreement)
    install(FILES "${agreement}" DESTINATION ${doc_files} COMPONENT cuda RENAME NVIDIA-EULA.txt)
  endif()
  install(FILES "${PROJECT_BINARY_DIR}/sbom/libquire-cuda.spdx.json" DESTINATION ${doc_files} COMPONENT cuda)
endif()
