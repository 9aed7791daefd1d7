// What a selection of whole blocks has to be, and what it comes to on a request. Questions: they change nothing. See
// kvsweep.runtime.core.upload_plan, which is the reference and says why a selection is refused.
#pragma once

#include <cstdint>

#include "state.hpp"

namespace kvsweep::fold {

// As the command carries it. Rows fit each other.
struct Selection {
    std::int64_t revision = 0, block_size = 0, whole_blocks = 0, budget_blocks = 0;
    RowsSpan wanted, tail;
    Span groups;  // of each active layer
};

// Whether it is in order over this request. Also false for ids beyond what is marked in a table: they are left to the
// reference.
bool acceptable(const Selection& selection, const Layout& layout, const Request& request);

// Wanted blocks that stand clean in the tail of their layer's group and are not resident, ascending, a row each layer.
// `resident` has the same layers as `wanted`, or none at all.
Rows adoptable(const Request& request, const Layout& layout, RowsSpan wanted, RowsSpan resident);

// The request's own valid CPU block of each logical block. False where one has none.
bool sources_of(const Request& request, Span logical, Ids& sources);

// Slots of the resident rows whose block is wanted, in their order. The same layers; what is wanted is `acceptable`.
Rows slots_of(RowsSpan resident, RowsSpan wanted);

// Whether all layers of a group get the same row of a table: the ids that stand at these slots, then the adopted ones.
// The same layers; slots are 0 or more.
bool alike(const Layout& layout, RowsSpan resident, RowsSpan slots, RowsSpan adopted);

}  // namespace kvsweep::fold
