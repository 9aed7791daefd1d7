// One head of one block, and what rewrites it: one pair of functions an instruction set.
#pragma once

#include <cstdint>

#include "core.hpp"
#include "target.hpp"

namespace kvsweep {

using Word = std::uint16_t;

// One head of one block; steps count words.
struct Head {
    Word* k;              // natural K, row t at k + t * row
    Word* v;              // natural V
    Word* k_tile;         // packed K
    Word* v_tile;         // packed V
    std::int64_t row;     // from token to token
    std::int64_t tokens;  // block size
    std::int64_t dims;    // head dimension
    int parts;
    const Word* after_k;  // the same tiles of the next head, on the side that is read
    const Word* after_v;
};

using HeadWork = void (*)(const Head& head);

struct Choice {
    HeadWork pack, unpack;
};

#if KVSWEEP_X86

// Asks for `lines` lines of a tile that is read later: `near`, into the first cache, where what is read follows on
// without gaps. Into the second one otherwise, since the processor fetches the gaps too.
template <bool near>
BODY void ask(const Word* at, int lines) {
    for (int line = 0; line < lines; ++line) {
        _mm_prefetch(at + 32 * line, near ? _MM_HINT_T0 : _MM_HINT_T1);
    }
}

// stream: results are written past the caches; near: see ask.
Choice vnni_avx2(bool stream, bool near);
Choice vnni_avx512(bool stream, bool near, const Tiles& tiles);

#endif

}  // namespace kvsweep
