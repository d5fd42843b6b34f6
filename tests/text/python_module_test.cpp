// The places where the loader looks for pip's llguidance. A Python module can be loaded without Python.
#include "text/grammar/python_module.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "tests/support/temporary_directory.h"

namespace outrider {
namespace {

TEST(PythonModule, LoadsWithSymbolsThatAreThereForNothing) {
  const std::string file = OUTRIDER_PYTHON_LIKE_MODULE;
  ASSERT_EQ(dlopen(file.c_str(), RTLD_LAZY | RTLD_LOCAL), nullptr) << "it wants no symbol of Python";
  const Status provided = provide_python_symbols(file);
  ASSERT_TRUE(provided.ok()) << provided.message();
  void* const library = dlopen(file.c_str(), RTLD_LAZY | RTLD_LOCAL);
  ASSERT_NE(library, nullptr) << dlerror();
  const auto object = reinterpret_cast<const char* (*)()>(dlsym(library, "outrider_test_object"));
  const auto function = reinterpret_cast<void (*(*)())()>(dlsym(library, "outrider_test_function"));
  ASSERT_TRUE(object && function);
  EXPECT_EQ(*object(), 0);
  EXPECT_EQ(object()[4095], 0);
  EXPECT_NE(function(), nullptr);
}

TEST(PythonModule, OtherFilesAreNamed) {
  const TemporaryDirectory directory;
  const auto error = [](const std::string& file) { return provide_python_symbols(file).message(); };
  for (const char* bytes : {"", "no library",
                            "\x7f"
                            "ELF\2\1\1 and then nothing of one"}) {
    const std::string file = directory.write("_lib.so", bytes);
    EXPECT_TRUE(error(file).starts_with(file)) << error(file);
  }
  EXPECT_NE(error((directory / "none.so").string()).find("none.so"), std::string::npos);
  // A library of which a part is missing: every table is checked before it is read.
  const std::string whole = OUTRIDER_PYTHON_LIKE_MODULE;
  const size_t size = std::filesystem::file_size(whole);
  for (size_t left = 0; left < size; left += size / 60) {
    const auto cut = directory.path() / "cut.so";
    std::filesystem::copy_file(whole, cut, std::filesystem::copy_options::overwrite_existing);
    std::filesystem::resize_file(cut, left);
    EXPECT_FALSE(provide_python_symbols(cut.string()).ok()) << left;
  }
}

TEST(PythonModule, IsFoundInTheEnvironmentThatIsActive) {
  const TemporaryDirectory directory;
  const auto packages = directory.path() / "lib/python3.99/site-packages/llguidance";
  std::filesystem::create_directories(packages);
  const std::string file = directory.write("lib/python3.99/site-packages/llguidance/_lib.abi3.so", "");
  directory.write("lib/python3.99/site-packages/llguidance/other.so", "");
  std::filesystem::create_directories(directory.path() / "bin");
  directory.write("bin/python3", "");
  const char* const path = std::getenv("PATH");
  const std::string before = path ? path : "";
  const std::string beside = (directory.path() / "bin").string() + ":" + before;
  for (const auto& [name, value] :
       {std::pair<const char*, std::string>("VIRTUAL_ENV", directory.path().string()), {"PATH", beside}}) {
    const char* const old = std::getenv(name);
    const std::string kept = old ? old : "";
    setenv(name, value.c_str(), 1);
    const auto found = installed_grammar_libraries();
    ASSERT_FALSE(found.empty()) << name;
    EXPECT_NE(std::find(found.begin(), found.end(), file), found.end()) << name;
    for (const std::string& one : found) EXPECT_EQ(one.find("other.so"), std::string::npos) << one;
    old ? setenv(name, kept.c_str(), 1) : unsetenv(name);
  }
}

}  // namespace
}  // namespace outrider
