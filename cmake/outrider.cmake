# Build rules shared by every folder. Sources are united in groups before they are compiled (CMAKE_UNITY_BUILD of the
# presets): headers and templates are most of the compiler's work on one. Names in anonymous namespaces are therefore
# different within a folder, and within a test program. The sources of each test program are united. What tests replace,
# the sources with a form for the emulation or for builds without CUDA, is not: a linker takes objects whole. Their form for
# the emulation is (tests/CMakeLists.txt).

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
endif()

# GCC collects garbage as soon as it holds 128 MB, which is a tenth of its time on united sources. They need up to 1.2 GB,
# and 1.8 GB without collections.
cmake_host_system_information(RESULT memory QUERY TOTAL_PHYSICAL_MEMORY)  # MiB
if(EXISTS /sys/fs/cgroup/memory.max)  # of a container, if it has a limit
  file(STRINGS /sys/fs/cgroup/memory.max limit)
  if(limit MATCHES "^[0-9]+$")
    math(EXPR limit "${limit} >> 20")
    if(limit LESS memory)
      set(memory ${limit})
    endif()
  endif()
endif()
cmake_host_system_information(RESULT cores QUERY NUMBER_OF_LOGICAL_CORES)
math(EXPR memory_of_core "${memory} / ${cores}")
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND memory_of_core GREATER 3000)
  add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:--param=ggc-min-heapsize=1500000>")
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

# outrider_unity_warnings(TARGET): g++ 12 takes an included source for a header, and is wrong about strings where it inlines
# much.
function(outrider_unity_warnings target)
  target_compile_options(${target} PRIVATE
    "$<$<COMPILE_LANGUAGE:CXX>:-Wno-subobject-linkage;-Wno-shadow;-Wno-restrict>")
endfunction()

# outrider_library(NAME sources...): one static library per folder; includes are rooted at the source tree.
function(outrider_library name)
  add_library(outrider_${name} STATIC ${ARGN})
  if(CMAKE_UNITY_BUILD)
    outrider_unity_warnings(outrider_${name})
  endif()
  add_library(outrider::${name} ALIAS outrider_${name})
  target_include_directories(outrider_${name} PUBLIC ${PROJECT_SOURCE_DIR} ${PROJECT_BINARY_DIR}/generated)
endfunction()

# outrider_compile_fast(TARGET): the target waits for people, files and other code, never for its own, so that optimising
# it fully, which is more than half of the compiler's work, would gain nothing.
function(outrider_compile_fast target)
  target_compile_options(${target} PRIVATE "$<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CONFIG:Release>>:-O1>")
endfunction()

# outrider_compile_tests(TARGET): the code of most tests calls libraries and compares. Without optimisation it compiles in two
# thirds of the time. OUTRIDER_TEST_LEVEL is a folder's own level, where references are computed.
function(outrider_compile_tests target)
  target_compile_options(${target} PRIVATE "$<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CONFIG:Release>>:${OUTRIDER_TEST_LEVEL}>")
  outrider_unite_tests(${target})
endfunction()

# outrider_unite_tests(TARGET): the sources of a test program are united where those of libraries are. OUTRIDER_UNITE_TESTS is
# CMAKE_UNITY_BUILD of the preset, which is off in tests/ for what tests replace.
function(outrider_unite_tests target)
  get_target_property(sources ${target} SOURCES)
  list(FILTER sources INCLUDE REGEX "\\.cpp$")
  list(LENGTH sources count)
  if(OUTRIDER_UNITE_TESTS AND count GREATER 1)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON)
    outrider_unity_warnings(${target})
  endif()
endfunction()

