// Between natural rows and the order that matrix units load: pairs along d for K, pairs along t for V.
//
// K is a transpose of 16 x 16 pairs (32-bit words); V interleaves the words of two tokens. Both sides of a step are
// whole 64-byte lines, so that the result can be written past the caches where its address allows. A tile is read out
// of order, which no processor fetches ahead; so while one is rewritten that of the next head is asked for, line after
// line. V goes by whole rows: lines of one row that are written far apart in time cost a third of the bandwidth.
#include <cstring>

#include "core.hpp"
#include "parallel.hpp"
#include "target.hpp"

namespace kvsweep {
namespace {

constexpr std::int64_t kStreamFrom = 4 << 20;  // bytes of a call's result from which the caches are bypassed
constexpr std::int64_t kLeastOfThread = 1 << 20;

using Word = std::uint16_t;

// One head of one block; steps count words.
struct Head {
    Word* k;               // natural K, row t at k + t * row
    Word* v;               // natural V
    Word* k_tile;          // packed K
    Word* v_tile;          // packed V
    std::int64_t row;      // from token to token
    std::int64_t tokens;   // block size
    std::int64_t dims;     // head dimension
    int parts;
    const Word* after_k;   // the same tiles of the next head, on the side that is read
    const Word* after_v;
};

using HeadWork = void (*)(const Head& head);

void unpack_scalar(const Head& head) {
    for (std::int64_t t = 0; t < head.tokens; ++t) {
        for (std::int64_t d = 0; d < head.dims; ++d) {
            if (head.parts & keys) {
                head.k[t * head.row + d] = head.k_tile[t / 16 * 16 * head.dims + d / 2 * 32 + t % 16 * 2 + d % 2];
            }
            if (head.parts & values) {
                head.v[t * head.row + d] = head.v_tile[d / 16 * 16 * head.tokens + t / 2 * 32 + d % 16 * 2 + t % 2];
            }
        }
    }
}

void pack_scalar(const Head& head) {
    for (std::int64_t t = 0; t < head.tokens; ++t) {
        for (std::int64_t d = 0; d < head.dims; ++d) {
            if (head.parts & keys) {
                head.k_tile[t / 16 * 16 * head.dims + d / 2 * 32 + t % 16 * 2 + d % 2] = head.k[t * head.row + d];
            }
            if (head.parts & values) {
                head.v_tile[d / 16 * 16 * head.tokens + t / 2 * 32 + d % 16 * 2 + t % 2] = head.v[t * head.row + d];
            }
        }
    }
}

#if KVSWEEP_X86

// Asks for `lines` lines of a tile that is read later: `near`, into the first cache, where what is read follows on
// without gaps. Into the second one otherwise, since the processor fetches the gaps too.
template <bool near>
BODY void ask(const Word* at, int lines) {
    for (int line = 0; line < lines; ++line) {
        _mm_prefetch(at + 32 * line, near ? _MM_HINT_T0 : _MM_HINT_T1);
    }
}

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

#endif

struct Choice {
    HeadWork pack, unpack;
};

#if KVSWEEP_X86
template <bool stream, bool near, int fixed>
Choice choice_avx512(Order order) {
    return order == Order::heads_first ? Choice{pack_avx512<stream, near, fixed, Order::heads_first>,
                                                unpack_avx512<stream, near, fixed, Order::heads_first>}
                                       : Choice{pack_avx512<stream, near, fixed, Order::tokens_first>,
                                                unpack_avx512<stream, near, fixed, Order::tokens_first>};
}

template <bool stream, bool near>
Choice choice_of(Isa isa, const Tiles& tiles) {
    if (isa == Isa::avx2) {
        return {pack_avx2<stream, near>, unpack_avx2<stream, near>};
    }
    switch (tiles.block_size == 32 ? tiles.head_dim : 0) {
        case 128: return choice_avx512<stream, near, 128>(tiles.order);
        case 64: return choice_avx512<stream, near, 64>(tiles.order);
        default: return choice_avx512<stream, near, 0>(tiles.order);
    }
}
#endif

// Does a call read all of its input? One part out of blocks that hold both leaves gaps.
bool without_gaps(const Tiles& tiles) { return tiles.parts == (keys | values) || !tiles.together; }

Choice choose(Isa isa, bool stream, const Tiles& tiles) {
#if KVSWEEP_X86
    if (isa != Isa::scalar) {
        const bool near = without_gaps(tiles);
        return stream ? near ? choice_of<true, true>(isa, tiles) : choice_of<true, false>(isa, tiles)
               : near ? choice_of<false, true>(isa, tiles)
                      : choice_of<false, false>(isa, tiles);
    }
#else
    (void)isa, (void)stream, (void)tiles;
#endif
    return {pack_scalar, unpack_scalar};
}

void each_head(Word* natural, Word* packed, const Tiles& tiles, Run run, HeadWork work, bool reads_packed) {
    const std::int64_t tile = tiles.block_size * tiles.head_dim;
    const std::int64_t part = tiles.kv_heads * tile;  // all K, or all V, of a block
    const std::int64_t halves = tiles.parts == (keys | values) || tiles.together ? 2 : 1;
    const bool heads_first = tiles.order == Order::heads_first;
    const std::int64_t row = heads_first ? tiles.head_dim : tiles.kv_heads * tiles.head_dim;
    const std::int64_t head_step = heads_first ? tile : tiles.head_dim;
    const std::int64_t least = kLeastOfThread / (2 * part * std::int64_t{sizeof(Word)}) + 1;
    // Rows of other heads lie between the rows of one, tokens first: then there is no tile to ask for.
    const bool whole = reads_packed || heads_first;
    split(tiles.blocks, run.threads, least, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t block = begin; block < end; ++block) {
            for (std::int64_t number = 0; number < tiles.kv_heads; ++number) {
                Head head;
                head.k = natural + block * halves * part + number * head_step;
                head.v = head.k + (halves - 1) * part;
                head.k_tile = packed + block * halves * part + number * halves * tile;
                head.v_tile = head.k_tile + (halves - 1) * tile;
                head.row = row;
                head.tokens = tiles.block_size;
                head.dims = tiles.head_dim;
                head.parts = tiles.parts;
                const bool last = number + 1 == tiles.kv_heads;
                const std::int64_t step = reads_packed ? halves * tile
                                          : last       ? (halves - 1) * part + tile
                                                       : tile;
                const std::int64_t ahead = !whole || (last && block + 1 == end) ? 0 : step;
                const Word* k = reads_packed ? head.k_tile : head.k;
                const Word* v = reads_packed ? head.v_tile : head.v;
                head.after_k = k + ahead;
                head.after_v = v + ahead;
                work(head);
            }
        }
#if KVSWEEP_X86
        _mm_sfence();  // stores past the caches are seen by nobody in order until this
#endif
    });
}

// Every line that is written is a multiple of 64 bytes from the start, so the start alone has to be aligned.
bool streams(const Word* to, const Tiles& tiles) {
    const std::int64_t bytes = tiles.blocks * tiles.kv_heads * tiles.block_size * tiles.head_dim * 4;  // K and V
    return bytes >= kStreamFrom && reinterpret_cast<std::uintptr_t>(to) % 64 == 0;
}

}  // namespace

void unpack_vnni(const std::uint16_t* packed, std::uint16_t* natural, const Tiles& tiles, Run run) {
    const HeadWork work = choose(run.isa, streams(natural, tiles), tiles).unpack;
    each_head(natural, const_cast<Word*>(packed), tiles, run, work, true);
}

void pack_vnni(const std::uint16_t* natural, std::uint16_t* packed, const Tiles& tiles, Run run) {
    const HeadWork work = choose(run.isa, streams(packed, tiles), tiles).pack;
    each_head(const_cast<Word*>(natural), packed, tiles, run, work, false);
}

}  // namespace kvsweep
