# Compile settings of all targets, and functions that declare them.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_C_STANDARD 99)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
# Names in anonymous namespaces do not differ between all sources; quire_unity() knows which may be compiled together.
set(CMAKE_UNITY_BUILD OFF)
if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release)
endif()

find_program(QUIRE_CCACHE ccache)
if(QUIRE_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # What one checkout compiled another takes from the cache: paths below the checkout are relative to the compiler, and the
  # folder that debug information names does not count. With DEPEND ccache does not preprocess every file that it does not
  # know yet, besides compiling it.
  set(launcher "${CMAKE_COMMAND}" -E env "CCACHE_BASEDIR=${PROJECT_SOURCE_DIR}" CCACHE_NOHASHDIR=1 CCACHE_ABSSTDERR=1
    CCACHE_DEPEND=1 "${QUIRE_CCACHE}")
  foreach(language C CXX CUDA)
    set(CMAKE_${language}_COMPILER_LAUNCHER ${launcher})
  endforeach()
endif()

find_package(Threads REQUIRED)

add_library(quire_settings INTERFACE)
target_include_directories(quire_settings INTERFACE "${PROJECT_SOURCE_DIR}" "${PROJECT_SOURCE_DIR}/include")
# Other compilers than those that we test with have other warnings: packages, and projects that Quire is a part of, go
# without -Werror.
option(QUIRE_WERROR "Warnings of the compilers are errors" ${PROJECT_IS_TOP_LEVEL})
# No contraction of a*b+c to an FMA behind our back: results are fixed by the source (see kernels/cpu/kernels.h).
target_compile_options(quire_settings INTERFACE -Wall -Wextra $<$<BOOL:${QUIRE_WERROR}>:-Werror> -ffp-contract=off -fvisibility=hidden
  $<$<COMPILE_LANGUAGE:CXX>:-fvisibility-inlines-hidden>)
if(NOT QUIRE_COVERAGE)
  # Sources are named from the root, in messages of tests and in debug information: an object that a compiler's cache has
  # may be from another checkout.
  target_compile_options(quire_settings INTERFACE "$<$<COMPILE_LANGUAGE:C,CXX>:-ffile-prefix-map=${PROJECT_SOURCE_DIR}/=>")
endif()
if(CMAKE_CXX_COMPILER_ID MATCHES Clang)
  # Which mutex guards what: lib/support/mutex.h.
  target_compile_options(quire_settings INTERFACE -Wthread-safety)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # GCC bug 105651: false alarms on "literal" + std::string.
  target_compile_options(quire_settings INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-restrict>)
endif()
target_link_libraries(quire_settings INTERFACE Threads::Threads)
if(QUIRE_SANITIZE)
  # The own code of tests and of the command goes without the checks of undefined behaviour, which would double the time
  # to compile it. (Of an inline function that a test and the library both contain, the linker takes one: it may be the
  # test's.) A target with QUIRE_WITHOUT_SANITIZERS goes without any.
  string(REPLACE ",undefined" "" of_tests "${QUIRE_SANITIZE}")
  string(REPLACE "," "$<COMMA>" of_others "${QUIRE_SANITIZE}")
  set(sanitizers "$<IF:$<BOOL:$<TARGET_PROPERTY:QUIRE_WITHOUT_UBSAN>>,${of_tests},${of_others}>")
  target_compile_options(quire_settings INTERFACE -fno-omit-frame-pointer -fno-sanitize-recover=all
    "$<$<NOT:$<BOOL:$<TARGET_PROPERTY:QUIRE_WITHOUT_SANITIZERS>>>:-fsanitize=${sanitizers}>")
  target_link_options(quire_settings INTERFACE -fsanitize=${QUIRE_SANITIZE})
endif()

if(QUIRE_COVERAGE)
  target_compile_options(quire_settings INTERFACE --coverage -fprofile-update=atomic)
  target_link_options(quire_settings INTERFACE --coverage)
endif()

# quire_library(NAME SOURCES ... [DEPENDS ...]): an internal static library of one layer.
function(quire_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPENDS" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  target_link_libraries(${name} PUBLIC quire_settings ${ARG_DEPENDS})
endfunction()

# quire_unity(NAME [EXCEPT SOURCE...]): with QUIRE_UNITY, the target's sources are compiled several at a time. Names in
# their anonymous namespaces must differ then; not so those of the sources after EXCEPT, which are compiled by themselves,
# as one with options of its own must be.
# The files that CMake makes for UNITY_BUILD have absolute paths in them, by which a cache knows them in one checkout only.
function(quire_unity name)
  cmake_parse_arguments(ARG "" "" "EXCEPT" ${ARGN})
  if(NOT QUIRE_UNITY)
    return()
  endif()
  get_target_property(sources ${name} SOURCES)
  list(REMOVE_ITEM sources ${ARG_EXCEPT} "")
  set_source_files_properties(${sources} PROPERTIES HEADER_FILE_ONLY ON)
  set(part 0)
  while(sources)
    list(SUBLIST sources 0 8 together)
    list(REMOVE_ITEM sources ${together})
    set(includes "")
    foreach(source ${together})
      cmake_path(ABSOLUTE_PATH source)
      cmake_path(RELATIVE_PATH source BASE_DIRECTORY "${PROJECT_SOURCE_DIR}")
      string(APPEND includes "#include \"${source}\"\n")
    endforeach()
    set(unity "${CMAKE_CURRENT_BINARY_DIR}/${name}_unity_${part}.cc")
    file(CONFIGURE OUTPUT "${unity}" CONTENT "${includes}" @ONLY)
    target_sources(${name} PRIVATE "${unity}")
    math(EXPR part "${part} + 1")
  endwhile()
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # GCC knows only of a file that it was called with that it is no header.
    target_compile_options(${name} PRIVATE -Wno-subobject-linkage)
  endif()
endfunction()

# The root of the source tree, for tests and fuzz targets.
if(QUIRE_TESTS OR QUIRE_FUZZ)
  add_library(quire_source_path STATIC "${PROJECT_SOURCE_DIR}/tests/source_path.cc")
  target_link_libraries(quire_source_path PRIVATE quire_settings)
  target_compile_definitions(quire_source_path PRIVATE QUIRE_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
endif()

# quire_test(NAME SOURCES ... [DEPENDS ...] [LABEL fast|slow] [TIMEOUT s] [COST s] [RANDOM] [OPTIMIZED]): a GoogleTest
# program, one CTest test.
# COST: about how long it takes in a sanitized build. CTest starts the longest first, so that none runs alone at the end.
# RANDOM: its inputs are random (tests/seed.h). It is also a slow test, NAME_fresh, whose seed is another each time.
# OPTIMIZED: its own code computes much, such as references, and is optimized.
function(quire_test name)
  cmake_parse_arguments(ARG "RANDOM;OPTIMIZED" "LABEL;TIMEOUT;COST" "SOURCES;DEPENDS" ${ARGN})
  if(NOT ARG_LABEL)
    set(ARG_LABEL fast)
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  find_package(GTest REQUIRED)
  add_executable(${name} ${ARG_SOURCES})
  set_target_properties(${name} PROPERTIES QUIRE_WITHOUT_UBSAN ON)
  # Its own code need not be fast, but all tests together are much of what is compiled.
  target_compile_options(${name} PRIVATE $<$<CONFIG:Release>:-O1>)
  if(NOT ARG_OPTIMIZED)
    target_compile_options(${name} PRIVATE -O0)
    if(QUIRE_SANITIZE MATCHES address)
      # Checks of memory as calls are much less code than checks in place.
      target_compile_options(${name} PRIVATE
        "SHELL:$<IF:$<CXX_COMPILER_ID:GNU>,--param asan,-mllvm -asan>-instrumentation-with-call-threshold=0")
    endif()
  endif()
  target_link_libraries(${name} PRIVATE quire_settings ${ARG_DEPENDS} quire_source_path GTest::gtest GTest::gmock GTest::gtest_main)
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES LABELS ${ARG_LABEL} TIMEOUT ${ARG_TIMEOUT})
  if(ARG_COST)
    set_tests_properties(${name} PROPERTIES COST ${ARG_COST})
  endif()
  if(ARG_RANDOM)
    add_test(NAME ${name}_fresh COMMAND ${name})
    set_tests_properties(${name}_fresh PROPERTIES LABELS slow TIMEOUT ${ARG_TIMEOUT} ENVIRONMENT QUIRE_TEST_SEED=fresh)
  endif()
endfunction()

# quire_long_tests(NAME FILTER): those tests of the program NAME take long in sanitized builds, and run no code there that
# its other tests do not run too. There they are a test of their own, NAME_long, with the label "long".
function(quire_long_tests name filter)
  if(NOT QUIRE_SANITIZE)
    return()
  endif()
  set_property(TEST ${name} APPEND PROPERTY ENVIRONMENT "GTEST_FILTER=-${filter}")
  add_test(NAME ${name}_long COMMAND ${name})
  set_tests_properties(${name}_long PROPERTIES LABELS long TIMEOUT 900 ENVIRONMENT "GTEST_FILTER=${filter}"
    FAIL_REGULAR_EXPRESSION "Running 0 tests")
endfunction()
