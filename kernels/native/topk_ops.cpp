#include <algorithm>
#include <bit>
#include <limits>

#include "target.hpp"
#include "topk.hpp"

namespace kvsweep {
namespace {

constexpr std::uint32_t kExponent = 0x7f800000u;  // all ones: infinite or not a number

BODY std::int64_t collect_body(const float* scores, std::int64_t from, std::int64_t n, float bound, std::uint32_t* keys,
                               std::int32_t* ids, std::int64_t found) {
    std::uint32_t largest = 0;
    for (std::int64_t at = from; at < n; ++at) {  // every one is written, and the place moves on past those that stay
        largest = std::max(largest, std::bit_cast<std::uint32_t>(scores[at]) & 0x7fffffffu);
        keys[found] = key_of(scores[at]);
        ids[found] = static_cast<std::int32_t>(at);
        found += scores[at] >= bound;
    }
    return largest < kExponent ? found : -1;
}

BODY std::int64_t count_body(const std::uint32_t* keys, std::int64_t count, std::uint32_t bound) {
    std::int32_t reached = 0;  // a row has fewer than 2^31 scores
    for (std::int64_t at = 0; at < count; ++at) {
        reached += keys[at] >= bound;
    }
    return reached;
}

BODY void keep_body(std::uint32_t* keys, std::int32_t* ids, std::int64_t count, std::uint32_t bound) {
    std::int64_t kept = 0;
    for (std::int64_t at = 0; at < count; ++at) {  // no branches: what is kept follows no pattern
        const std::uint32_t key = keys[at];
        keys[kept] = key;
        ids[kept] = ids[at];
        kept += key >= bound;
    }
}

BODY void range_body(const std::uint32_t* keys, std::int64_t count, std::uint32_t* least, std::uint32_t* most) {
    std::uint32_t low = std::numeric_limits<std::uint32_t>::max(), high = 0;
    for (std::int64_t at = 0; at < count; ++at) {
        low = std::min(low, keys[at]);
        high = std::max(high, keys[at]);
    }
    *least = low;
    *most = high;
}

std::int64_t collect_scalar(const float* s, std::int64_t n, float b, std::uint32_t* k, std::int32_t* i) {
    return collect_body(s, 0, n, b, k, i, 0);
}
std::int64_t count_scalar(const std::uint32_t* k, std::int64_t n, std::uint32_t b) { return count_body(k, n, b); }
void keep_scalar(std::uint32_t* k, std::int32_t* i, std::int64_t n, std::uint32_t b) { keep_body(k, i, n, b); }
void range_scalar(const std::uint32_t* k, std::int64_t n, std::uint32_t* l, std::uint32_t* m) {
    range_body(k, n, l, m);
}

#if KVSWEEP_X86

AVX2 std::int64_t count_avx2(const std::uint32_t* k, std::int64_t n, std::uint32_t b) { return count_body(k, n, b); }
AVX2 void keep_avx2(std::uint32_t* k, std::int32_t* i, std::int64_t n, std::uint32_t b) { keep_body(k, i, n, b); }
AVX2 void range_avx2(const std::uint32_t* k, std::int64_t n, std::uint32_t* l, std::uint32_t* m) {
    range_body(k, n, l, m);
}
AVX512 std::int64_t count_avx512(const std::uint32_t* k, std::int64_t n, std::uint32_t b) {
    return count_body(k, n, b);
}
AVX512 void range_avx512(const std::uint32_t* k, std::int64_t n, std::uint32_t* l, std::uint32_t* m) {
    range_body(k, n, l, m);
}

AVX512 void keep_avx512(std::uint32_t* keys, std::int32_t* ids, std::int64_t count, std::uint32_t bound) {
    const __m512i least = _mm512_set1_epi32(static_cast<int>(bound));
    std::int64_t kept = 0;
    for (std::int64_t at = 0; at < count; at += 16) {
        const __mmask16 there = at + 16 <= count ? 0xffff : static_cast<__mmask16>((1u << (count - at)) - 1);
        const __m512i key = _mm512_loadu_si512(keys + at), id = _mm512_loadu_si512(ids + at);
        const __mmask16 reached = _mm512_mask_cmpge_epu32_mask(there, key, least);
        _mm512_storeu_si512(keys + kept, _mm512_maskz_compress_epi32(reached, key));
        _mm512_storeu_si512(ids + kept, _mm512_maskz_compress_epi32(reached, id));
        kept += __builtin_popcount(reached);
    }
}

AVX2 std::int64_t collect_avx2(const float* scores, std::int64_t n, float bound, std::uint32_t* keys,
                               std::int32_t* ids) {
    const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
    const __m256 least = _mm256_set1_ps(bound);
    __m256i largest = _mm256_setzero_si256();
    std::int64_t found = 0;
    const std::int64_t whole = n / 64 * 64;
    for (std::int64_t at = 0; at < whole; at += 64) {
        std::uint64_t bits = 0;
        for (int part = 0; part < 8; ++part) {
            const __m256 eight = _mm256_loadu_ps(scores + at + 8 * part);
            largest = _mm256_max_epi32(largest, _mm256_and_si256(_mm256_castps_si256(eight), magnitude));
            const int reached = _mm256_movemask_ps(_mm256_cmp_ps(eight, least, _CMP_GE_OQ));
            bits |= static_cast<std::uint64_t>(reached) << (8 * part);
        }
        for (; bits; bits &= bits - 1) {
            const std::int64_t one = at + std::countr_zero(bits);
            keys[found] = key_of(scores[one]);
            ids[found++] = static_cast<std::int32_t>(one);
        }
    }
    alignas(32) std::uint32_t lanes[8];
    _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), largest);
    if (*std::max_element(lanes, lanes + 8) >= kExponent) {
        return -1;
    }
    return collect_body(scores, whole, n, bound, keys, ids, found);
}

