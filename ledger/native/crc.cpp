// Long runs are folded 64 bytes at a time by carry-less multiplication (V. Gopal et al., "Fast CRC computation for
// generic polynomials using PCLMULQDQ", Intel 2009); what is left over goes through tables, eight bytes at a time.
#include "crc.hpp"

#include <array>
#include <bit>
#include <cstring>

#if defined(__x86_64__)
#define KVSWEEP_X86 1
#include <immintrin.h>
#define CLMUL __attribute__((target("pclmul,sse4.1")))
#else
#define KVSWEEP_X86 0
#endif

namespace kvsweep::ledger {
namespace {

using Table = std::array<std::array<std::uint32_t, 256>, 8>;

constexpr Table tables() {
    Table made{};
    for (std::uint32_t byte = 0; byte < 256; ++byte) {
        std::uint32_t crc = byte;
        for (int bit = 0; bit < 8; ++bit) {
            crc = (crc >> 1) ^ (crc & 1 ? 0xEDB88320U : 0U);
        }
        made[0][byte] = crc;
    }
    for (std::uint32_t byte = 0; byte < 256; ++byte) {
        for (std::size_t step = 1; step < 8; ++step) {
            const std::uint32_t before = made[step - 1][byte];
            made[step][byte] = (before >> 8) ^ made[0][before & 0xFF];
        }
    }
    return made;
}

constexpr Table table = tables();

// `crc` and the result are inverted, as inside the algorithm.
std::uint32_t by_tables(std::uint32_t crc, const std::uint8_t* data, std::size_t size) {
    if constexpr (std::endian::native == std::endian::little) {
        for (; size >= 8; data += 8, size -= 8) {
            std::uint32_t low = 0, high = 0;
            std::memcpy(&low, data, 4);
            std::memcpy(&high, data + 4, 4);
            low ^= crc;
            crc = table[7][low & 0xFF] ^ table[6][(low >> 8) & 0xFF] ^ table[5][(low >> 16) & 0xFF] ^
                  table[4][low >> 24] ^ table[3][high & 0xFF] ^ table[2][(high >> 8) & 0xFF] ^
                  table[1][(high >> 16) & 0xFF] ^ table[0][high >> 24];
        }
    }
    for (; size > 0; ++data, --size) {
        crc = (crc >> 8) ^ table[0][(crc ^ *data) & 0xFF];
    }
    return crc;
}

#if KVSWEEP_X86
CLMUL inline __m128i load(const std::uint8_t* from) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from)); }

CLMUL inline __m128i fold(__m128i sum, __m128i by, __m128i next) {
    const __m128i low = _mm_clmulepi64_si128(sum, by, 0x00), high = _mm_clmulepi64_si128(sum, by, 0x11);
    return _mm_xor_si128(_mm_xor_si128(low, high), next);
}

// Of at least 64 bytes, a multiple of 16; inverted as above.
CLMUL std::uint32_t by_folding(std::uint32_t crc, const std::uint8_t* data, std::size_t size) {
    // Powers of x modulo the polynomial, bits reflected: for 512, 128 and 64 bits, then the reduction to 32.
    const __m128i by_512 = _mm_set_epi64x(0x01c6e41596, 0x0154442bd4);
    const __m128i by_128 = _mm_set_epi64x(0x00ccaa009e, 0x01751997d0);
    const __m128i by_64 = _mm_set_epi64x(0, 0x0163cd6124);
    const __m128i reduce = _mm_set_epi64x(0x01f7011641, 0x01db710641);
    const __m128i words = _mm_setr_epi32(~0, 0, ~0, 0);
    __m128i a = _mm_xor_si128(load(data), _mm_cvtsi32_si128(static_cast<int>(crc)));
    __m128i b = load(data + 16), c = load(data + 32), d = load(data + 48);
    for (data += 64, size -= 64; size >= 64; data += 64, size -= 64) {
        a = fold(a, by_512, load(data));
        b = fold(b, by_512, load(data + 16));
        c = fold(c, by_512, load(data + 32));
        d = fold(d, by_512, load(data + 48));
    }
    a = fold(fold(fold(a, by_128, b), by_128, c), by_128, d);
    for (; size >= 16; data += 16, size -= 16) {
        a = fold(a, by_128, load(data));
    }
    a = _mm_xor_si128(_mm_srli_si128(a, 8), _mm_clmulepi64_si128(a, by_128, 0x10));
    a = _mm_xor_si128(_mm_srli_si128(a, 4), _mm_clmulepi64_si128(_mm_and_si128(a, words), by_64, 0x00));
    __m128i rest = _mm_clmulepi64_si128(_mm_and_si128(a, words), reduce, 0x10);
    rest = _mm_clmulepi64_si128(_mm_and_si128(rest, words), reduce, 0x00);
    return static_cast<std::uint32_t>(_mm_extract_epi32(_mm_xor_si128(a, rest), 1));
}
#endif

}  // namespace

bool crc_folds() {
#if KVSWEEP_X86
    static const bool folds = __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
    return folds;
#else
    return false;
#endif
}

std::uint32_t crc32(std::uint32_t crc, const std::uint8_t* data, std::size_t size, [[maybe_unused]] bool fold) {
    crc = ~crc;
#if KVSWEEP_X86
    if (fold && size >= 64) {
        const std::size_t whole = size / 16 * 16;
        crc = by_folding(crc, data, whole);
        data += whole;
        size -= whole;
    }
#endif
    return ~by_tables(crc, data, size);
}

}  // namespace kvsweep::ledger
