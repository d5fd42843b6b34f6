#include "tests/emulation/race_shadow.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <set>

#include "base/log.h"
#include "tests/emulation/race_order.h"

extern const char __executable_start;  // by the linker

namespace outrider::cuda::emulation::races {
namespace {

// The last write, and two reads since: the last, and one by whoever shares the fewest barriers with it.
struct Cell {
  Stamp write, reads[2];
  uint32_t write_code = 0, read_code = 0;

  bool operator==(const Cell& other) const { return std::memcmp(this, &other, sizeof(Cell)) == 0; }
};
static_assert(sizeof(Cell) == 3 * sizeof(Stamp) + 2 * sizeof(uint32_t));  // no padding

// Addresses: blocks of shared memory, one for each thread of the host; pinned memory; device memory. None is
// given out twice, but pages of what is freed go back.
constexpr size_t kPage = 4096, kSharedBytes = size_t{256} << 10, kSharedBlocks = 256;
constexpr size_t kPinned = kSharedBytes * kSharedBlocks, kDevice = size_t{16} << 30;

std::byte* reserve(size_t bytes) {
  void* memory =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  CHECK(memory != MAP_FAILED, "{} bytes of addresses for the race checker", bytes);
  return static_cast<std::byte*>(memory);
}

struct Report {
  Stamp now, before;
  Access access;
  bool was_write;
  uint32_t code, before_code;
  size_t offset;
};

struct Watched {
  std::byte* memory = reserve(kWatchedBytes);
  Cell* cells = reinterpret_cast<Cell*>(reserve(kWatchedBytes * sizeof(Cell)));
  size_t next[2] = {kDevice, kPinned};  // by Memory
  std::map<size_t, size_t> bytes;       // of what is given out
  std::vector<size_t> shared_blocks;    // that are free
  std::vector<Report> reports;
  Watched() {
    for (size_t i = 0; i < kSharedBlocks; ++i) shared_blocks.push_back(i * kSharedBytes);
  }
};
Watched& watched() {
  static Watched instance;
  return instance;
}

bool is_atomic(Access access) { return access == Access::kAtomicRead || access == Access::kAtomicWrite; }
bool is_write(Access access) { return access != Access::kRead && access != Access::kAtomicRead; }
uint32_t short_code(const void* code) {
  return code ? static_cast<uint32_t>(static_cast<const char*>(code) - &__executable_start) : 0;
}

// One text for the same two places of the code.
void report(const Report& found) {
  auto& reports = watched().reports;
  const auto same = [&](const Report& r) {
    return r.code == found.code && r.before_code == found.before_code && r.access == found.access &&
           r.was_write == found.was_write;
  };
  if (std::none_of(reports.begin(), reports.end(), same)) reports.push_back(found);
}

void host_access(size_t offset, size_t bytes, Access access, uint32_t code) {
  const std::lock_guard lock(mutex());
  const Cell* cell = watched().cells + offset;
  for (size_t i = 0; i < bytes; ++i, ++cell) {
    Report found{.access = access, .was_write = true, .code = code, .offset = offset + i};
    if (offset >= kDevice) return report(found);  // an address of the device only
    if (!host_comes_after(cell->write)) {
      found.before = cell->write, found.before_code = cell->write_code;
      return report(found);
    }
    if (!is_write(access)) continue;
    for (const Stamp& read : cell->reads) {
      if (host_comes_after(read)) continue;
      found.before = read, found.before_code = cell->read_code, found.was_write = false;
      return report(found);
    }
  }
}

int distance(Stamp a, Stamp b) {
  if (!a.is_of_block(b)) return 3;
  return a.warp() != b.warp() ? 2 : a.thread != b.thread ? 1 : 0;
}

// Keeps the two readers that are furthest from each other, because a later write may race with either.
void remember_read(const Running& r, Cell& cell, Stamp read, bool is_shared, uint32_t code) {
  Stamp &last = cell.reads[0], &other = cell.reads[1];
  if (last.operation != 0 && distance(last, read) > 0 &&
      (distance(last, read) >= distance(other, read) || r.comes_after(other, is_shared)))
    other = last;
  last = read;
  cell.read_code = code;
}

void device_access(const Running& r, size_t offset, size_t bytes, Access access, uint32_t code) {
  const bool is_shared = offset < kPinned;
  std::unique_lock<std::mutex> lock(mutex(), std::defer_lock);
  if (!is_shared) lock.lock();  // shared memory is one host thread's
  Stamp now = r.stamp();
  now.is_atomic = is_atomic(access);
  now.is_pending = access == Access::kCopyWrite;
  Stamp fine;  // the last that was found in order
  const auto check = [&](Stamp before, bool was_write, uint32_t before_code) {
    if (before == fine) return;
    const bool is_missing = before.is_pending && before.is_of_block(now);
    if (!is_missing && ((before.is_atomic && now.is_atomic) || r.comes_after(before, is_shared))) {
      fine = before;
      return;
    }
    if (is_shared) lock.lock();
    report({now, before, access, was_write, code, before_code, offset});
    if (is_shared) lock.unlock();
  };
  const auto visit = [&](Cell& cell) {
    if (now == (is_write(access) ? cell.write : cell.reads[0]) && !now.is_pending) return;
    check(cell.write, true, cell.write_code);
    if (!is_write(access)) return remember_read(r, cell, now, is_shared, code);
    for (const Stamp& read : cell.reads) check(read, false, cell.read_code);
    cell = {.write = now, .reads = {}, .write_code = code};
  };
  Cell* cell = watched().cells + offset;
  Cell before, after;  // of the byte before this one: those of a word mostly have one history
  for (size_t i = 0; i < bytes; ++i, ++cell) {
    if (i > 0 && *cell == before) {
      *cell = after;
      continue;
    }
    before = *cell;
    visit(*cell);
    after = *cell;
  }
}

// Lines that addr2line of binutils prints.
std::vector<std::string> ask_addr2line(const char* flags, uint32_t code) {
  const std::string command =
      fmt::format("addr2line {} -e /proc/{}/exe {:#x} 2>/dev/null", flags, getpid(), code);
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command.c_str(), "r"), &pclose);
  std::vector<std::string> lines;
  char line[4096];
  while (pipe && fgets(line, sizeof(line), pipe.get())) lines.emplace_back(line, strcspn(line, "\n"));
  return lines;
}

