// Directories that are being written when the program ends.
#include "base/program/partial_directory.h"

#include <gtest/gtest.h>

#include <csignal>
#include <fstream>

#include "base/program/temporary_file.h"
#include "tests/support/temporary_directory.h"

namespace outrider {
namespace {

namespace fs = std::filesystem;

void begin(const fs::path& path, const char* file) {
  fs::create_directories((path / file).parent_path());
  std::ofstream(path / file) << "begun";
}

TEST(PartialDirectory, ASignalRemovesItAndItsFile) {
  const TemporaryDirectory dir;
  const auto write_until_killed = [&] {
    remove_temporary_file_on_signals();
    PartialDirectory directory = PartialDirectory::create(dir / "model").value();
    begin(directory.path(), "config.json");
    begin(directory.path(), "draft/config.json");
    TemporaryFile weights = TemporaryFile::create((directory.path() / "weights").string()).value();
    std::raise(SIGTERM);
  };
  EXPECT_EXIT(write_until_killed(), ::testing::KilledBySignal(SIGTERM), "");
  EXPECT_EQ(dir.entries(), std::vector<std::string>());
}

TEST(PartialDirectory, ASignalLeavesWhatIsWhole) {
  const TemporaryDirectory dir;
  const auto write_and_go_on = [&] {
    remove_temporary_file_on_signals();
    {
      PartialDirectory directory = PartialDirectory::create(dir / "model").value();
      begin(directory.path(), "config.json");
      if (!directory.commit().ok()) std::exit(1);
    }
    std::raise(SIGTERM);
  };
  EXPECT_EXIT(write_and_go_on(), ::testing::KilledBySignal(SIGTERM), "");
  EXPECT_TRUE(fs::exists(dir / "model/config.json"));
}

TEST(PartialDirectory, WorkThatFailsLeavesNothing) {
  const TemporaryDirectory dir;
  {
    PartialDirectory directory = PartialDirectory::create(dir / "model/").value();
    begin(directory.path(), "config.json");
  }
  EXPECT_EQ(dir.entries(), std::vector<std::string>());
}

}  // namespace
}  // namespace outrider
