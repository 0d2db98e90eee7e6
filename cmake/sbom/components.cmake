# What others wrote and the binaries contain. Each name here is an entry of the bills of materials, and has its licence in
# one of the files of licences that are installed: lib/third_party/LICENSES, cmake/licenses.
#
#   component(NAME TITLE text LICENSE id COPYRIGHT text HOME url
#     HOW STATIC_LINK: an archive that is linked in; its path is ARCHIVE
#         CONTAINS: compiled in; headers from elsewhere, or sources of this repository
#     VERSION text | HEADERS path... MACROS name...: what the headers, those that exist, define these as
#     SOURCE purl: where it is from, if no Debian package that is installed here has it
#     PART_OF component: it is in the binary because that other one contains it
#     COMMENT text)
# No text has a semicolon: CMake would take it for the end of an element.

component(pcre2 TITLE PCRE2 HOW STATIC_LINK ARCHIVE "${QUIRE_PCRE2}"
  HEADERS "${QUIRE_PCRE2_INCLUDE}/pcre2.h" MACROS PCRE2_MAJOR PCRE2_MINOR
  LICENSE BSD-3-Clause COPYRIGHT "1997-2022 University of Cambridge" HOME https://www.pcre.org)
component(sljit TITLE sljit HOW CONTAINS PART_OF pcre2
  LICENSE BSD-2-Clause COPYRIGHT "Zoltan Herczeg" HOME https://github.com/zherczeg/sljit
  COMMENT "The compiler of regular expressions in PCRE2. It has no version of its own there.")
component(zstd TITLE zstd HOW STATIC_LINK ARCHIVE "${QUIRE_ZSTD}"
  HEADERS "${QUIRE_ZSTD_INCLUDE}/zstd.h" MACROS ZSTD_VERSION_MAJOR ZSTD_VERSION_MINOR ZSTD_VERSION_RELEASE
  LICENSE BSD-3-Clause COPYRIGHT "Meta Platforms, Inc. and affiliates" HOME https://facebook.github.io/zstd
  COMMENT "Licensed under BSD-3-Clause or GPL-2.0-only, of which the former was chosen. It contains a copy of xxHash.")
component(xxhash TITLE xxHash HOW CONTAINS
  HEADERS "${QUIRE_XXHASH_INCLUDE}/xxhash.h" MACROS XXH_VERSION_MAJOR XXH_VERSION_MINOR XXH_VERSION_RELEASE
  LICENSE BSD-2-Clause COPYRIGHT "2012-2014 Yann Collet" HOME https://xxhash.com)
component(highway TITLE Highway HOW CONTAINS
  HEADERS "${QUIRE_HIGHWAY_INCLUDE}/hwy/base.h" "${QUIRE_HIGHWAY_INCLUDE}/hwy/highway.h" MACROS HWY_MAJOR HWY_MINOR HWY_PATCH
  LICENSE Apache-2.0 COPYRIGHT "2019-2022 Google LLC" HOME https://github.com/google/highway)
component(sentencepiece TITLE SentencePiece HOW CONTAINS VERSION 0.1.97 SOURCE "pkg:github/google/sentencepiece@v0.1.97"
  LICENSE Apache-2.0 COPYRIGHT "2016 Google Inc." HOME https://github.com/google/sentencepiece
  COMMENT "Parts of it, changed: lib/third_party/README.md.")
component(darts-clone TITLE Darts-clone HOW CONTAINS HEADERS "${SOURCE}/lib/third_party/darts_clone/darts.h" MACROS DARTS_VERSION
  SOURCE "pkg:github/s-yata/darts-clone@0.32"
  LICENSE BSD-3-Clause COPYRIGHT "2008-2011, Susumu Yata" HOME https://github.com/s-yata/darts-clone
  COMMENT "Changed: lib/third_party/README.md.")
component(unicode TITLE "Unicode Character Database" HOW CONTAINS VERSION 16.0.0
  SOURCE "pkg:generic/unicode-character-database@16.0.0"
  LICENSE Unicode-3.0 COPYRIGHT "1991-2024 Unicode, Inc." HOME https://www.unicode.org/ucd
  COMMENT "Tables made from it: lib/tokenizer/make_unicode_tables.py.")

component(cli11 TITLE CLI11 HOW CONTAINS
  HEADERS "${CLI11_INCLUDE}/CLI/Version.hpp" MACROS CLI11_VERSION_MAJOR CLI11_VERSION_MINOR CLI11_VERSION_PATCH
  LICENSE BSD-3-Clause COPYRIGHT "2017-2020 University of Cincinnati" HOME https://github.com/CLIUtils/CLI11)
component(nlohmann-json TITLE "JSON for Modern C++" HOW CONTAINS
  HEADERS "${nlohmann_json_INCLUDE}/nlohmann/detail/abi_macros.hpp" "${nlohmann_json_INCLUDE}/nlohmann/json.hpp"
  MACROS NLOHMANN_JSON_VERSION_MAJOR NLOHMANN_JSON_VERSION_MINOR NLOHMANN_JSON_VERSION_PATCH
  LICENSE MIT COPYRIGHT "2013-2022 Niels Lohmann, 2009 Florian Loitsch, 2008-2009 Bjoern Hoehrmann" HOME https://json.nlohmann.me)

component(cuda-runtime TITLE "CUDA Runtime" HOW STATIC_LINK ARCHIVE "${CUDART}" VERSION "${CUDA_VERSION}"
  SOURCE "pkg:generic/cuda-toolkit@${CUDA_VERSION}"
  LICENSE LicenseRef-NVIDIA-CUDA-EULA COPYRIGHT "NVIDIA Corporation" HOME https://docs.nvidia.com/cuda/eula
  COMMENT "Headers of the same toolkit are compiled into the kernels.")
foreach(name libstdc++ libgcc libgcc_eh)
  if(name IN_LIST ${BINARY}_COMPONENTS)
    execute_process(COMMAND "${CXX_COMPILER}" -print-file-name=${name}.a OUTPUT_VARIABLE archive OUTPUT_STRIP_TRAILING_WHITESPACE)
  endif()
  component(${name} TITLE ${name} HOW STATIC_LINK ARCHIVE "${archive}" VERSION "${CXX_VERSION}"
    LICENSE "GPL-3.0-or-later WITH GCC-exception-3.1" COPYRIGHT "Free Software Foundation, Inc." HOME https://gcc.gnu.org)
endforeach()
