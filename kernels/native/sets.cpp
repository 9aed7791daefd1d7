#include "sets.hpp"

#include <bit>
#include <cstring>

#include "target.hpp"

namespace kvsweep {
namespace {

BODY std::int64_t harvest_body(std::uint8_t* marks, std::int64_t count, std::uint64_t* words) {
    std::int64_t set = 0;
    for (std::int64_t word = 0; word < count; ++word) {
        std::uint64_t bits = 0;
        for (int eight = 0; eight < 8; ++eight) {
            std::uint64_t bytes = 0;
            std::memcpy(&bytes, marks + 64 * word + 8 * eight, 8);
            bits |= (bytes * 0x0102040810204080ULL >> 56) << 8 * eight;  // one mark a byte becomes one bit a mark
        }
        std::memset(marks + 64 * word, 0, 64);
        words[word] = bits;
        set += std::popcount(bits);
    }
    return set;
}

BODY std::int64_t subtract_body(std::uint64_t* words, const std::uint64_t* without, std::int64_t count) {
    std::int64_t set = 0;
    for (std::int64_t word = 0; word < count; ++word) {
        words[word] &= ~without[word];
        set += std::popcount(words[word]);
    }
    return set;
}

BODY std::int64_t emit_body(const std::uint64_t* words, std::int64_t count, std::int32_t* ids, std::int64_t) {
    std::int32_t* next = ids;
    for (std::int64_t word = 0; word < count; ++word) {
        for (std::uint64_t bits = words[word]; bits; bits &= bits - 1) {
            *next++ = static_cast<std::int32_t>(64 * word + std::countr_zero(bits));
        }
    }
    return next - ids;
}

std::int64_t harvest_scalar(std::uint8_t* m, std::int64_t n, std::uint64_t* w) { return harvest_body(m, n, w); }
std::int64_t subtract_scalar(std::uint64_t* w, const std::uint64_t* o, std::int64_t n) { return subtract_body(w, o, n); }
std::int64_t emit_scalar(const std::uint64_t* w, std::int64_t n, std::int32_t* ids, std::int64_t room) {
    return emit_body(w, n, ids, room);
}

#if KVSWEEP_X86

AVX2 std::int64_t harvest_avx2(std::uint8_t* marks, std::int64_t count, std::uint64_t* words) {
    std::int64_t set = 0;
    for (std::int64_t word = 0; word < count; ++word) {
        auto* halves = reinterpret_cast<__m256i*>(marks + 64 * word);
        const auto bits_of = [](__m256i half) __attribute__((target("avx2"))) {
            return static_cast<std::uint32_t>(_mm256_movemask_epi8(_mm256_slli_epi16(half, 7)));
        };
        const std::uint64_t bits = bits_of(_mm256_loadu_si256(halves)) |
                                   std::uint64_t{bits_of(_mm256_loadu_si256(halves + 1))} << 32;
        _mm256_storeu_si256(halves, _mm256_setzero_si256());
        _mm256_storeu_si256(halves + 1, _mm256_setzero_si256());
        words[word] = bits;
        set += std::popcount(bits);
    }
    return set;
}

AVX2 std::int64_t subtract_avx2(std::uint64_t* w, const std::uint64_t* o, std::int64_t n) {
    return subtract_body(w, o, n);
}

AVX2 std::int64_t emit_avx2(const std::uint64_t* w, std::int64_t n, std::int32_t* ids, std::int64_t room) {
    return emit_body(w, n, ids, room);
}

AVX512 std::int64_t harvest_avx512(std::uint8_t* marks, std::int64_t count, std::uint64_t* words) {
    std::int64_t set = 0;
    for (std::int64_t word = 0; word < count; ++word) {
        const __m512i line = _mm512_loadu_si512(marks + 64 * word);
        const std::uint64_t bits = _cvtmask64_u64(_mm512_test_epi8_mask(line, line));
        _mm512_storeu_si512(marks + 64 * word, _mm512_setzero_si512());
        words[word] = bits;
        set += std::popcount(bits);
    }
    return set;
}

AVX512 std::int64_t subtract_avx512(std::uint64_t* words, const std::uint64_t* without, std::int64_t count) {
    std::int64_t set = 0;
    for (std::int64_t word = 0; word < count; ++word) {
        const std::uint64_t left = words[word] & ~without[word];
        words[word] = left;
        set += std::popcount(left);
    }
    return set;
}

AVX512 std::int64_t emit_avx512(const std::uint64_t* words, std::int64_t count, std::int32_t* ids, std::int64_t room) {
    alignas(64) std::uint8_t numbers[64];
    for (int at = 0; at < 64; ++at) {
        numbers[at] = static_cast<std::uint8_t>(at);
    }
    const __m512i positions = _mm512_load_si512(numbers);
    std::int64_t written = 0;
    for (std::int64_t word = 0; word < count; ++word) {
        const std::uint64_t bits = words[word];
        const int set = std::popcount(bits);
        __m512i found = _mm512_maskz_compress_epi8(_cvtu64_mask64(bits), positions);
        const __m512i base = _mm512_set1_epi32(static_cast<std::int32_t>(64 * word));
        for (int done = 0; done < set; done += 16) {
            const __m512i wide = _mm512_add_epi32(base, _mm512_cvtepu8_epi32(_mm512_castsi512_si128(found)));
            if (written + done + 16 <= room) {
                _mm512_storeu_si512(ids + written + done, wide);
            } else {
                const int left = set - done < 16 ? set - done : 16;
                _mm512_mask_storeu_epi32(ids + written + done, static_cast<__mmask16>((1u << left) - 1), wide);
            }
            found = _mm512_alignr_epi64(_mm512_setzero_si512(), found, 2);
        }
        written += set;
    }
    return written;
}

#endif

}  // namespace

const SetOps& set_ops(Isa isa) {
#if KVSWEEP_X86
    static constexpr SetOps avx512{harvest_avx512, subtract_avx512, emit_avx512};
    static constexpr SetOps avx2{harvest_avx2, subtract_avx2, emit_avx2};
    if (isa == Isa::avx512) {
        return avx512;
    }
    if (isa == Isa::avx2) {
        return avx2;
    }
#else
    (void)isa;
#endif
    static constexpr SetOps scalar{harvest_scalar, subtract_scalar, emit_scalar};
    return scalar;
}

}  // namespace kvsweep
