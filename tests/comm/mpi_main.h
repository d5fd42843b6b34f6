// main() of a GoogleTest program whose ranks are processes. Include once per program. Rank 0 reports as
// usual, the others only their failures; mpirun fails if any rank does.
#pragma once

#include <gtest/gtest.h>

#include <cstdio>
#include <optional>

#include "comm/mpi.h"

namespace outrider {

inline std::optional<MpiComm>& mpi_test_world_slot() {
  static std::optional<MpiComm> world;
  return world;
}
inline const MpiComm& mpi_test_world() { return *mpi_test_world_slot(); }

class FailuresOnly : public testing::EmptyTestEventListener {
  void OnTestPartResult(const testing::TestPartResult& result) override {
    if (result.failed())
      std::fprintf(stderr, "rank %d: %s:%d: %s\n", mpi_test_world().rank(), result.file_name(),
                   result.line_number(), result.message());
  }
};

}  // namespace outrider

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  const outrider::MpiSession session;
  auto& world = outrider::mpi_test_world_slot();
  world.emplace(session.world());
  if (world->rank() != 0) {
    auto& listeners = testing::UnitTest::GetInstance()->listeners();
    delete listeners.Release(listeners.default_result_printer());
    listeners.Append(new outrider::FailuresOnly);
  }
  const int failures = RUN_ALL_TESTS();
  // Ranks that disagree about the outcome of a test are no longer in step: do not wait for them.
  if (failures != 0) outrider::MpiSession::abort_job(1);
  world.reset();
  return 0;
}
