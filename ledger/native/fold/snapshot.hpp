// A state as the bytes that kvsweep.ledger.store.snapshot gives it, before they are compressed.
#pragma once

#include <string>
#include <string_view>

#include "fold.hpp"

namespace kvsweep::fold {

constexpr const char* pool_stream = "@pool";  // of its facts; its epoch is 0
constexpr std::int64_t most_counted = std::int64_t{1} << 62;  // what counts up from here never overflows
constexpr std::int64_t most_blocks = std::int64_t{1} << 22;   // of a pool: tables have a line for each

// Fills a machine that is new. False where the bytes are no state, one whose pool is not configured, or one that would
// not be safe to go on with; the machine is of no use then.
bool load(std::string_view body, Machine& machine);

// Whether the holders of a machine that was filled are those that reducers made for what is there.
bool held_as_made(const Machine& machine);

std::string save(const Machine& machine);

}  // namespace kvsweep::fold
