// Between natural rows and the order that matrix units load: pairs along d for K, pairs along t for V.
//
// K is a transpose of 16 x 16 pairs (32-bit words); V interleaves the words of two tokens. Both sides of a step are
// whole 64-byte lines, so that the result can be written past the caches where its address allows. A tile is read out
// of order, which no processor fetches ahead; so while one is rewritten that of the next head is asked for, line after
// line. V goes by whole rows: lines of one row that are written far apart in time cost a third of the bandwidth.
#include "vnni.hpp"
#include "parallel.hpp"

namespace kvsweep {
namespace {

constexpr std::int64_t kStreamFrom = 4 << 20;  // bytes of a call's result from which the caches are bypassed
constexpr std::int64_t kLeastOfThread = 1 << 20;

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

// Does a call read all of its input? One part out of blocks that hold both leaves gaps.
bool without_gaps(const Tiles& tiles) { return tiles.parts == (keys | values) || !tiles.together; }

Choice choose(Isa isa, bool stream, const Tiles& tiles) {
#if KVSWEEP_X86
    if (isa == Isa::avx512) {
        return vnni_avx512(stream, without_gaps(tiles), tiles);
    }
    if (isa == Isa::avx2) {
        return vnni_avx2(stream, without_gaps(tiles));
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
                const std::int64_t step = reads_packed ? halves * tile : last ? (halves - 1) * part + tile : tile;
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
