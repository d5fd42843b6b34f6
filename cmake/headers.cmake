# Headers of others that are parsed once, in three sets (outrider_precompile of outrider.cmake). None of ours: they change.
if(NOT OUTRIDER_COLD_BUILD)
  return()
endif()

set(std_headers <algorithm> <array> <atomic> <chrono> <cmath> <condition_variable> <cstdint> <cstring> <deque> <filesystem>
  <fstream> <functional> <map> <memory> <mutex> <numeric> <optional> <random> <set> <span> <sstream> <string> <string_view>
  <thread> <unordered_map> <utility> <variant> <vector> <fmt/format.h>)
file(WRITE ${PROJECT_BINARY_DIR}/generated/empty.cpp "")
foreach(set std json test)
  add_library(outrider_headers_${set} STATIC ${PROJECT_BINARY_DIR}/generated/empty.cpp)
  target_link_libraries(outrider_headers_${set} PRIVATE fmt::fmt spdlog::spdlog nlohmann_json::nlohmann_json)
endforeach()
target_precompile_headers(outrider_headers_std PRIVATE ${std_headers})
target_precompile_headers(outrider_headers_json PRIVATE ${std_headers} <nlohmann/json.hpp>)
if(BUILD_TESTING)
  find_package(GTest REQUIRED)
  target_link_libraries(outrider_headers_test PRIVATE GTest::gtest)
  target_precompile_headers(outrider_headers_test PRIVATE ${std_headers} <gtest/gtest.h>)
endif()
