// Tiles by AVX2: eight pairs at a time.
#include "vnni.hpp"

#if KVSWEEP_X86

namespace kvsweep {
namespace {

template <bool stream>
AVX2 BODY void put256(Word* to, __m256i half) {
    if constexpr (stream) {
        _mm256_stream_si256(reinterpret_cast<__m256i*>(to), half);
    } else {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), half);
    }
}

AVX2 BODY __m256i get256(const Word* from) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)); }

template <bool stream, bool near>
AVX2 BODY void transpose256(const Word* from, std::int64_t from_step, Word* to, std::int64_t to_step,
                            const Word* ahead) {
    __m256i a[8], b[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
        a[i] = get256(from + i * from_step);
    }
    ask<near>(ahead, 4);
#pragma GCC unroll 4
    for (int i = 0; i < 8; i += 2) {
        b[i] = _mm256_unpacklo_epi32(a[i], a[i + 1]);
        b[i + 1] = _mm256_unpackhi_epi32(a[i], a[i + 1]);
    }
#pragma GCC unroll 2
    for (int i = 0; i < 8; i += 4) {
        a[i] = _mm256_unpacklo_epi64(b[i], b[i + 2]);
        a[i + 1] = _mm256_unpackhi_epi64(b[i], b[i + 2]);
        a[i + 2] = _mm256_unpacklo_epi64(b[i + 1], b[i + 3]);
        a[i + 3] = _mm256_unpackhi_epi64(b[i + 1], b[i + 3]);
    }
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) {
        put256<stream>(to + c * to_step, _mm256_permute2x128_si256(a[c], a[4 + c], 0x20));
        put256<stream>(to + (4 + c) * to_step, _mm256_permute2x128_si256(a[c], a[4 + c], 0x31));
    }
}

// Both halves of a line one after the other: pairs (t, d .. d+7) and (t, d+8 .. d+15) to the rows of 16 pairs.
template <bool stream, bool near>
AVX2 void unpack_avx2(const Head& head) {
    if (head.parts & keys) {
        for (std::int64_t t = 0; t < head.tokens; t += 8) {
            for (std::int64_t d = 0; d < head.dims; d += 16) {
                const Word* tile = head.k_tile + t / 16 * 16 * head.dims + d * 16 + t % 16 * 2;
                transpose256<stream, near>(tile, 32, head.k + t * head.row + d, head.row,
                                           head.after_k + t * head.dims + d * 8);
            }
        }
    }
    if (head.parts & values) {
        const __m256i low_words = _mm256_set1_epi32(0xffff);
        for (std::int64_t t = 0; t < head.tokens; t += 2) {
            for (std::int64_t d = 0; d < head.dims; d += 16) {
                const Word* pairs = head.v_tile + d * head.tokens + t * 16;
                const __m256i low = get256(pairs), high = get256(pairs + 16);
                ask<near>(head.after_v + t * head.dims + 2 * d, 1);
                const __m256i even =
                    _mm256_packus_epi32(_mm256_and_si256(low, low_words), _mm256_and_si256(high, low_words));
                const __m256i odd = _mm256_packus_epi32(_mm256_srli_epi32(low, 16), _mm256_srli_epi32(high, 16));
                put256<stream>(head.v + t * head.row + d, _mm256_permute4x64_epi64(even, 0xd8));
                put256<stream>(head.v + (t + 1) * head.row + d, _mm256_permute4x64_epi64(odd, 0xd8));
            }
        }
    }
}

template <bool stream, bool near>
AVX2 void pack_avx2(const Head& head) {
    if (head.parts & keys) {
        for (std::int64_t t = 0; t < head.tokens; t += 8) {
            for (std::int64_t d = 0; d < head.dims; d += 16) {
                Word* tile = head.k_tile + t / 16 * 16 * head.dims + d * 16 + t % 16 * 2;
                transpose256<stream, near>(head.k + t * head.row + d, head.row, tile, 32,
                                           head.after_k + t * head.dims + d * 8);
            }
        }
    }
    if (head.parts & values) {
        for (std::int64_t d = 0; d < head.dims; d += 16) {
            for (std::int64_t t = 0; t < head.tokens; t += 2) {
                const __m256i one = get256(head.v + t * head.row + d);
                const __m256i next = get256(head.v + (t + 1) * head.row + d);
                ask<near>(head.after_v + d * head.tokens + t * 16, 1);
                const __m256i low = _mm256_unpacklo_epi16(one, next), high = _mm256_unpackhi_epi16(one, next);
                Word* pairs = head.v_tile + d * head.tokens + t * 16;
                put256<stream>(pairs, _mm256_permute2x128_si256(low, high, 0x20));
                put256<stream>(pairs + 16, _mm256_permute2x128_si256(low, high, 0x31));
            }
        }
    }
}

}  // namespace

Choice vnni_avx2(bool stream, bool near) {
    return stream ? near ? Choice{pack_avx2<true, true>, unpack_avx2<true, true>}
                         : Choice{pack_avx2<true, false>, unpack_avx2<true, false>}
           : near ? Choice{pack_avx2<false, true>, unpack_avx2<false, true>}
                  : Choice{pack_avx2<false, false>, unpack_avx2<false, false>};
}

}  // namespace kvsweep

#endif
