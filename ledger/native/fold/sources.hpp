// Tables of CPU blocks by logical block, with a hole where there is none. See kvsweep.ledger.sources.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "buffer.hpp"
#include "state.hpp"

namespace kvsweep::fold {

// A table that reaches further takes more memory than a request that is real: it is left to the reference.
constexpr std::int64_t most_logical = std::int64_t{1} << 24;

inline bool in_table(std::int64_t logical) {
    return logical >= 0 && logical < most_logical;
}

inline bool in_table(Span logical) {
    for (std::uint32_t at = 0; at < logical.count; ++at) {
        if (!in_table(logical[at])) {
            return false;
        }
    }
    return true;
}

// A list of this id alone.
inline Span one_id(const std::int32_t& id) {
    return {reinterpret_cast<const unsigned char*>(&id), 1};
}

// Whether each id stands there once.
inline bool distinct(Span ids) {
    std::uint32_t at = 1;
    while (at < ids.count && ids[at - 1] < ids[at]) {
        ++at;
    }
    if (at >= ids.count) {
        return true;  // ascending, as most lists are
    }
    std::vector<std::int32_t> sorted(ids.count);
    std::memcpy(sorted.data(), ids.data, ids.bytes());
    std::sort(sorted.begin(), sorted.end());
    return std::adjacent_find(sorted.begin(), sorted.end()) == sorted.end();
}

// The table with these entries set; it grows with holes as far as needed. Every logical block is in a table.
inline Ids with_blocks(const Ids& table, Span logical, Span blocks) {
    std::uint32_t size = table.count();
    for (std::uint32_t at = 0; at < logical.count; ++at) {
        size = std::max(size, static_cast<std::uint32_t>(logical[at]) + 1);
    }
    Ids grown = Ids::uninitialized(size);
    std::int32_t* entries = grown.writable();
    std::copy(table.begin(), table.end(), entries);
    std::fill(entries + table.count(), entries + size, hole);
    for (std::uint32_t at = 0; at < logical.count; ++at) {
        entries[logical[at]] = blocks[at];
    }
    return grown;
}

// The table with a hole at these entries.
inline Ids without(const Ids& table, Span logical) {
    Ids left;
    for (std::uint32_t at = 0; at < logical.count; ++at) {
        if (static_cast<std::uint32_t>(logical[at]) < table.count() && table[logical[at]] != hole) {
            if (left.empty()) {
                left = Ids(table.span());
            }
            left.writable()[logical[at]] = hole;
        }
    }
    return left.empty() ? table : left;
}

// Every CPU block that stands in the tables, those of the first before those of the second.
inline Ids blocks_of(const Ids& first, const Ids& second) {
    Ids found = Ids::uninitialized(first.count() + second.count());
    std::int32_t* next = found.writable();
    const auto known = [](std::int32_t block) { return block != hole; };
    next = std::copy_if(first.begin(), first.end(), next, known);
    next = std::copy_if(second.begin(), second.end(), next, known);
    const auto kept = static_cast<std::uint32_t>(next - found.writable());
    return std::move(found).first(kept);
}

// What the request itself holds of the CPU's pool.
inline Held owned_sources(const Request& request) {
    return {{HolderKind::owner}, {{}, blocks_of(request.source, request.stale), {}}};
}

}  // namespace kvsweep::fold
