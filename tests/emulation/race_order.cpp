#include "tests/emulation/race_order.h"

#include <algorithm>

#include "base/log.h"

namespace outrider::cuda::emulation::races {
namespace {

struct StreamOrder {
  Clock clock;    // all that ran
  Clock settled;  // what ended before the kernels that may still run when an early one starts
};

struct Shared {
  std::mutex mutex;
  std::vector<StreamOrder> streams;
  std::vector<Operation> operations{1};
  Clock host;  // its threads hand over what they waited for: ThreadSanitizer watches that
};
Shared& shared() {
  static Shared instance;
  return instance;
}

void join(Clock& clock, const Clock& other) {
  if (clock.size() < other.size()) clock.resize(other.size());
  for (size_t s = 0; s < other.size(); ++s) clock[s] = std::max(clock[s], other[s]);
}

bool is_in(const Clock& clock, uint32_t id) {
  const uint32_t stream = shared().operations[id].stream;
  return stream < clock.size() && clock[stream] >= id;
}

}  // namespace

Running& running() {
  thread_local Running instance;
  return instance;
}
std::mutex& mutex() { return shared().mutex; }
const Operation& operation(uint32_t id) { return shared().operations[id]; }
bool host_comes_after(Stamp access) {
  return access.operation == 0 || is_in(shared().host, static_cast<uint32_t>(access.operation));
}

void Knowledge::add(const Knowledge& other) {
  join(clock, other.clock);
  for (const Part& part : other.parts) {
    const auto same = std::find_if(parts.begin(), parts.end(), [&](const Part& p) {
      return p.at.is_of_block(part.at) && p.at.thread == part.at.thread;
    });
    if (same == parts.end())
      parts.push_back(part);
    else if (same->at.time < part.at.time)
      *same = part;
  }
  std::erase_if(parts, [&](const Part& p) { return is_in(clock, static_cast<uint32_t>(p.at.operation)); });
}

bool Knowledge::covers(Stamp access) const {
  if (is_in(clock, static_cast<uint32_t>(access.operation))) return true;
  return std::any_of(parts.begin(), parts.end(), [&](const Part& p) {
    if (!p.at.is_of_block(access)) return false;
    return access.time < p.block_met || (access.warp() == p.at.warp() && access.time < p.warp_met) ||
           (access.thread == p.at.thread && access.time <= p.at.time);
  });
}

bool Running::comes_after(Stamp access, bool in_shared_memory) const {
  if (access.operation == 0) return true;
  const size_t warp = thread / 32;
  if (access.is_of_block(stamp()))
    return access.thread == thread || access.time < block_met ||
           (access.warp() == warp && access.time < warp_met[warp]);
  if (in_shared_memory) return true;  // another block's, which was elsewhere
  if (access.operation != operation && is_in(clock(), static_cast<uint32_t>(access.operation))) return true;
  return has_knowledge &&
         (of_block.covers(access) || of_warp[warp].covers(access) || of_thread[thread].covers(access));
}

void Running::acquire(const Knowledge& knowledge) {
  if (knowledge.is_empty()) return;
  has_knowledge = true;
  of_thread[thread].add(knowledge);
}

Knowledge Running::release() {
  const size_t warp = thread / 32;
  Knowledge all{.clock = clock(), .parts = {{stamp(), block_met, warp_met[warp]}}};
  for (const Knowledge* known : {&of_block, &of_warp[warp], &of_thread[thread]}) all.add(*known);
  ++time;
  return all;
}

uint32_t open_stream() {
  const std::lock_guard lock(mutex());
  shared().streams.emplace_back();
  return static_cast<uint32_t>(shared().streams.size() - 1);
}
Clock clock_of(uint32_t stream) {
  const std::lock_guard lock(mutex());
  return shared().streams[stream].clock;
}
void host_waited(const Clock& clock) {
  const std::lock_guard lock(mutex());
  join(shared().host, clock);
}

void begin_operation(uint32_t stream) {
  const std::lock_guard lock(mutex());
  Shared& s = shared();
  Running& r = running();
  r.operation = static_cast<uint32_t>(s.operations.size());
  CHECK(r.operation < 1u << 20, "more operations than the race checker counts");
  s.operations.push_back({.stream = stream});
  StreamOrder& order = s.streams[stream];
  join(order.clock, s.host);
  join(order.settled, s.host);
  r.before = order.clock;
  r.before_inputs = order.settled;
  r.is_early = false;
  r.block = r.thread = r.time = r.block_met = 0;
  r.learned = {};
}

void end_operation() {
  const std::lock_guard lock(mutex());
  Running& r = running();
  const Operation& done = operation(r.operation);
  StreamOrder& order = shared().streams[done.stream];
  join(order.clock, r.learned.clock);
  if (order.clock.size() <= done.stream) order.clock.resize(done.stream + 1);
  if (done.kernel && !r.is_early) order.settled = order.clock;  // the kernel itself may still run
  order.clock[done.stream] = r.operation;
  if (!done.kernel) order.settled = order.clock;
  r.operation = 0;
}

void begin_kernel(const void* kernel, bool is_early, unsigned threads) {
  const std::lock_guard lock(mutex());
  Running& r = running();
  shared().operations[r.operation].kernel = kernel;
  r.is_early = is_early;
  r.threads = threads;
  if (r.of_thread.size() < threads) r.of_thread.resize(threads);
}

void begin_block(unsigned block) {
  CHECK(block < 1u << 13, "more blocks than the race checker counts");
  Running& r = running();
  r.block = block;
  r.time = r.block_met = 0;
  r.warp_met.fill(0);
  r.has_inputs.reset();
}

void end_block() {
  block_met();
  Running& r = running();
  const std::lock_guard lock(mutex());
  r.learned.add(r.of_block);
  r.of_block = {};
  r.has_knowledge = false;
}

void resume(unsigned thread) { running().thread = thread; }
void await_inputs() {
  Running& r = running();
  r.has_inputs[r.thread] = true;
}

void warp_met(unsigned warp) {
  Running& r = running();
  r.warp_met[warp] = ++r.time;
  if (!r.has_knowledge) return;
  const std::lock_guard lock(mutex());
  for (unsigned t = warp * 32; t < std::min(r.threads, (warp + 1) * 32); ++t) {
    r.of_warp[warp].add(r.of_thread[t]);
    r.of_thread[t] = {};
  }
}

void block_met() {
  Running& r = running();
  r.block_met = ++r.time;
  CHECK(r.time < 1u << 19, "more barriers than the race checker counts");
  if (!r.has_knowledge) return;
  for (unsigned warp = 0; warp * 32 < r.threads; ++warp) warp_met(warp);
  const std::lock_guard lock(mutex());
  for (unsigned warp = 0; warp * 32 < r.threads; ++warp) {
    r.of_block.add(r.of_warp[warp]);
    r.of_warp[warp] = {};
  }
}

}  // namespace outrider::cuda::emulation::races