// "file:line", and who inlined it.
std::string place(uint32_t code) {
  if (code == 0) return "unknown code";
  auto lines = ask_addr2line("-is", code - 1);  // the call is in front of where it returns to
  for (std::string& line : lines) line.resize(std::min(line.find(' '), line.size()));  // "(discriminator 3)"
  return lines.empty() ? fmt::format("program + {:#x}", code) : fmt::format("{}", fmt::join(lines, " < "));
}

std::string kernel_name(const void* kernel) {
  const auto lines = ask_addr2line("-Cf", short_code(kernel));
  if (lines.empty()) return fmt::format("kernel at program + {:#x}", short_code(kernel));
  std::string name = lines[0];
  for (const std::string noise : {"void ", "outrider::", "cuda::", "(anonymous namespace)::"})
    for (size_t at; (at = name.find(noise)) != std::string::npos;) name.erase(at, noise.size());
  const size_t template_end = name.rfind(">(");
  return name.substr(0, template_end != std::string::npos ? template_end + 1 : name.find('('));
}

std::string describe(Stamp stamp) {
  if (stamp.operation == 0) return "the host";
  const void* kernel = operation(static_cast<uint32_t>(stamp.operation)).kernel;
  if (!kernel) return fmt::format("a copy or fill, operation {}", +stamp.operation);
  return fmt::format("{}, operation {}, block {}, thread {}", kernel_name(kernel), +stamp.operation,
                     +stamp.block, +stamp.thread);
}

