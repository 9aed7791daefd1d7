// Areas: which layers' parts of which blocks are held, and where new ones go. See kvsweep.ledger.holding and .change.
#pragma once

#include <cstdint>
#include <vector>

#include "ids.hpp"

namespace kvsweep {

// bool[rows, blocks]: a row a layer of one group.
struct Held {
    std::uint8_t* marks;
    std::int64_t rows, blocks;
};

// One group's part of some areas: layer_row[layer] is its row in `Held`, or -1 where the layer is in another group.
struct Areas {
    const Ids& layer_row;
    const Ids& layers;
    const Ragged& ids;
};

// Marks the areas whose layer is in the group and whose block is one of `blocks`.
void mark(const Held& held, const Ids& blocks, const Areas& areas);

// Whether each area of the group stands in a vacant place of `own` or in one of `fresh`, and is named once, and each of
// `fresh` has one. All blocks are ascending and apart.
bool placed_well(const Held& held, const Ids& own, const Ids& fresh, const Areas& areas);

// For each of `rows` its first `wanted` vacant blocks, the fullest block first and the lowest id among equals.
struct Fullest {
    std::vector<std::int32_t> blocks, counts;
    std::int64_t vacant = 0;  // in these rows
};
Fullest fullest(const Held& held, const Ids& blocks, const Ids& rows, const Ids& wanted);

}  // namespace kvsweep
