#include <algorithm>
#include <limits>

#include "target.hpp"
#include "topk.hpp"

namespace kvsweep {
namespace {

constexpr std::uint32_t kExponent = 0x7f800000u;  // all ones: infinite or not a number

BODY bool survivors_body(const float* scores, std::int64_t n, float bound, std::uint32_t* keys, std::int32_t* ids,
                         std::int64_t* found) {
    std::uint32_t largest = 0;
    std::int64_t kept = 0;
    for (std::int64_t at = 0; at < n; ++at) {
        largest = std::max(largest, std::bit_cast<std::uint32_t>(scores[at]) & 0x7fffffffu);
        keys[kept] = key_of(scores[at]);
        ids[kept] = static_cast<std::int32_t>(at);
        kept += scores[at] >= bound;
    }
    *found = kept;
    return largest < kExponent;
}

BODY std::int64_t count_body(const std::uint32_t* keys, std::int64_t count, std::uint32_t bound) {
    std::int32_t reached = 0;  // a row has fewer than 2^31 scores
    for (std::int64_t at = 0; at < count; ++at) {
        reached += keys[at] >= bound;
    }
    return reached;
}

BODY std::int64_t keep_body(std::uint32_t* keys, std::int32_t* ids, std::int64_t count, std::uint32_t bound) {
    std::int64_t kept = 0;
    for (std::int64_t at = 0; at < count; ++at) {
        const std::uint32_t key = keys[at];
        keys[kept] = key;
        ids[kept] = ids[at];
        kept += key >= bound;
    }
    return kept;
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

bool survivors_scalar(const float* s, std::int64_t n, float b, std::uint32_t* k, std::int32_t* i, std::int64_t* f) {
    return survivors_body(s, n, b, k, i, f);
}
std::int64_t count_scalar(const std::uint32_t* k, std::int64_t n, std::uint32_t b) { return count_body(k, n, b); }
std::int64_t keep_scalar(std::uint32_t* k, std::int32_t* i, std::int64_t n, std::uint32_t b) {
    return keep_body(k, i, n, b);
}
void range_scalar(const std::uint32_t* k, std::int64_t n, std::uint32_t* l, std::uint32_t* m) { range_body(k, n, l, m); }

#if KVSWEEP_X86

AVX2 std::int64_t count_avx2(const std::uint32_t* k, std::int64_t n, std::uint32_t b) { return count_body(k, n, b); }
AVX2 std::int64_t keep_avx2(std::uint32_t* k, std::int32_t* i, std::int64_t n, std::uint32_t b) {
    return keep_body(k, i, n, b);
}
AVX2 void range_avx2(const std::uint32_t* k, std::int64_t n, std::uint32_t* l, std::uint32_t* m) {
    range_body(k, n, l, m);
}
AVX512 std::int64_t count_avx512(const std::uint32_t* k, std::int64_t n, std::uint32_t b) { return count_body(k, n, b); }
AVX512 void range_avx512(const std::uint32_t* k, std::int64_t n, std::uint32_t* l, std::uint32_t* m) {
    range_body(k, n, l, m);
}

AVX2 bool survivors_avx2(const float* scores, std::int64_t n, float bound, std::uint32_t* keys, std::int32_t* ids,
                         std::int64_t* found) {
    const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
    const __m256 least = _mm256_set1_ps(bound);
    __m256i largest = _mm256_setzero_si256();
    std::int64_t kept = 0, at = 0;
    for (; at + 8 <= n; at += 8) {
        const __m256 eight = _mm256_loadu_ps(scores + at);
        largest = _mm256_max_epi32(largest, _mm256_and_si256(_mm256_castps_si256(eight), magnitude));
        auto reached = static_cast<unsigned>(_mm256_movemask_ps(_mm256_cmp_ps(eight, least, _CMP_GE_OQ)));
        for (; reached; reached &= reached - 1) {
            const std::int64_t one = at + std::countr_zero(reached);
            keys[kept] = key_of(scores[one]);
            ids[kept++] = static_cast<std::int32_t>(one);
        }
    }
    alignas(32) std::uint32_t lanes[8];
    _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), largest);
    const bool finite = *std::max_element(lanes, lanes + 8) < kExponent;
    std::int64_t rest = 0;
    const bool rest_finite = survivors_body(scores + at, n - at, bound, keys + kept, ids + kept, &rest);
    for (std::int64_t one = kept; one < kept + rest; ++one) {
        ids[one] += static_cast<std::int32_t>(at);
    }
    *found = kept + rest;
    return finite && rest_finite;
}

AVX512 bool survivors_avx512(const float* scores, std::int64_t n, float bound, std::uint32_t* keys, std::int32_t* ids,
                             std::int64_t* found) {
    const __m512i magnitude = _mm512_set1_epi32(0x7fffffff), sign = _mm512_set1_epi32(static_cast<int>(0x80000000u));
    const __m512 least = _mm512_set1_ps(bound), zero = _mm512_setzero_ps();
    const __m512i step = _mm512_set1_epi32(16);
    __m512i largest = _mm512_setzero_si512();
    __m512i number = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    std::int64_t kept = 0;
    for (std::int64_t at = 0; at < n; at += 16) {
        const __mmask16 there = at + 16 <= n ? 0xffff : static_cast<__mmask16>((1u << (n - at)) - 1);
        const __m512 sixteen = _mm512_maskz_loadu_ps(there, scores + at);
        largest = _mm512_max_epu32(largest, _mm512_and_si512(_mm512_castps_si512(sixteen), magnitude));
        const __mmask16 reached = _mm512_mask_cmp_ps_mask(there, sixteen, least, _CMP_GE_OQ);
        const __m512i bits = _mm512_castps_si512(_mm512_add_ps(sixteen, zero));
        const __m512i key = _mm512_xor_si512(bits, _mm512_or_si512(_mm512_srai_epi32(bits, 31), sign));
        _mm512_storeu_si512(keys + kept, _mm512_maskz_compress_epi32(reached, key));
        _mm512_storeu_si512(ids + kept, _mm512_maskz_compress_epi32(reached, number));
        kept += __builtin_popcount(reached);
        number = _mm512_add_epi32(number, step);
    }
    *found = kept;
    return _mm512_reduce_max_epu32(largest) < kExponent;
}

AVX512 std::int64_t keep_avx512(std::uint32_t* keys, std::int32_t* ids, std::int64_t count, std::uint32_t bound) {
    const __m512i least = _mm512_set1_epi32(static_cast<int>(bound));
    std::int64_t kept = 0;
    for (std::int64_t at = 0; at < count; at += 16) {  // both have 16 more than count: whole vectors may be read
        const __mmask16 there = at + 16 <= count ? 0xffff : static_cast<__mmask16>((1u << (count - at)) - 1);
        const __m512i key = _mm512_loadu_si512(keys + at), id = _mm512_loadu_si512(ids + at);
        const __mmask16 reached = _mm512_mask_cmpge_epu32_mask(there, key, least);
        _mm512_storeu_si512(keys + kept, _mm512_maskz_compress_epi32(reached, key));
        _mm512_storeu_si512(ids + kept, _mm512_maskz_compress_epi32(reached, id));
        kept += __builtin_popcount(reached);
    }
    return kept;
}

#endif

}  // namespace

const RankOps& rank_ops(Isa isa) {
#if KVSWEEP_X86
    static constexpr RankOps avx512{survivors_avx512, count_avx512, keep_avx512, range_avx512};
    static constexpr RankOps avx2{survivors_avx2, count_avx2, keep_avx2, range_avx2};
    if (isa == Isa::avx512) {
        return avx512;
    }
    if (isa == Isa::avx2) {
        return avx2;
    }
#else
    (void)isa;
#endif
    static constexpr RankOps scalar{survivors_scalar, count_scalar, keep_scalar, range_scalar};
    return scalar;
}

}  // namespace kvsweep
