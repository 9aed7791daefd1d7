// SHA-256 (FIPS 180-4): plain C++, no Python headers.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace kvsweep::ledger {

// Whether this processor has instructions for it.
bool sha256_hardware();

class Sha256 {
  public:
    // `hardware` may be true only where sha256_hardware().
    explicit Sha256(bool hardware = sha256_hardware()) : hardware_(hardware) {}
    void update(const void* from, std::size_t bytes);
    // Of all that came; nothing comes after it.
    std::array<std::uint8_t, 32> digest();

  private:
    void blocks(const std::uint8_t* data, std::size_t count);

    std::array<std::uint32_t, 8> state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                        0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    std::array<std::uint8_t, 64> kept_{};  // what is no whole block yet
    std::uint64_t bytes_ = 0;
    bool hardware_;
};

}  // namespace kvsweep::ledger
