// Fails every test in which the race checker found something.
#include <gtest/gtest.h>

#include "tests/emulation/races.h"

namespace outrider::cuda {
namespace {

class ReportRaces final : public testing::EmptyTestEventListener {
  void OnTestEnd(const testing::TestInfo&) override {
    for (const std::string& text : emulation::races::take_reports()) ADD_FAILURE() << "race: " << text;
  }
};

[[maybe_unused]] const bool is_listening = [] {
  testing::UnitTest::GetInstance()->listeners().Append(new ReportRaces);
  return true;
}();

}  // namespace
}  // namespace outrider::cuda
