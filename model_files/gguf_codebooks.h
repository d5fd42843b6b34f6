// Codebooks of the IQ types of GGUF.
#pragma once

#include <cstdint>

namespace outrider {

// Numbers that the halves of IQ4_NL and IQ4_XS name.
inline constexpr int8_t kIq4Numbers[16]{-127, -104, -83, -65, -49, -35, -22, -10,
                                        1,    13,   25,  38,  53,  69,  89,  113};

// Entries: eight magnitudes, or four of IQ3.
const uint8_t* codebook_iq2_xxs(uint32_t entry);  // below 256
const uint8_t* codebook_iq2_xs(uint32_t entry);   // below 512
const uint8_t* codebook_iq2_s(uint32_t entry);    // below 1024
const uint8_t* codebook_iq3_xxs(uint32_t entry);  // below 256
const uint8_t* codebook_iq3_s(uint32_t entry);    // below 512
// Eight numbers of -1, 0 and 1; of IQ1_S and IQ1_M.
const int8_t* codebook_iq1(uint32_t entry);  // below 2048

}  // namespace outrider
