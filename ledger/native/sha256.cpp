#include "sha256.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

#if defined(__x86_64__)
#define KVSWEEP_X86 1
#include <cpuid.h>
#include <immintrin.h>
#define SHA __attribute__((target("sha,sse4.1,ssse3")))
#else
#define KVSWEEP_X86 0
#endif

namespace kvsweep::ledger {
namespace {

constexpr std::size_t block_bytes = 64;

constexpr std::uint32_t constants[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

std::uint32_t big_endian(const std::uint8_t* from) {
    return std::uint32_t{from[0]} << 24 | std::uint32_t{from[1]} << 16 | std::uint32_t{from[2]} << 8 | from[3];
}

void to_big_endian(std::uint8_t* to, std::uint32_t word) {
    for (int byte = 0; byte < 4; ++byte) {
        to[byte] = static_cast<std::uint8_t>(word >> (24 - 8 * byte));
    }
}

void plainly(std::uint32_t* state, const std::uint8_t* data, std::size_t count) {
    for (; count > 0; --count, data += block_bytes) {
        std::uint32_t words[64];
        for (int at = 0; at < 16; ++at) {
            words[at] = big_endian(data + 4 * at);
        }
        for (int at = 16; at < 64; ++at) {
            const std::uint32_t early = words[at - 15], late = words[at - 2];
            words[at] = words[at - 16] + words[at - 7] + (std::rotr(early, 7) ^ std::rotr(early, 18) ^ (early >> 3)) +
                        (std::rotr(late, 17) ^ std::rotr(late, 19) ^ (late >> 10));
        }
        auto [a, b, c, d, e, f, g, h] =
            std::array{state[0], state[1], state[2], state[3], state[4], state[5], state[6], state[7]};
        for (int at = 0; at < 64; ++at) {
            const std::uint32_t one = h + (std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25)) +
                                      ((e & f) ^ (~e & g)) + constants[at] + words[at];
            const std::uint32_t two =
                (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
            h = g, g = f, f = e, e = d + one, d = c, c = b, b = a, a = one + two;
        }
        const std::uint32_t more[8] = {a, b, c, d, e, f, g, h};
        for (int at = 0; at < 8; ++at) {
            state[at] += more[at];
        }
    }
}

#if KVSWEEP_X86
SHA inline __m128i load(const void* from) { return _mm_loadu_si128(static_cast<const __m128i*>(from)); }

// The words of the state lie as the instructions want them: a, b, e, f and c, d, g, h, the last one lowest.
SHA void by_instructions(std::uint32_t* state, const std::uint8_t* data, std::size_t count) {
    const __m128i swap = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
    const __m128i badc = _mm_shuffle_epi32(load(state), 0xB1), hgfe = _mm_shuffle_epi32(load(state + 4), 0x1B);
    __m128i abef = _mm_alignr_epi8(badc, hgfe, 8), cdgh = _mm_blend_epi16(hgfe, badc, 0xF0);
    for (; count > 0; --count, data += block_bytes) {
        const __m128i abef_before = abef, cdgh_before = cdgh;
        __m128i words[4];
        for (int at = 0; at < 4; ++at) {
            words[at] = _mm_shuffle_epi8(load(data + 16 * at), swap);
        }
#pragma GCC unroll 16
        for (int four = 0; four < 16; ++four) {
            __m128i& oldest = words[four % 4];
            const __m128i second = words[(four + 1) % 4], third = words[(four + 2) % 4], last = words[(four + 3) % 4];
            const __m128i sum = _mm_add_epi32(oldest, load(constants + 4 * four));
            cdgh = _mm_sha256rnds2_epu32(cdgh, abef, sum);
            abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(sum, 0x0E));
            if (four < 12) {
                const __m128i begun =
                    _mm_add_epi32(_mm_sha256msg1_epu32(oldest, second), _mm_alignr_epi8(last, third, 4));
                oldest = _mm_sha256msg2_epu32(begun, last);
            }
        }
        abef = _mm_add_epi32(abef, abef_before);
        cdgh = _mm_add_epi32(cdgh, cdgh_before);
    }
    const __m128i feba = _mm_shuffle_epi32(abef, 0x1B), dchg = _mm_shuffle_epi32(cdgh, 0xB1);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(state), _mm_blend_epi16(feba, dchg, 0xF0));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(state + 4), _mm_alignr_epi8(dchg, feba, 8));
}
#endif

}  // namespace

bool sha256_hardware() {
#if KVSWEEP_X86
    static const bool has = [] {  // GCC 12 does not know the name of this one
        unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
        return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0 && (ebx >> 29 & 1) != 0 &&
               __builtin_cpu_supports("sse4.1") && __builtin_cpu_supports("ssse3");
    }();
    return has;
#else
    return false;
#endif
}

void Sha256::blocks(const std::uint8_t* data, std::size_t count) {
#if KVSWEEP_X86
    if (hardware_) {
        return by_instructions(state_.data(), data, count);
    }
#endif
    plainly(state_.data(), data, count);
}

void Sha256::update(const void* from, std::size_t bytes) {
    const auto* data = static_cast<const std::uint8_t*>(from);
    const std::size_t begun = bytes_ % block_bytes;
    bytes_ += bytes;
    if (begun > 0) {
        const std::size_t taken = std::min(bytes, block_bytes - begun);
        std::memcpy(kept_.data() + begun, data, taken);
        data += taken;
        bytes -= taken;
        if (begun + taken < block_bytes) {
            return;
        }
        blocks(kept_.data(), 1);
    }
    blocks(data, bytes / block_bytes);
    std::memcpy(kept_.data(), data + bytes / block_bytes * block_bytes, bytes % block_bytes);
}

std::array<std::uint8_t, 32> Sha256::digest() {
    const std::uint64_t bits = 8 * bytes_;
    std::size_t begun = bytes_ % block_bytes;
    kept_[begun++] = 0x80;
    if (begun > block_bytes - 8) {
        std::memset(kept_.data() + begun, 0, block_bytes - begun);
        blocks(kept_.data(), 1);
        begun = 0;
    }
    std::memset(kept_.data() + begun, 0, block_bytes - 8 - begun);
    to_big_endian(kept_.data() + 56, static_cast<std::uint32_t>(bits >> 32));
    to_big_endian(kept_.data() + 60, static_cast<std::uint32_t>(bits));
    blocks(kept_.data(), 1);
    std::array<std::uint8_t, 32> made{};
    for (std::size_t at = 0; at < 8; ++at) {
        to_big_endian(made.data() + 4 * at, state_[at]);
    }
    return made;
}

}  // namespace kvsweep::ledger
