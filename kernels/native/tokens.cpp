// Packing chosen tokens into whole blocks. A token is a row of each head of K and V in natural order, and single pairs
// and words of both tiles in the packed one: there is nothing to copy in bulk, so one form serves every instruction
// set.
#include <algorithm>
#include <cstring>
#include <string>

#include "checks.hpp"
#include "core.hpp"

namespace kvsweep {
namespace {

void check_tokens(const Pool& pool, const Rows& tokens, const Rows& destination, const TokenShape& shape, Run run) {
    const std::int64_t places = std::min(pool.blocks * shape.block_size, std::int64_t{1} << 31);
    check_rows("row_ptr", tokens);
    check_layers(pool, tokens.rows);
    check_ids("tokens", tokens, 0, places, run);
    check_unique("tokens", tokens, places);
    check_ids("destination", destination, 0, pool.blocks, run);
    check_unique("destination", destination, pool.blocks);
    std::uint8_t* written = marks(pool.blocks);
    bool apart = true;
    for (std::int64_t row = 0; row < tokens.rows; ++row) {
        const std::int32_t* to = destination.row(row);
        std::for_each_n(to, destination.size(row), [written](std::int32_t block) { written[block] = 1; });
        const std::int32_t* from = tokens.row(row);
        for (std::int64_t at = 0; at < tokens.size(row); ++at) {
            apart = apart && !written[from[at] / shape.block_size];
        }
        std::for_each_n(to, destination.size(row), [written](std::int32_t block) { written[block] = 0; });
    }
    if (!apart) {
        throw Refused("destination: expected blocks that no token is read from");
    }
}

void copy_natural(const std::uint8_t* from, std::int64_t t, std::uint8_t* to, std::int64_t place,
                  const TokenShape& shape) {
    const std::int64_t row = shape.head_dim * shape.element_bytes;
    for (std::int64_t head = 0; head < 2 * shape.kv_heads; ++head) {
        const std::int64_t start = head * shape.block_size;
        std::memcpy(to + (start + place) * row, from + (start + t) * row, static_cast<std::size_t>(row));
    }
}

void copy_packed(const std::uint8_t* from, std::int64_t t, std::uint8_t* to, std::int64_t place,
                 const TokenShape& shape) {
    const std::int64_t tile = shape.block_size * shape.head_dim;
    for (std::int64_t head = 0; head < shape.kv_heads; ++head) {
        const auto* k = reinterpret_cast<const std::uint16_t*>(from) + 2 * head * tile;
        auto* k_to = reinterpret_cast<std::uint16_t*>(to) + 2 * head * tile;
        const std::int64_t k_from = t / 16 * 16 * shape.head_dim + t % 16 * 2;
        const std::int64_t k_place = place / 16 * 16 * shape.head_dim + place % 16 * 2;
        for (std::int64_t pair = 0; pair < shape.head_dim / 2; ++pair) {
            std::memcpy(k_to + k_place + 32 * pair, k + k_from + 32 * pair, 4);
        }
        const std::uint16_t* v = k + tile + t / 2 * 32 + t % 2;
        std::uint16_t* v_to = k_to + tile + place / 2 * 32 + place % 2;
        for (std::int64_t d = 0; d < shape.head_dim; ++d) {
            const std::int64_t at = d / 16 * 16 * shape.block_size + d % 16 * 2;
            v_to[at] = v[at];
        }
    }
}

}  // namespace

void pack_tokens(const Pool& pool, const Rows& tokens, const Rows& destination, const TokenShape& shape, Run run) {
    check_tokens(pool, tokens, destination, shape, run);
    for (std::int64_t row = 0; row < tokens.rows; ++row) {
        const std::int64_t size = tokens.size(row);
        for (std::int64_t at = 0; at < size; ++at) {
            std::uint8_t* to = pool.area(row, destination.row(row)[at / shape.block_size]);
            const std::int64_t place = at % shape.block_size;
            if (place == 0 && size - at < shape.block_size) {
                std::memset(to, 0, static_cast<std::size_t>(pool.block_bytes));
            }
            const std::int32_t token = tokens.row(row)[at];
            const std::uint8_t* from = pool.area(row, static_cast<std::int32_t>(token / shape.block_size));
            (shape.packed ? copy_packed : copy_natural)(from, token % shape.block_size, to, place, shape);
        }
    }
}

}  // namespace kvsweep
