#include <algorithm>
#include <limits>

#include "target.hpp"
#include "topk.hpp"

namespace kvsweep {
namespace {

constexpr std::uint32_t kExponent = 0x7f800000u;  // all ones: infinite or not a number

BODY bool reach_body(const float* scores, std::int64_t n, float bound, std::uint64_t* words) {
    std::uint32_t largest = 0;
    for (std::int64_t at = 0; at < n; at += 64) {
        std::uint64_t bits = 0;
        const std::int64_t stop = std::min<std::int64_t>(n - at, 64);
        for (std::int64_t one = 0; one < stop; ++one) {
            largest = std::max(largest, std::bit_cast<std::uint32_t>(scores[at + one]) & 0x7fffffffu);
            bits |= std::uint64_t{scores[at + one] >= bound} << one;
        }
        words[at / 64] = bits;
    }
    return largest < kExponent;
}

BODY void keys_body(const float* scores, const std::int32_t* ids, std::int64_t count, std::uint32_t* keys) {
    for (std::int64_t at = 0; at < count; ++at) {
        keys[at] = key_of(scores[ids[at]]);
    }
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

bool reach_scalar(const float* s, std::int64_t n, float b, std::uint64_t* w) { return reach_body(s, n, b, w); }
void keys_scalar(const float* s, const std::int32_t* i, std::int64_t n, std::uint32_t* k) { keys_body(s, i, n, k); }
std::int64_t count_scalar(const std::uint32_t* k, std::int64_t n, std::uint32_t b) { return count_body(k, n, b); }
void keep_scalar(std::uint32_t* k, std::int32_t* i, std::int64_t n, std::uint32_t b) { keep_body(k, i, n, b); }
void range_scalar(const std::uint32_t* k, std::int64_t n, std::uint32_t* l, std::uint32_t* m) {
    range_body(k, n, l, m);
}

#if KVSWEEP_X86

AVX2 std::int64_t count_avx2(const std::uint32_t* k, std::int64_t n, std::uint32_t b) { return count_body(k, n, b); }
AVX2 void keys_avx2(const float* s, const std::int32_t* i, std::int64_t n, std::uint32_t* k) { keys_body(s, i, n, k); }
AVX512 void keys_avx512(const float* s, const std::int32_t* i, std::int64_t n, std::uint32_t* k) {
    keys_body(s, i, n, k);
}
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

AVX2 bool reach_avx2(const float* scores, std::int64_t n, float bound, std::uint64_t* words) {
    const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
    const __m256 least = _mm256_set1_ps(bound);
    __m256i largest = _mm256_setzero_si256();
    const std::int64_t whole = n / 64 * 64;
    for (std::int64_t at = 0; at < whole; at += 64) {
        std::uint64_t bits = 0;
        for (int part = 0; part < 8; ++part) {
            const __m256 eight = _mm256_loadu_ps(scores + at + 8 * part);
            largest = _mm256_max_epi32(largest, _mm256_and_si256(_mm256_castps_si256(eight), magnitude));
            const int reached = _mm256_movemask_ps(_mm256_cmp_ps(eight, least, _CMP_GE_OQ));
            bits |= static_cast<std::uint64_t>(reached) << (8 * part);
        }
        words[at / 64] = bits;
    }
    alignas(32) std::uint32_t lanes[8];
    _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), largest);
    const bool finite = *std::max_element(lanes, lanes + 8) < kExponent;
    return reach_body(scores + whole, n - whole, bound, words + whole / 64) && finite;
}

AVX512 bool reach_avx512(const float* scores, std::int64_t n, float bound, std::uint64_t* words) {
    const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
    const __m512 least = _mm512_set1_ps(bound);
    __m512i largest[4] = {};
    for (std::int64_t at = 0; at < n; at += 64) {
        const std::int64_t left = n - at;
        const std::uint64_t there = left >= 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << left) - 1;
        std::uint64_t bits = 0;
#pragma GCC unroll 4
        for (int part = 0; part < 4; ++part) {
            const auto some = static_cast<__mmask16>(there >> (16 * part));
            const __m512 sixteen = _mm512_maskz_loadu_ps(some, scores + at + 16 * part);
            const __m512i bare = _mm512_and_si512(_mm512_castps_si512(sixteen), magnitude);
            largest[part] = _mm512_max_epu32(largest[part], bare);
            const __mmask16 reached = _mm512_mask_cmp_ps_mask(some, sixteen, least, _CMP_GE_OQ);
            bits |= static_cast<std::uint64_t>(reached) << (16 * part);
        }
        words[at / 64] = bits;
    }
    const __m512i low = _mm512_max_epu32(largest[0], largest[1]), high = _mm512_max_epu32(largest[2], largest[3]);
    return _mm512_reduce_max_epu32(_mm512_max_epu32(low, high)) < kExponent;
}

#endif

}  // namespace

const RankOps& rank_ops(Isa isa) {
#if KVSWEEP_X86
    static constexpr RankOps avx512{reach_avx512, keys_avx512, count_avx512, keep_avx512, range_avx512};
    static constexpr RankOps avx2{reach_avx2, keys_avx2, count_avx2, keep_avx2, range_avx2};
    if (isa == Isa::avx512) {
        return avx512;
    }
    if (isa == Isa::avx2) {
        return avx2;
    }
#else
    (void)isa;
#endif
    static constexpr RankOps scalar{reach_scalar, keys_scalar, count_scalar, keep_scalar, range_scalar};
    return scalar;
}

}  // namespace kvsweep
