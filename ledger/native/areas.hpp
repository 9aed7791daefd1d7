// Counting who holds what: areas of own blocks, shared blocks, and the whole pool. No rule stands here.
#pragma once

#include <cstdint>
#include <vector>

#include "ids.hpp"

namespace kvsweep {

// Areas by layer: the row of a group that a layer has (-1: none), and for each listed layer the blocks that are named.
struct Areas {
    const Ids& row_of_layer;
    const Ids& layers;
    const Ragged& ids;
};

// Blocks, ascending, and for each row how many hold the area of each of them: held[row * blocks.size() + place].
struct Counts {
    std::vector<std::int32_t> blocks;
    std::vector<std::uint8_t> held;
    std::int64_t rows = 0;
};

// Where an id was refused: the layer and the block, or -1 and the block where it is about no layer.
struct Place {
    std::int32_t layer = -1;
    std::int32_t block = -1;
};

// As many rows as the layers of the group have.
std::int64_t rows_of(const Ids& row_of_layer);

// The counts with new blocks that nobody holds. False: one of them is there already, or twice.
bool open(Counts& counts, const Ids& blocks, const std::uint8_t* held, std::int64_t rows, const Ids& reserve,
          Place& at);

// One holder more, or one less, for each of the areas; ids of other blocks are passed over. False: an area has 255
// holders already, or none; the counts are of no use then.
bool add(Counts& counts, const std::vector<Areas>& parts, Place& at);
bool drop(Counts& counts, const std::vector<Areas>& parts, Place& at);

// One holder for each of the areas. False: one has a holder, is named twice, or is of another block.
bool fill(Counts& counts, const Areas& areas);

// Whether every one of these blocks has an area with a holder.
bool all_held(const Counts& counts, const Ids& blocks);

// Takes out the blocks of which no area has a holder, and returns them.
std::vector<std::int32_t> take_free(Counts& counts);

struct Fullest {
    std::vector<std::int32_t> ptr{0};   // row pointers
    std::vector<std::int32_t> blocks;   // row after row
    std::vector<std::int32_t> missing;  // of each row: so many less than are wanted
    std::int32_t most = 0;              // of these
    std::int64_t vacant = 0;            // over all listed layers of the group
};
// For each listed layer as many blocks without a holder there as `wanted` has ids in its row: blocks that are held in
// most rows first, then by id. None, and none missing, for a layer of another group.
Fullest fullest(const Ids& blocks, const std::uint8_t* held, std::int64_t rows, const Areas& wanted);

// Shared blocks have totals alone. False: more are taken than there are.
bool add_totals(const Ids& blocks, std::vector<std::uint32_t>& total, const Areas& areas, bool more);

// Sets a byte of each block. The index of the first id that is outside or has the value already (nothing is changed
// then), or -1.
std::int64_t mark(std::uint8_t* marks, std::int64_t size, const Ids& ids, bool value);

// One more for each of `more`, then one less for each of `less`; ids that come to 0 are told, ascending. False: an id
// is outside, or a count leaves its range (nothing is changed then).
bool count(std::uint16_t* counts, std::int64_t size, const Ids& more, const Ids& less, std::vector<std::int32_t>& gone);

// The index of the first id that is outside or has a count above 0, or -1.
std::int64_t first_counted(const std::uint16_t* counts, std::int64_t size, const Ids& ids);

}  // namespace kvsweep
