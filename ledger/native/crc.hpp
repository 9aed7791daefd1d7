// CRC-32 as zlib has it (polynomial 0xEDB88320, reflected), so that checksums of files stay what they are.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvsweep::ledger {

// Whether this processor multiplies without carries; else tables do it.
bool crc_folds();

// The checksum of what `crc` is of, followed by `size` bytes. `fold` may be true only where crc_folds().
std::uint32_t crc32(std::uint32_t crc, const std::uint8_t* data, std::size_t size, bool fold);

}  // namespace kvsweep::ledger
