// Where bytes go: vacant areas of the request's own blocks first, then newly reserved blocks. See
// kvsweep.runtime.core.placement, which is the reference; here every layer has its own table.
#pragma once

#include <cstdint>
#include <vector>

#include "relation.hpp"
#include "state.hpp"

namespace kvsweep::fold {

// Destinations that are chosen as far as vacant areas go, and what is missing.
class Placement {
  public:
    // For as many blocks in each layer as its row has. Each layer is one of the layout's. Nothing is held by this.
    Placement(const Relation& relation, const Layout& layout, const Request& request, RowsSpan blocks);

    // To reserve, a count a group: the largest shortfall of any layer.
    const std::vector<std::int64_t>& new_blocks() const { return new_blocks_; }

    bool needs_new() const;

    // Row for row with the blocks, once the new ones are known, as many as were missing: each layer takes its own area
    // of them, in order. False where there are more or fewer of them.
    // scatter  each layer begins at another one of them, so that layers read different blocks for one logical block
    bool areas(const std::vector<Span>& reserved, bool scatter, Ids& ids) const;

  private:
    // One layer's part: it needs the ids from `begin` to `end`, of which the first ones are found.
    struct Row {
        std::size_t group = 0;
        std::uint32_t begin = 0, end = 0, found = 0;
        std::uint32_t missing() const { return end - begin - found; }
    };
    std::vector<Row> rows_;
    std::vector<std::int32_t> ids_;
    std::vector<std::int64_t> new_blocks_;
};

}  // namespace kvsweep::fold
