// Steps of ranking, one set an instruction set. Scores become keys: unsigned numbers in the same order, one zero.
#pragma once

#include <bit>

#include "core.hpp"

namespace kvsweep {

inline std::uint32_t key_of(float score) {
    const auto bits = std::bit_cast<std::uint32_t>(score + 0.0f);  // -0.0 + 0.0 is +0.0
    return bits ^ (static_cast<std::uint32_t>(static_cast<std::int32_t>(bits) >> 31) | 0x80000000u);
}

inline float score_of(std::uint32_t key) { return std::bit_cast<float>(key & 0x80000000u ? key ^ 0x80000000u : ~key); }

struct RankOps {
    // Writes the keys and ids of the scores that are at least `bound`, in id order, and returns how many; -1 if any
    // score is not finite. Both arrays have room for n + 16.
    std::int64_t (*collect)(const float* scores, std::int64_t n, float bound, std::uint32_t* keys, std::int32_t* ids);
    std::int64_t (*count_from)(const std::uint32_t* keys, std::int64_t count, std::uint32_t bound);
    // Moves what is at least `bound` to the front, in order. Both arrays have room for 16 more than count.
    void (*keep)(std::uint32_t* keys, std::int32_t* ids, std::int64_t count, std::uint32_t bound);
    void (*range)(const std::uint32_t* keys, std::int64_t count, std::uint32_t* least, std::uint32_t* most);
};

const RankOps& rank_ops(Isa isa);

}  // namespace kvsweep
