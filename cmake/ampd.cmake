# Compiler settings, third-party packages and the helpers every folder uses: one library a folder, one program a test file.

find_program(CCACHE ccache)
if(CCACHE)
  # Clones in other folders share what they compiled: paths count from the tree, and the folder of a compilation, which -g
  # records, does not count.
  set(CMAKE_CXX_COMPILER_LAUNCHER
    ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=1 ${CCACHE})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CMAKE_CXX_COMPILER_LAUNCHER})
endif()

find_package(Threads REQUIRED)
find_package(Protobuf REQUIRED)
find_package(gRPC CONFIG REQUIRED)
find_package(absl CONFIG REQUIRED)
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  # Its OpenMP is a package of its own, which fuzz targets do not need.
  find_package(OpenMP)
  if(NOT TARGET OpenMP::OpenMP_CXX)
    add_library(OpenMP::OpenMP_CXX INTERFACE IMPORTED)
  endif()
else()
  find_package(OpenMP REQUIRED)
endif()
find_package(ZLIB REQUIRED)
find_package(JPEG REQUIRED)
find_package(PNG REQUIRED)
find_package(PkgConfig REQUIRED)

# GCC 12 sees uninitialised reads in every temporary absl::InlinedVector, hence -Wno-maybe-uninitialized.
# Third-party headers are included as system headers, so their warnings are theirs.
add_library(ampd_options INTERFACE)
# GCC's warnings are the project's; of clang's, those about locks.
target_compile_options(ampd_options INTERFACE
  $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wall -Wextra -Werror -Wno-missing-field-initializers -Wno-maybe-uninitialized>
  $<$<COMPILE_LANG_AND_ID:CXX,Clang>:-Wthread-safety -Werror=thread-safety>)
target_include_directories(ampd_options INTERFACE ${PROJECT_SOURCE_DIR})
target_compile_definitions(ampd_options INTERFACE AMPD_VERSION="${PROJECT_VERSION}")
if(AMPD_SANITIZER)
  target_compile_options(ampd_options INTERFACE -fsanitize=${AMPD_SANITIZER} -fno-omit-frame-pointer -g)
  target_link_options(ampd_options INTERFACE -fsanitize=${AMPD_SANITIZER})
  target_compile_definitions(ampd_options INTERFACE AMPD_SANITIZED)
  if(AMPD_SANITIZER MATCHES "fuzzer")
    # Every finding ends the run. The packaged protobuf has no type information that vptr could ask.
    target_compile_options(ampd_options INTERFACE -fno-sanitize-recover=all -fno-sanitize=vptr)
  endif()
  if(AMPD_SANITIZER MATCHES "thread")
    # Protobuf's map fields have another layout where this is defined, and the packaged library was built without.
    target_compile_options(ampd_options INTERFACE -U__SANITIZE_THREAD__)
  endif()
endif()

# ampd_library(NAME SOURCES file... DEPS target...): the library of one folder; its dependencies are public.
function(ampd_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  target_link_libraries(${name} PUBLIC ampd_options ${ARG_DEPS})
endfunction()

# Seconds that a test has where nothing else is said; under sanitizers always, which make the slowest twenty times slower.
set(AMPD_TEST_TIMEOUT 300)
if(AMPD_SANITIZER)
  set(AMPD_TEST_TIMEOUT 6000)
endif()

# ampd_test(NAME [TIMEOUT seconds] SOURCES file... DEPS target...): a GoogleTest program, run by ctest from the source tree's
# root.
function(ampd_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "SOURCES;DEPS" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  if(AMPD_SANITIZER)
    set(ARG_TIMEOUT ${AMPD_TEST_TIMEOUT})
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ampd_options ${ARG_DEPS} GTest::gmock GTest::gtest_main)
  add_test(NAME ${name} COMMAND ${name} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  set_tests_properties(${name} PROPERTIES TIMEOUT ${ARG_TIMEOUT})
  if(AMPD_SANITIZER MATCHES "address" AND ARG_DEPS MATCHES "cuda_on_host")
    # A stack for each fiber to look for use after return in would be mapped and unmapped at each switch.
    set_tests_properties(${name} PROPERTIES ENVIRONMENT ASAN_OPTIONS=detect_stack_use_after_return=0)
  endif()
endfunction()
