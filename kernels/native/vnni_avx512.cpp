// Tiles by AVX-512: sixteen pairs at a time.
#include "vnni.hpp"

#if KVSWEEP_X86

namespace kvsweep {
namespace {

// The common head dimensions at 32 tokens are compiled apart: with the steps known, the loops unroll and twice as many
// lines are under way. fixed is the head dimension, or 0 for any shape.
template <int fixed, Order order>
BODY Head shaped(Head head) {
    if constexpr (fixed != 0) {
        head.dims = fixed;
        head.tokens = 32;
    }
    if constexpr (fixed != 0 && order == Order::heads_first) {
        head.row = fixed;
    }
    return head;
}

template <bool stream>
AVX512 BODY void put512(Word* to, __m512i line) {
    if constexpr (stream) {
        _mm512_stream_si512(reinterpret_cast<__m512i*>(to), line);
    } else {
        _mm512_storeu_si512(to, line);
    }
}

// Rows of 16 pairs to columns of 16 pairs: line i of `to` holds pair i of every line of `from`.
template <bool stream, bool near>
AVX512 BODY void transpose512(const Word* from, std::int64_t from_step, Word* to, std::int64_t to_step,
                              const Word* ahead) {
    __m512i a[16], b[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) {
        a[i] = _mm512_loadu_si512(from + i * from_step);
    }
    ask<near>(ahead, 16);
#pragma GCC unroll 8
    for (int i = 0; i < 16; i += 2) {
        b[i] = _mm512_unpacklo_epi32(a[i], a[i + 1]);
        b[i + 1] = _mm512_unpackhi_epi32(a[i], a[i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4) {
        a[i] = _mm512_unpacklo_epi64(b[i], b[i + 2]);
        a[i + 1] = _mm512_unpackhi_epi64(b[i], b[i + 2]);
        a[i + 2] = _mm512_unpacklo_epi64(b[i + 1], b[i + 3]);
        a[i + 3] = _mm512_unpackhi_epi64(b[i + 1], b[i + 3]);
    }
    // a[4g + c] holds column c (+ 4 a 128-bit lane) of rows 4g .. 4g+3.
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) {
        b[c] = _mm512_shuffle_i32x4(a[c], a[4 + c], 0x88);
        b[4 + c] = _mm512_shuffle_i32x4(a[c], a[4 + c], 0xdd);
        b[8 + c] = _mm512_shuffle_i32x4(a[8 + c], a[12 + c], 0x88);
        b[12 + c] = _mm512_shuffle_i32x4(a[8 + c], a[12 + c], 0xdd);
    }
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) {
        put512<stream>(to + c * to_step, _mm512_shuffle_i32x4(b[c], b[8 + c], 0x88));
        put512<stream>(to + (4 + c) * to_step, _mm512_shuffle_i32x4(b[4 + c], b[12 + c], 0x88));
        put512<stream>(to + (8 + c) * to_step, _mm512_shuffle_i32x4(b[c], b[8 + c], 0xdd));
        put512<stream>(to + (12 + c) * to_step, _mm512_shuffle_i32x4(b[4 + c], b[12 + c], 0xdd));
    }
}

// Word i of each pair of two lines: 0, 2, 4 … of the first, then of the second (odd: 1, 3, 5 …).
AVX512 BODY __m512i every_other(int odd) {
    alignas(64) Word at[32];
    for (int i = 0; i < 32; ++i) {
        at[i] = static_cast<Word>(2 * i + odd);
    }
    return _mm512_load_si512(at);
}

// Words of two lines in turn: first[from], second[from], first[from + 1], …
AVX512 BODY __m512i in_turn(int from) {
    alignas(64) Word at[32];
    for (int i = 0; i < 32; ++i) {
        at[i] = static_cast<Word>(from + i / 2 + i % 2 * 32);
    }
    return _mm512_load_si512(at);
}

// V of tokens t and t + 1, `lines` lines of each from dimension d on.
template <bool stream, bool near, int lines>
AVX512 BODY void unpack_values512(const Head& head, std::int64_t t, std::int64_t d) {
    const __m512i even = every_other(0), odd = every_other(1);
    const Word* pairs = head.v_tile + d * head.tokens + t * 16;
    __m512i low[lines], high[lines];
#pragma GCC unroll 4
    for (int line = 0; line < lines; ++line) {
        low[line] = _mm512_loadu_si512(pairs + 32 * line * head.tokens);
        high[line] = _mm512_loadu_si512(pairs + (32 * line + 16) * head.tokens);
    }
    ask<near>(head.after_v + t * head.dims + 2 * d, 2 * lines);
    Word* to = head.v + t * head.row + d;
#pragma GCC unroll 4
    for (int line = 0; line < lines; ++line) {
        put512<stream>(to + 32 * line, _mm512_permutex2var_epi16(low[line], even, high[line]));
    }
#pragma GCC unroll 4
    for (int line = 0; line < lines; ++line) {
        put512<stream>(to + head.row + 32 * line, _mm512_permutex2var_epi16(low[line], odd, high[line]));
    }
}

template <bool stream, bool near, int lines>
AVX512 BODY void pack_values512(const Head& head, std::int64_t t, std::int64_t d) {
    const __m512i first = in_turn(0), second = in_turn(16);
    const Word* from = head.v + t * head.row + d;
    __m512i one[lines], next[lines];
#pragma GCC unroll 4
    for (int line = 0; line < lines; ++line) {
        one[line] = _mm512_loadu_si512(from + 32 * line);
        next[line] = _mm512_loadu_si512(from + head.row + 32 * line);
    }
    ask<near>(head.after_v + t * head.dims + 2 * d, 2 * lines);
    Word* pairs = head.v_tile + d * head.tokens + t * 16;
#pragma GCC unroll 4
    for (int line = 0; line < lines; ++line) {
        put512<stream>(pairs + 32 * line * head.tokens, _mm512_permutex2var_epi16(one[line], first, next[line]));
        put512<stream>(pairs + (32 * line + 16) * head.tokens,
                       _mm512_permutex2var_epi16(one[line], second, next[line]));
    }
}

template <bool stream, bool near, int fixed, Order order>
AVX512 void unpack_avx512(const Head& given) {
    const Head head = shaped<fixed, order>(given);
    if (head.parts & keys) {
        for (std::int64_t t = 0; t < head.tokens; t += 16) {
            for (std::int64_t d = 0; d < head.dims; d += 32) {
                const Word* tile = head.k_tile + t * head.dims + d * 16;
                transpose512<stream, near>(tile, 32, head.k + t * head.row + d, head.row,
                                           head.after_k + t * head.dims + d * 16);
            }
        }
    }
    if (head.parts & values) {
        for (std::int64_t t = 0; t < head.tokens; t += 2) {
            std::int64_t d = 0;
            for (; d + 128 <= head.dims; d += 128) {
                unpack_values512<stream, near, 4>(head, t, d);
            }
            for (; d < head.dims; d += 32) {
                unpack_values512<stream, near, 1>(head, t, d);
            }
        }
    }
}

template <bool stream, bool near, int fixed, Order order>
AVX512 void pack_avx512(const Head& given) {
    const Head head = shaped<fixed, order>(given);
    if (head.parts & keys) {
        for (std::int64_t t = 0; t < head.tokens; t += 16) {
            for (std::int64_t d = 0; d < head.dims; d += 32) {
                Word* tile = head.k_tile + t * head.dims + d * 16;
                transpose512<stream, near>(head.k + t * head.row + d, head.row, tile, 32,
                                           head.after_k + t * head.dims + d * 16);
            }
        }
    }
    if (head.parts & values) {
        for (std::int64_t t = 0; t < head.tokens; t += 2) {
            std::int64_t d = 0;
            for (; d + 128 <= head.dims; d += 128) {
                pack_values512<stream, near, 4>(head, t, d);
            }
            for (; d < head.dims; d += 32) {
                pack_values512<stream, near, 1>(head, t, d);
            }
        }
    }
}

template <bool stream, bool near, int fixed>
Choice choice_avx512(Order order) {
    return order == Order::heads_first ? Choice{pack_avx512<stream, near, fixed, Order::heads_first>,
                                                unpack_avx512<stream, near, fixed, Order::heads_first>}
                                       : Choice{pack_avx512<stream, near, fixed, Order::tokens_first>,
                                                unpack_avx512<stream, near, fixed, Order::tokens_first>};
}

template <bool stream, bool near>
Choice of_shape(const Tiles& tiles) {
    switch (tiles.block_size == 32 ? tiles.head_dim : 0) {
        case 128: return choice_avx512<stream, near, 128>(tiles.order);
        case 64: return choice_avx512<stream, near, 64>(tiles.order);
        default: return choice_avx512<stream, near, 0>(tiles.order);
    }
}

}  // namespace

Choice vnni_avx512(bool stream, bool near, const Tiles& tiles) {
    return stream ? near ? of_shape<true, true>(tiles) : of_shape<true, false>(tiles)
           : near ? of_shape<false, true>(tiles)
                  : of_shape<false, false>(tiles);
}

}  // namespace kvsweep

#endif
