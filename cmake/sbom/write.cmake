# Writes the bill of materials of one binary: SPDX 2.3, JSON.
#
#   cmake -D FACTS=FILE -D BINARY=NAME -D OUTPUT=FILE -P write.cmake
#
# FACTS is what QuireSbom.cmake wrote when the build was configured: paths, versions, and for each binary the components in
# it. What is said of a component is read from its files: its version from its header, the checksum of an archive that is
# linked in, and the Debian package that it is from, where there is one. components.cmake lists the components.
cmake_minimum_required(VERSION 3.25)
include("${FACTS}")
include("${CMAKE_CURRENT_LIST_DIR}/debian_package.cmake")
set(n_packages 0)
set(n_relationships 0)
set(licenses MIT)

# json_text(OUT text): the text as a string of JSON.
function(json_text out text)
  string(REPLACE "\\" "\\\\" text "${text}")
  string(REPLACE "\"" "\\\"" text "${text}")
  set(${out} "\"${text}\"" PARENT_SCOPE)
endfunction()

# json_object(OUT KEY text...): an object whose values are strings. Those that are empty are left out.
function(json_object out)
  set(object "{}")
  while(ARGN)
    list(POP_FRONT ARGN key text)
    if(NOT text STREQUAL "")
      json_text(text "${text}")
      string(JSON object SET "${object}" ${key} "${text}")
    endif()
  endwhile()
  set(${out} "${object}" PARENT_SCOPE)
endfunction()

# append(LIST object): adds to the list of that name in the document.
macro(append list object)
  string(JSON document SET "${document}" ${list} ${n_${list}} "${object}")
  math(EXPR n_${list} "${n_${list}} + 1")
endmacro()

macro(relate from type to)
  json_object(relationship spdxElementId "${from}" relationshipType ${type} relatedSpdxElement "${to}")
  append(relationships "${relationship}")
endmacro()

# spdx_id(OUT name): SPDX has letters, digits, dots and hyphens in its names.
function(spdx_id out name)
  string(REPLACE "+" "x" name "${name}")
  string(REPLACE "_" "-" name "${name}")
  set(${out} "SPDXRef-${name}" PARENT_SCOPE)
endfunction()

# version_of(OUT HEADERS path... MACROS name...)
function(version_of out)
  cmake_parse_arguments(ARG "" "" "HEADERS;MACROS" ${ARGN})
  set(text)
  foreach(header ${ARG_HEADERS})
    if(EXISTS "${header}")
      file(STRINGS "${header}" lines REGEX "^#define ")
      list(APPEND text ${lines})
    endif()
  endforeach()
  set(numbers)
  foreach(macro ${ARG_MACROS})
    if(NOT "${text}" MATCHES "#define ${macro}[ \t]+\"?([0-9.]+)")
      message(FATAL_ERROR "None of ${ARG_HEADERS} defines ${macro} as a number")
    endif()
    list(APPEND numbers ${CMAKE_MATCH_1})
  endforeach()
  list(JOIN numbers "." version)
  set(${out} "${version}" PARENT_SCOPE)
endfunction()

# The reference to where a component is from, as a package URL.
function(reference_to out purl)
  json_object(reference referenceCategory PACKAGE-MANAGER referenceType purl referenceLocator "${purl}")
  set(${out} "[${reference}]" PARENT_SCOPE)
endfunction()

