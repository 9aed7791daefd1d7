// Sets of ids as marks (a byte an id) and as words (a bit an id).
#pragma once

#include "core.hpp"

namespace kvsweep {

struct SetOps {
    // Turns 64 * count marks into count words and clears the marks; returns how many bits are set.
    std::int64_t (*harvest)(std::uint8_t* marks, std::int64_t count, std::uint64_t* words);
    // words[i] &= ~without[i]; returns how many bits are left.
    std::int64_t (*subtract)(std::uint64_t* words, const std::uint64_t* without, std::int64_t count);
    // Writes the ids of the set bits, ascending, and nothing beyond `room`, which all of them fit in.
    std::int64_t (*emit)(const std::uint64_t* words, std::int64_t count, std::int32_t* ids, std::int64_t room);
};

const SetOps& set_ops(Isa isa);

}  // namespace kvsweep
