# Build rules shared by every folder.

# For a build from nothing, which no compiler cache helps: headers of others are parsed once, and what runs once in a run
# is optimised less. A cache would have to take precompiled headers on trust, so there is none then.
find_program(CCACHE_PROGRAM ccache)
option(OUTRIDER_COLD_BUILD "Take less time to build from nothing, and use no compiler cache" OFF)
if(CCACHE_PROGRAM AND NOT OUTRIDER_COLD_BUILD)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
endif()

# Bits are part of the contract: a*b+c is contracted only where the source says fma.
set(options -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -ffp-contract=off
    -Wno-missing-field-initializers)  # options are designated initialisers with defaults
if(OUTRIDER_WARNINGS_AS_ERRORS)
  list(APPEND options -Werror)
endif()
if(OUTRIDER_SANITIZE)
  list(APPEND options -fsanitize=${OUTRIDER_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${OUTRIDER_SANITIZE})
endif()
add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:${options}>")

# outrider_precompile(TARGET std|json|test|none): which headers of others the target's files begin with, where they are
# precompiled. A file sees them whether it includes them or not, so a build with a compiler cache, like those of
# developers, is the one that finds a forgotten include. json and test are the standard ones and more, and take longer to
# load.
function(outrider_precompile target set)
  if(OUTRIDER_COLD_BUILD AND NOT set STREQUAL none)
    target_precompile_headers(${target} REUSE_FROM outrider_headers_${set})
  endif()
endfunction()

# outrider_runs_once(files...): code that runs once in a run; a cold build saves a fifth to a third of the compiler's time on
# it. Bits do not depend on it, and nothing that computes a model, samples, decides for a token or is timed is compiled so.
function(outrider_runs_once)
  if(OUTRIDER_COLD_BUILD)
    set_property(SOURCE ${ARGN} APPEND PROPERTY COMPILE_OPTIONS "$<$<CONFIG:Release>:-O1>")
  endif()
endfunction()

# outrider_library(NAME [HEADERS std|json|none] sources...): one static library per folder; includes are rooted at the source tree.
function(outrider_library name)
  cmake_parse_arguments(ARG "" "HEADERS" "" ${ARGN})
  add_library(outrider_${name} STATIC ${ARG_UNPARSED_ARGUMENTS})
  if(NOT ARG_HEADERS)
    set(ARG_HEADERS std)
  endif()
  outrider_precompile(outrider_${name} ${ARG_HEADERS})
  add_library(outrider::${name} ALIAS outrider_${name})
  target_include_directories(outrider_${name} PUBLIC ${PROJECT_SOURCE_DIR} ${PROJECT_BINARY_DIR}/generated)
endfunction()

# outrider_test(NAME SOURCES files... LIBRARIES libs... [TIMEOUT seconds] [SHARDS n] [QUICK]): one GoogleTest program, one
# ctest entry, or n that share its tests. QUICK: one of `launch/test --quick`, which build little and run in seconds.
function(outrider_test name)
  cmake_parse_arguments(ARG "QUICK" "TIMEOUT;SHARDS" "SOURCES;LIBRARIES" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  outrider_precompile(${name} test)
  if(OUTRIDER_COLD_BUILD)
    target_link_libraries(${name} PRIVATE outrider::base)  # whose definitions the precompiled headers have
  endif()
  target_link_libraries(${name} PRIVATE ${ARG_LIBRARIES} outrider_test_source_dir GTest::gtest GTest::gtest_main)
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  if(OUTRIDER_SANITIZE)  # instrumented code takes 5 to 20 times as long
    math(EXPR ARG_TIMEOUT "6 * ${ARG_TIMEOUT}")
  endif()
  if(ARG_SHARDS)
    math(EXPR last "${ARG_SHARDS} - 1")
    foreach(shard RANGE ${last})
      add_test(NAME ${name}_${shard} COMMAND ${name})
      set_tests_properties(${name}_${shard} PROPERTIES TIMEOUT ${ARG_TIMEOUT}
        ENVIRONMENT "GTEST_TOTAL_SHARDS=${ARG_SHARDS};GTEST_SHARD_INDEX=${shard}"
        FAIL_REGULAR_EXPRESSION " 0 tests from")
    endforeach()
  else()
    add_test(NAME ${name} COMMAND ${name})
    set_tests_properties(${name} PROPERTIES TIMEOUT ${ARG_TIMEOUT})
  endif()
  if(ARG_QUICK)
    set_tests_properties(${name} PROPERTIES LABELS quick)
    add_dependencies(quick_tests ${name})
  endif()
endfunction()
