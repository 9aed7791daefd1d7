// Questions about ragged rows, and rows made of others. What each means stands in kvsweep.ledger.ragged.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <vector>

#include "buffer.hpp"

namespace kvsweep::fold {

// Ids from here on are left to the reference: tables over them would take too much memory.
constexpr std::int32_t most_id = 1 << 24;

// A set of ids that is emptied in no time.
class Seen {
  public:
    // Empty again, with room for ids in [0, limit) and those that had it before.
    void begin(std::size_t limit = 0) {
        if (limit > rounds_.size()) {
            rounds_.resize(limit);
        }
        if (++round_ == 0) {
            rounds_.assign(rounds_.size(), 0);
            round_ = 1;
        }
    }
    // Whether the id was in it already.
    bool set(std::int32_t id) {
        std::uint32_t& at = rounds_[static_cast<std::size_t>(id)];
        const bool before = at == round_;
        at = round_;
        return before;
    }
    bool has(std::int32_t id) const {
        return static_cast<std::size_t>(id) < rounds_.size() && rounds_[static_cast<std::size_t>(id)] == round_;
    }

  private:
    std::vector<std::uint32_t> rounds_;  // the last one in which the id was set
    std::uint32_t round_ = 0;
};

// Ids of a fact are 0 or more. Where one is most_id or more, those that need a table say no.

bool all_below(Span ids, std::int64_t limit);
bool all_apart(Span ids);
// Each of them stands in `others`.
bool all_among(Span ids, Span others);

// Each row is strictly ascending.
bool rows_ascend(const RowsSpan& rows);
// No row names an id twice.
bool rows_apart(const RowsSpan& rows);
// No row has an id in both. The same layers.
bool rows_disjoint(const RowsSpan& first, const RowsSpan& second);

// Row after row: the ids of the first, then those of the next. A layer may stand in some of them alone.
Rows joined(std::initializer_list<RowsSpan> parts);

// The ids that stand at these slots, row for row. The same layers; every slot is inside its row.
Rows ids_at(const RowsSpan& rows, const RowsSpan& slots);

// A row without ids for each of these layers.
Rows empty_rows(Span layers);

// The ids of both, each once, ascending.
Ids distinct(Span first, Span second);

// Both are ascending.
Ids with_ids(const Ids& ids, const std::vector<std::int32_t>& more);
Ids without_ids(const Ids& ids, const std::vector<std::int32_t>& gone);

}  // namespace kvsweep::fold