std::string describe(const Report& r) {
  std::string text = fmt::format("{} {} memory at {}\n  by {}\n", is_write(r.access) ? "writes" : "reads",
                                 r.offset < kPinned   ? "shared"
                                 : r.offset < kDevice ? "pinned"
                                                      : "device",
                                 place(r.code), describe(r.now));
  if (r.now.operation == 0 && r.before.operation == 0) return text + "  which cannot";
  const char* why = r.now.operation == 0  ? "which has not waited for"
                    : r.before.is_pending ? "which has not waited for the asynchronous copy,"
                                          : "and nothing orders it after";
  return text + fmt::format("  {} the {} at {}\n  by {}", why, r.was_write ? "write" : "read",
                            place(r.before_code), describe(r.before));
}

}  // namespace

const uintptr_t watched_begin = reinterpret_cast<uintptr_t>(watched().memory);

void access(uintptr_t at, size_t bytes, Access access, const void* code) {
  const Running& r = running();
  if (r.operation == 0)
    host_access(at - watched_begin, bytes, access, short_code(code));
  else
    device_access(r, at - watched_begin, bytes, access, short_code(code));
}

void* allocate(Memory kind, size_t bytes) {
  const std::lock_guard lock(mutex());
  Watched& w = watched();
  size_t& next = w.next[static_cast<int>(kind)];
  const size_t at = next;
  next += (bytes + kPage - 1) / kPage * kPage;
  CHECK(next <= (kind == Memory::kPinned ? kDevice : kWatchedBytes), "the race checker is out of addresses");
  w.bytes[at] = next - at;
  return w.memory + at;
}
void free_memory(void* memory) noexcept {
  const std::lock_guard lock(mutex());
  Watched& w = watched();
  const auto given = w.bytes.find(static_cast<size_t>(static_cast<std::byte*>(memory) - w.memory));
  madvise(memory, given->second, MADV_DONTNEED);
  madvise(w.cells + given->first, given->second * sizeof(Cell), MADV_DONTNEED);
  w.bytes.erase(given);
}

void* allocate_shared(size_t bytes) {
  const std::lock_guard lock(mutex());
  auto& blocks = watched().shared_blocks;
  CHECK(bytes <= kSharedBytes && !blocks.empty(), "{} bytes of shared memory", bytes);
  const size_t at = blocks.back();
  blocks.pop_back();
  return watched().memory + at;
}
void free_shared(void* memory) noexcept {
  const std::lock_guard lock(mutex());
  watched().shared_blocks.push_back(static_cast<size_t>(static_cast<std::byte*>(memory) - watched().memory));
}

void read(const void* from, size_t bytes) {
  if (const auto at = reinterpret_cast<uintptr_t>(from); is_watched(at))
    access(at, bytes, Access::kRead, nullptr);
}
void written(void* to, size_t bytes) {
  if (const auto at = reinterpret_cast<uintptr_t>(to); is_watched(at))
    access(at, bytes, Access::kWrite, nullptr);
}

void copy_begins(void* to, const void* from, size_t bytes, const void* code) {
  const auto source = reinterpret_cast<uintptr_t>(from);
  if (is_watched(source)) access(source, bytes, Access::kRead, code);
  access(reinterpret_cast<uintptr_t>(to), bytes, Access::kCopyWrite, code);
}
void copy_arrives(void* to, size_t bytes) {
  Cell* cell = watched().cells + (reinterpret_cast<uintptr_t>(to) - watched_begin);
  for (size_t i = 0; i < bytes; ++i) cell[i].write = running().stamp();
}

std::vector<std::string> take_reports() {
  const std::lock_guard lock(mutex());
  std::set<std::pair<std::string, std::string>> places;  // templates have the same ones
  std::vector<std::string> texts;
  for (const Report& r : std::exchange(watched().reports, {}))
    if (places.emplace(place(r.code), place(r.before_code)).second) texts.push_back(describe(r));
  return texts;
}

}  // namespace outrider::cuda::emulation::races
