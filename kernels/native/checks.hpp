// What every entry point checks about ids before it follows them.
#pragma once

#include "core.hpp"

namespace kvsweep {

// Smallest and largest id; (0, -1) of none.
struct Bounds {
    std::int32_t least;
    std::int32_t most;
};

Bounds bounds(const std::int32_t* ids, std::int64_t count, Isa isa);
bool ascending(const std::int32_t* ids, std::int64_t count, Isa isa);  // strictly

// row_ptr starts at 0, never falls and ends at count.
void check_rows(const char* argument, const Rows& rows);
void check_layers(const Pool& pool, std::int64_t rows);  // ascending, each once, inside the pool
void check_ids(const char* argument, const Rows& rows, std::int32_t least, std::int64_t limit, Run run);
void check_unique(const char* argument, const Rows& rows, std::int64_t limit);
// No id of `rows` is in the same row of `others` (which has the same row_ptr).
void check_apart(const char* argument, const Rows& rows, const std::int32_t* others, std::int64_t limit);

// The row whose range holds item `item` of [0, count).
std::int64_t row_holding(const Rows& rows, std::int64_t item);

// One byte an id, all 0, kept by each thread from call to call. Whoever sets marks clears them before returning or
// throwing.
std::uint8_t* marks(std::int64_t limit);

// A buffer of the calling thread, kept from call to call; one a slot. Its contents are left over.
std::uint64_t* words(int slot, std::int64_t count);

}  // namespace kvsweep
