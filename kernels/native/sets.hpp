// Sets of ids as words, a bit an id.
#pragma once

#include <bit>

#include "core.hpp"

namespace kvsweep {

// Calls change(id) for each id, four places of the list in turn: neighbours of an ascending list share a word, and each
// change would wait for the store of the one before.
template <class Change>
inline void each_id(const std::int32_t* ids, std::int64_t count, const Change& change) {
    const std::int64_t quarter = count / 4;
    for (std::int64_t at = 0; at < quarter; ++at) {
        change(ids[at]);
        change(ids[at + quarter]);
        change(ids[at + 2 * quarter]);
        change(ids[at + 3 * quarter]);
    }
    for (std::int64_t at = 4 * quarter; at < count; ++at) {
        change(ids[at]);
    }
}

inline void set_bits(const std::int32_t* ids, std::int64_t count, std::uint64_t* words) {
    each_id(ids, count, [words](std::int32_t id) { words[id >> 6] |= std::uint64_t{1} << (id & 63); });
}

inline void clear_bits(const std::int32_t* ids, std::int64_t count, std::uint64_t* words) {
    each_id(ids, count, [words](std::int32_t id) { words[id >> 6] &= ~(std::uint64_t{1} << (id & 63)); });
}

inline bool has_bit(const std::uint64_t* words, std::int32_t id) { return words[id >> 6] >> (id & 63) & 1; }

struct SetOps {
    std::int64_t (*count)(const std::uint64_t* words, std::int64_t count);
    // Writes the ids of the set bits, ascending, and nothing beyond `room`, which all of them fit in.
    std::int64_t (*emit)(const std::uint64_t* words, std::int64_t count, std::int32_t* ids, std::int64_t room);
    // Writes those of `from` whose bit is not set, in their order, and nothing beyond `room`; returns how many.
    std::int64_t (*absent)(const std::int32_t* from, std::int64_t count, const std::uint64_t* words, std::int32_t* ids,
                           std::int64_t room);
};

const SetOps& set_ops(Isa isa);

}  // namespace kvsweep
