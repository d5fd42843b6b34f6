// The instruction set of the CPU ops: chosen once per process, before the first op.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"

namespace outrider {

// The instruction set in use, e.g. "amx", "avx512_bf16", "avx3", "avx2". Bits are promised within one of
// them.
std::string isa_name();
// Pins it before the first op ("auto" or one of available_isas()); an error names what this machine offers.
Status pin_isa(const std::string& name);
std::vector<std::string> available_isas();

// Whether kernels may use the matrix unit (AMX) for bf16 and int8. Its bf16 sums take another order than
// everybody else's, so it is a level of its own.
bool isa_has_amx();
// Whether they may use the AVX-512 dot products of bf16 pairs.
bool isa_has_avx512_bf16();
// And those of int8 quadruples. They are exact, so they change no bit and need no level of their own.
bool isa_has_avx512_vnni();

}  // namespace outrider
