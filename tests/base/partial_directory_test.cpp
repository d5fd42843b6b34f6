// Directories that are being written when the program ends.
#include "base/program/partial_directory.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <fstream>

#include "base/program/abandoned.h"
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

// Only the files of killed processes are removed: no file of a living one, and none with a similar name.
TEST(Abandoned, IsRemovedWhenItsProcessIsGone) {
  const TemporaryDirectory dir;
  const pid_t gone = fork();
  if (gone == 0) _exit(0);
  waitpid(gone, nullptr, 0);
  const auto partial = [](const char* name, pid_t process) {
    return fmt::format("{}.{}.partial", name, process);
  };
  begin(dir / partial("model", gone), "config.json");
  begin(dir / partial("model", getpid()), "config.json");
  begin(dir / partial("other", gone), "config.json");
  std::ofstream(dir / partial("model.gguf", gone)) << "begun";
  std::ofstream(dir / "model.gguf.partial") << "whose it is nobody knows";
  EXPECT_EQ(remove_abandoned(dir / "model/"), std::vector<std::string>{dir / partial("model", gone)});
  EXPECT_EQ(remove_abandoned(dir / "model.gguf"),
            std::vector<std::string>{dir / partial("model.gguf", gone)});
  EXPECT_EQ(remove_abandoned(dir / "nothing"), std::vector<std::string>());
  EXPECT_EQ(remove_abandoned(dir / "nowhere/model"), std::vector<std::string>());
  EXPECT_TRUE(fs::exists(dir / partial("model", getpid())));
  EXPECT_TRUE(fs::exists(dir / partial("other", gone)));
  EXPECT_TRUE(fs::exists(dir / "model.gguf.partial"));
}

}  // namespace
}  // namespace outrider
