// Access to the device memory of other ranks, and a wait for a stream that can be abandoned.
#pragma once

#include <array>
#include <cstddef>

#include "base/cuda.h"

namespace outrider::cuda {

// True if all queued work is done; throws its error.
bool is_done(StreamView stream);
// True if all work queued before the event was recorded is done; throws its error.
bool is_done(const Event& event);

// The device that is current for the calling thread, and its name on this machine, the same in every process.
int current_device();
std::string bus_id(int device);
// A lower bound of the blocks of a kernel that are resident on a device at once: one on each multiprocessor.
int resident_blocks(int device);
// Lets kernels of the current device read and write memory of `peer`; no effect for a device itself.
Status allow_peer(int peer);

// Names device memory for other processes of this machine.
using MemoryHandle = std::array<std::byte, 64>;
Result<MemoryHandle> export_memory(void* memory);  // the start of a DeviceBuffer

// Another process's memory, mapped into this one on the current device.
class ImportedMemory {
 public:
  static Result<ImportedMemory> open(const MemoryHandle& handle);
  ImportedMemory(ImportedMemory&& other) noexcept : data_(std::exchange(other.data_, nullptr)) {}
  ImportedMemory& operator=(ImportedMemory&& other) noexcept {
    std::swap(data_, other.data_);
    return *this;
  }
  ~ImportedMemory();
  void* data() const { return data_; }

 private:
  explicit ImportedMemory(void* data) : data_(data) {}
  void* data_ = nullptr;
};

}  // namespace outrider::cuda