# outrider_test_objects(NAME SOURCES files... LIBRARIES libs...): tests that several programs share, compiled once. A program
# takes them as a source: $<TARGET_OBJECTS:NAME>.
function(outrider_test_objects name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LIBRARIES" ${ARGN})
  add_library(${name} OBJECT ${ARG_SOURCES})
  outrider_compile_tests(${name})
  target_link_libraries(${name} PRIVATE ${ARG_LIBRARIES} outrider_test_source_dir GTest::gtest)
endfunction()

# Slots of `ctest -j` that a test takes: four where it computes, five where its processes wait for each other, one where it
# hardly does more than wait. The twelve slots of the test preset of a release are one test of processes, one that
# computes, and some that wait; or three that compute. Ranks of MPI wait actively, and two tests that compute
# beside them slow their jobs down a lot.
set(OUTRIDER_TEST_SLOTS 4)
set(OUTRIDER_PROCESS_SLOTS 5)

# Labels. Every entry has the label of its kind: unit, model, e2e, process, emulated, races, law. OUTRIDER_TEST_KIND is the
# one of a folder. `change` marks what a change needs (`launch/test`), `quick` a part of it (`launch/test --quick`), and
# `slow` whole grids of what other entries prove in part (`launch/test --slow`).
function(outrider_label test kind)
  set(labels ${kind})
  foreach(tier IN LISTS ARGN)
    list(APPEND labels ${tier})
    if(tier STREQUAL quick)
      list(APPEND labels change)
    endif()
  endforeach()
  set_property(TEST ${test} APPEND PROPERTY LABELS ${labels})
endfunction()

# outrider_whole_entry(NAME KIND TIMEOUT): the entry NAME_whole, labelled slow, which runs all tests of the program, and
# grids of requests whole (tests/end_to_end/request_grid.h).
function(outrider_whole_entry name kind timeout)
  add_test(NAME ${name}_whole COMMAND ${name})
  outrider_label(${name}_whole ${kind} slow)
  set_tests_properties(${name}_whole PROPERTIES TIMEOUT ${timeout} PROCESSORS ${OUTRIDER_TEST_SLOTS} ENVIRONMENT OUTRIDER_TEST_WHOLE=1)
endfunction()

# outrider_test(NAME SOURCES files... LIBRARIES libs... [TIMEOUT seconds] [SHARDS n] [THIN filter] [QUICK | CHANGE]): one
# GoogleTest program, one ctest entry, or n that share its tests. THIN: they run what the filter leaves, and the entry
# NAME_whole, labelled slow, runs all. QUICK and CHANGE: tiers that the entry belongs to.
function(outrider_test name)
  cmake_parse_arguments(ARG "QUICK;CHANGE" "TIMEOUT;SHARDS" "SOURCES;LIBRARIES;THIN" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  outrider_compile_tests(${name})
  target_link_libraries(${name} PRIVATE ${ARG_LIBRARIES} outrider_test_source_dir GTest::gtest GTest::gtest_main)
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 600)  # ends only what hangs; a busy machine takes several times as long as an idle one
  endif()
  if(OUTRIDER_SANITIZE)  # instrumented code takes 5 to 20 times as long
    math(EXPR ARG_TIMEOUT "6 * ${ARG_TIMEOUT}")
  endif()
  set(kind ${OUTRIDER_TEST_KIND})
  if(name MATCHES "emulated_test$")
    set(kind emulated)
  endif()
  set(environment "")
  if(ARG_THIN)
    list(JOIN ARG_THIN ":" filter)
    set(environment ";GTEST_FILTER=${filter}")
    math(EXPR whole_timeout "4 * ${ARG_TIMEOUT}")
    outrider_whole_entry(${name} ${kind} ${whole_timeout})
  endif()
  if(ARG_SHARDS)
    math(EXPR last "${ARG_SHARDS} - 1")
    foreach(shard RANGE ${last})
      add_test(NAME ${name}_${shard} COMMAND ${name})
      outrider_label(${name}_${shard} ${kind})
      set_tests_properties(${name}_${shard} PROPERTIES TIMEOUT ${ARG_TIMEOUT} PROCESSORS ${OUTRIDER_TEST_SLOTS} COST 50
        ENVIRONMENT "GTEST_TOTAL_SHARDS=${ARG_SHARDS};GTEST_SHARD_INDEX=${shard}${environment}"
        FAIL_REGULAR_EXPRESSION " 0 tests from")
    endforeach()
    return()
  endif()
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES TIMEOUT ${ARG_TIMEOUT} PROCESSORS ${OUTRIDER_TEST_SLOTS})
  if(ARG_THIN)
    set_tests_properties(${name} PROPERTIES ENVIRONMENT "GTEST_FILTER=${filter}")
  endif()
  if(ARG_QUICK)
    outrider_label(${name} ${kind} quick)
    add_dependencies(quick_tests ${name})
  elseif(ARG_CHANGE)
    outrider_label(${name} ${kind} change)
  else()
    outrider_label(${name} ${kind})
  endif()
  if(ARG_QUICK OR ARG_CHANGE)
    add_dependencies(change_tests ${name})
  endif()
endfunction()