function(component name)
  if(NOT name IN_LIST ${BINARY}_COMPONENTS)
    return()
  endif()
  cmake_parse_arguments(ARG "" "TITLE;HOW;ARCHIVE;VERSION;SOURCE;LICENSE;COPYRIGHT;HOME;PART_OF;COMMENT" "HEADERS;MACROS" ${ARGN})
  if(ARG_HEADERS)
    version_of(ARG_VERSION HEADERS ${ARG_HEADERS} MACROS ${ARG_MACROS})
  endif()
  if(NOT ARG_SOURCE AND NOT ARG_PART_OF)
    debian_package(debian ARG_SOURCE ${ARG_ARCHIVE} ${ARG_HEADERS})
  endif()
  spdx_id(id "${name}")
  json_object(package SPDXID "${id}" name "${ARG_TITLE}" versionInfo "${ARG_VERSION}" downloadLocation NOASSERTION
    licenseConcluded "${ARG_LICENSE}" licenseDeclared "${ARG_LICENSE}" copyrightText "Copyright ${ARG_COPYRIGHT}" homepage "${ARG_HOME}"
    sourceInfo "${debian}" comment "${ARG_COMMENT}")
  string(JSON package SET "${package}" filesAnalyzed false)
  if(ARG_SOURCE)
    reference_to(references "${ARG_SOURCE}")
    string(JSON package SET "${package}" externalRefs "${references}")
  endif()
  if(ARG_ARCHIVE)
    file(SHA256 "${ARG_ARCHIVE}" sum)
    cmake_path(GET ARG_ARCHIVE FILENAME file)
    string(JSON package SET "${package}" packageFileName "\"${file}\"")
    string(JSON package SET "${package}" checksums "[{\"algorithm\": \"SHA256\", \"checksumValue\": \"${sum}\"}]")
  endif()
  append(packages "${package}")
  if(ARG_PART_OF)
    spdx_id(whole "${ARG_PART_OF}")
    relate("${whole}" CONTAINS "${id}")
  else()
    relate("${main}" ${ARG_HOW} "${id}")
  endif()
  list(APPEND licenses "${ARG_LICENSE}")
  foreach(variable document n_packages n_relationships licenses)
    set(${variable} "${${variable}}" PARENT_SCOPE)
  endforeach()
endfunction()

string(TIMESTAMP created "%Y-%m-%dT%H:%M:%SZ" UTC)  # SOURCE_DATE_EPOCH, where it is set
json_object(document spdxVersion SPDX-2.3 dataLicense CC0-1.0 SPDXID SPDXRef-DOCUMENT name "${BINARY}-${VERSION}"
  comment "What of others is in ${BINARY} itself, linked in or compiled in. It does not list the libraries of the system that are opened with it.")
json_object(creation created "${created}")
string(JSON creation SET "${creation}" creators "[\"Tool: quire-cmake-${VERSION}\"]")
string(JSON document SET "${document}" creationInfo "${creation}")
foreach(list packages relationships)
  string(JSON document SET "${document}" ${list} "[]")
endforeach()

# The binary itself comes first, when its licence is known: that of all that is in it.
spdx_id(main "${BINARY}")
append(packages "{}")
relate(SPDXRef-DOCUMENT DESCRIBES "${main}")
include("${CMAKE_CURRENT_LIST_DIR}/components.cmake")
list(REMOVE_DUPLICATES licenses)
list(SORT licenses)
list(TRANSFORM licenses REPLACE "(.* WITH .*)" "(\\1)")
list(JOIN licenses " AND " all_licenses)
json_object(package SPDXID "${main}" name "${BINARY}" versionInfo "${VERSION}" downloadLocation NOASSERTION
  licenseConcluded "${all_licenses}" licenseDeclared MIT copyrightText "Copyright 2026 The Quire authors"
  primaryPackagePurpose "${${BINARY}_PURPOSE}")
string(JSON package SET "${package}" filesAnalyzed false)
string(JSON document SET "${document}" packages 0 "${package}")
if("LicenseRef-NVIDIA-CUDA-EULA" IN_LIST licenses)
  json_object(license licenseId LicenseRef-NVIDIA-CUDA-EULA name "NVIDIA CUDA Toolkit End User License Agreement"
    extractedText "The text is installed beside this file, and at https://docs.nvidia.com/cuda/eula.")
  string(JSON document SET "${document}" hasExtractedLicensingInfos "[${license}]")
endif()

# A document's name is of its content: the same content has the same name.
string(UUID unique NAMESPACE 6ba7b811-9dad-11d1-80b4-00c04fd430c8 NAME "${document}" TYPE SHA1)
json_text(namespace "https://spdx.org/spdxdocs/${BINARY}-${VERSION}-${unique}")
string(JSON document SET "${document}" documentNamespace "${namespace}")
file(WRITE "${OUTPUT}" "${document}\n")
