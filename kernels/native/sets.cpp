#include "sets.hpp"

#include <bit>

#include "target.hpp"

namespace kvsweep {
namespace {

BODY std::int64_t count_body(const std::uint64_t* words, std::int64_t count) {
    std::int64_t set = 0;
    for (std::int64_t word = 0; word < count; ++word) {
        set += std::popcount(words[word]);
    }
    return set;
}

// Every id is written, and the place moves on past those that are kept: `room` is for the last one that is not.
BODY std::int64_t absent_body(const std::int32_t* from, std::int64_t count, const std::uint64_t* words,
                              std::int32_t* ids, std::int64_t room) {
    std::int64_t kept = 0;
    for (std::int64_t at = 0; at < count; ++at) {
        if (kept < room) {
            ids[kept] = from[at];
        }
        kept += !has_bit(words, from[at]);
    }
    return kept;
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

std::int64_t count_scalar(const std::uint64_t* w, std::int64_t n) { return count_body(w, n); }
std::int64_t absent_scalar(const std::int32_t* from, std::int64_t n, const std::uint64_t* w, std::int32_t* ids,
                           std::int64_t room) {
    return absent_body(from, n, w, ids, room);
}
std::int64_t emit_scalar(const std::uint64_t* w, std::int64_t n, std::int32_t* ids, std::int64_t room) {
    return emit_body(w, n, ids, room);
}

#if KVSWEEP_X86

AVX2 std::int64_t count_avx2(const std::uint64_t* w, std::int64_t n) { return count_body(w, n); }
AVX2 std::int64_t absent_avx2(const std::int32_t* from, std::int64_t n, const std::uint64_t* w, std::int32_t* ids,
                              std::int64_t room) {
    return absent_body(from, n, w, ids, room);
}

AVX2 std::int64_t emit_avx2(const std::uint64_t* w, std::int64_t n, std::int32_t* ids, std::int64_t room) {
    return emit_body(w, n, ids, room);
}

AVX512 std::int64_t absent_avx512(const std::int32_t* from, std::int64_t count, const std::uint64_t* words,
                                  std::int32_t* ids, std::int64_t room) {
    const __m512i one = _mm512_set1_epi32(1), place = _mm512_set1_epi32(31);
    std::int64_t kept = 0;
    for (std::int64_t at = 0; at < count; at += 16) {
        const __mmask16 there = at + 16 <= count ? 0xffff : static_cast<__mmask16>((1u << (count - at)) - 1);
        const __m512i some = _mm512_maskz_loadu_epi32(there, from + at);
        const __m512i half_words =
            _mm512_mask_i32gather_epi32(_mm512_setzero_si512(), there, _mm512_srli_epi32(some, 5), words, 4);
        const __m512i bit = _mm512_sllv_epi32(one, _mm512_and_si512(some, place));
        const __mmask16 absent = _mm512_mask_testn_epi32_mask(there, half_words, bit);
        const int set = std::popcount(static_cast<unsigned>(absent));
        const __m512i packed = _mm512_maskz_compress_epi32(absent, some);
        if (kept + 16 <= room) {
            _mm512_storeu_si512(ids + kept, packed);
        } else {
            _mm512_mask_storeu_epi32(ids + kept, static_cast<__mmask16>((1u << set) - 1), packed);
        }
        kept += set;
    }
    return kept;
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
    static constexpr SetOps avx512{count_avx2, emit_avx512, absent_avx512};
    static constexpr SetOps avx2{count_avx2, emit_avx2, absent_avx2};
    if (isa == Isa::avx512) {
        return avx512;
    }
    if (isa == Isa::avx2) {
        return avx2;
    }
#else
    (void)isa;
#endif
    static constexpr SetOps scalar{count_scalar, emit_scalar, absent_scalar};
    return scalar;
}

}  // namespace kvsweep