AVX512 std::int64_t collect_avx512(const float* scores, std::int64_t n, float bound, std::uint32_t* keys,
                                   std::int32_t* ids) {
    const __m512i magnitude = _mm512_set1_epi32(0x7fffffff), sign = _mm512_set1_epi32(static_cast<int>(0x80000000u));
    const __m512i first = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    const __m512 least = _mm512_set1_ps(bound), zero = _mm512_setzero_ps();
    __m512i largest[4] = {};
    std::int64_t found = 0;
    for (std::int64_t at = 0; at < n; at += 64) {
        const std::int64_t left = n - at;
        const std::uint64_t there = left >= 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << left) - 1;
        __m512 some[4];
        __mmask16 reached[4];
#pragma GCC unroll 4
        for (int part = 0; part < 4; ++part) {
            const auto in_row = static_cast<__mmask16>(there >> (16 * part));
            some[part] = _mm512_maskz_loadu_ps(in_row, scores + at + 16 * part);
            largest[part] =
                _mm512_max_epu32(largest[part], _mm512_and_si512(_mm512_castps_si512(some[part]), magnitude));
            reached[part] = _mm512_mask_cmp_ps_mask(in_row, some[part], least, _CMP_GE_OQ);
        }
        if ((reached[0] | reached[1] | reached[2] | reached[3]) == 0) {
            continue;
        }
#pragma GCC unroll 4
        for (int part = 0; part < 4; ++part) {
            const __m512i bits = _mm512_castps_si512(_mm512_add_ps(some[part], zero));  // -0.0 + 0.0 is +0.0
            const __m512i key = _mm512_xor_si512(bits, _mm512_or_si512(_mm512_srai_epi32(bits, 31), sign));
            const __m512i id = _mm512_add_epi32(first, _mm512_set1_epi32(static_cast<int>(at + 16 * part)));
            _mm512_storeu_si512(keys + found, _mm512_maskz_compress_epi32(reached[part], key));
            _mm512_storeu_si512(ids + found, _mm512_maskz_compress_epi32(reached[part], id));
            found += __builtin_popcount(reached[part]);
        }
    }
    const __m512i low = _mm512_max_epu32(largest[0], largest[1]), high = _mm512_max_epu32(largest[2], largest[3]);
    return _mm512_reduce_max_epu32(_mm512_max_epu32(low, high)) < kExponent ? found : -1;
}

#endif

}  // namespace

const RankOps& rank_ops(Isa isa) {
#if KVSWEEP_X86
    static constexpr RankOps avx512{collect_avx512, count_avx512, keep_avx512, range_avx512};
    static constexpr RankOps avx2{collect_avx2, count_avx2, keep_avx2, range_avx2};
    if (isa == Isa::avx512) {
        return avx512;
    }
    if (isa == Isa::avx2) {
        return avx2;
    }
#else
    (void)isa;
#endif
    static constexpr RankOps scalar{collect_scalar, count_scalar, keep_scalar, range_scalar};
    return scalar;
}

}  // namespace kvsweep
