// What several reducers ask of device-written blocks.
#pragma once

#include <algorithm>
#include <vector>

#include "fold.hpp"

namespace kvsweep::fold {

// Tail blocks stand in the order in which they were opened, and that is the order of their logical blocks.
inline TailBlock* find_block(Request& request, std::int64_t logical) {
    const auto found = std::lower_bound(request.tail.begin(), request.tail.end(), logical,
                                        [](const TailBlock& block, std::int64_t at) { return block.logical < at; });
    return found != request.tail.end() && found->logical == logical ? &*found : nullptr;
}

inline std::int64_t newest_logical(const Request& request) {
    return request.tail.empty() ? -1 : request.tail.back().logical;
}

// Every area of whole blocks of one group.
inline Rows block_areas(const Layout& layout, std::size_t group, const std::vector<std::int32_t>& blocks) {
    const std::vector<std::int32_t>& layers = layout.layers_of_group[group];
    const auto rows = static_cast<std::uint32_t>(layers.size()), count = static_cast<std::uint32_t>(blocks.size());
    Ids of_layers = Ids::uninitialized(rows), ends = Ids::uninitialized(rows + 1), ids = Ids::uninitialized(rows * count);
    std::copy(layers.begin(), layers.end(), of_layers.writable());
    for (std::uint32_t row = 0; row <= rows; ++row) {
        ends.writable()[row] = static_cast<std::int32_t>(row * count);
    }
    for (std::uint32_t row = 0; row < rows; ++row) {
        std::copy(blocks.begin(), blocks.end(), ids.writable() + std::size_t{row} * count);
    }
    return {std::move(of_layers), std::move(ends), std::move(ids)};
}

}  // namespace kvsweep::fold
