// Reducers of the retain lane: remap, move and pack differ only in how the new table is built.
// See kvsweep.ledger.reducers.retain.
#include <algorithm>
#include <string>

#include "change.hpp"
#include "fold.hpp"
#include "rows.hpp"

namespace kvsweep::fold {
namespace {

// What takes the place of a moved area: one for all calls, as whoever asks holds Python's lock.
struct Moves {
    Seen moved, met;
    std::vector<std::int32_t> target;

    // The places of a row's `slots`, of which each one moved has to be met. False where one is moved twice, or is none.
    bool row(Span from, Span to, std::int32_t* slots, const std::int32_t* end) {
        moved.begin();
        met.begin();
        for (std::uint32_t at = 0; at < from.count; ++at) {
            if (moved.set(from[at])) {
                return false;
            }
            target[static_cast<std::size_t>(from[at])] = to[at];
        }
        std::uint32_t missing = from.count;
        for (; slots != end; ++slots) {
            const std::int32_t area = *slots;
            if (moved.has(area)) {
                missing -= !met.set(area);
                *slots = target[static_cast<std::size_t>(area)];
            }
        }
        return missing == 0;
    }
} moves;

// Substitutes moved areas. A move is out of place: its source is a slot of the new table, its target is not.
std::optional<Rows> with_moves(const Rows& table, const RowsSpan& from, const RowsSpan& to) {
    if (!from.same_shape(to)) {
        return {};
    }
    std::size_t room = 0;
    for (std::uint32_t at = 0; at < from.ids.count; ++at) {
        if (from.ids[at] >= most_id) {
            return {};
        }
        room = std::max(room, static_cast<std::size_t>(from.ids[at]) + 1);
    }
    moves.moved.begin(room);
    moves.met.begin(room);
    moves.target.resize(std::max(room, moves.target.size()));

    const RowsSpan old = table.span();
    Ids ids = from.ids.empty() ? table.ids : Ids(old.ids);
    std::uint32_t at = 0;  // the table's row of the layer, or of a later one
    for (std::uint32_t row = 0; row < from.rows(); ++row) {
        while (at < old.rows() && old.layers[at] < from.layers[row]) {
            ++at;
        }
        if (at == old.rows() || old.layers[at] != from.layers[row]) {
            return {};
        }
        const Span moved = from.row(row);
        if (!moved.empty() &&
            !moves.row(moved, to.row(row), ids.writable() + old.begin(at), ids.begin() + old.end(at))) {
            return {};
        }
    }
    return Rows(table.layers, table.row_ptr, std::move(ids));
}

// Layers of a group have the same row in the table, id for id.
bool one_row_a_group(const Layout& layout, const RowsSpan& table) {
    std::vector<std::optional<Span>> first(layout.groups());
    for (std::uint32_t row = 0; row < table.rows(); ++row) {
        std::optional<Span>& of_group =
            first[static_cast<std::size_t>(layout.layers[static_cast<std::size_t>(table.layers[row])].group)];
        const Span ids = table.row(row);
        if (of_group && *of_group != ids) {
            return false;
        }
        of_group = ids;
    }
    return true;
}

}  // namespace

// Epoch, pool generation, map revision and slot bounds of every row are checked here (G1).
bool retain_planned(Machine& machine, Request& request, const Fact& fact) {
    const Layout& layout = machine.pool.layout;
    if (!begins(machine, request, fact) || !next_generation(request, fact.generation) ||
        fact.keep.layers != layout.active.span() || !free_row(machine, request, fact.row) ||
        !machine.relation.placeable(request, fact.moved_to, fact.reserved)) {
        return false;
    }
    const bool remap = fact.mode == RetainMode::shared || fact.mode == RetainMode::layer;
    if (remap && !fact.moved_to.ids.empty()) {  // a remap moves no bytes
        return false;
    }
    const View* view = request.view();
    if (!slots_exist(fact.keep, view) || (view != nullptr && view->logical.layers.span() != fact.keep.layers)) {
        return false;
    }
    std::optional<Rows> adopted = adopted_areas(machine, request, fact.adopted);
    if (!adopted) {
        return false;
    }
    Rows logical = view == nullptr ? empty_rows(fact.keep.layers) : ids_at(view->logical.span(), fact.keep);
    Rows physical = view == nullptr ? logical : ids_at(view->physical.span(), fact.keep);
    if (!fact.adopted.ids.empty()) {
        logical = joined({logical.span(), fact.adopted});
        physical = joined({physical.span(), adopted->span()});
        if (!rows_apart(logical.span())) {  // slots of a view are apart
            return false;
        }
    }
    std::optional<Rows> table = with_moves(physical, fact.moved_from, fact.moved_to);
    if (!table || (fact.mode == RetainMode::shared && !one_row_a_group(layout, table->span()))) {
        return false;
    }
    take_number(machine);
    ++request.next_generation;
    OpenOperation& open = request.retain.open.emplace();
    open.operation = fact.operation;
    open.lane = LaneName::retain;
    open.generation = fact.generation;
    open.mode = fact.mode;
    open.attention = fact.attention;
    open.destination = Rows(fact.moved_to);
    open.adopted = Rows(fact.adopted);
    open.table = *std::move(table);
    open.table_logical = std::move(logical);
    open.row = fact.row;
    open.replaced = request.current;
    const std::int64_t number = fact.operation.id;
    // Adopted areas are held as well: their block may leave the tail before the commit.
    machine.relation.change(request,
                            {{{HolderKind::dst, number, 0}, {open.destination, {}, {fact.row}}},
                             {{HolderKind::src, number, 0}, {*std::move(adopted), {}, {}}}},
                            {}, fact.reserved);
    if (fact.digest.empty()) {  // a log without digests names the revision
        remember(request, fact.idempotency_key, "retain-" + std::to_string(fact.selection_revision), fact.operation);
    } else {
        remember(request, fact.idempotency_key, fact.digest, fact.operation);
    }
    return true;
}

bool readers_drained(Machine& machine, Request& request, const Fact& fact) {
    OpenOperation* open = open_in(request, LaneName::retain, fact);
    if (open == nullptr || !expected_ranks(machine, fact.ranks) || fact.row != open->row) {
        return false;
    }
    open->ranks = fact.ranks;
    return true;
}

bool tables_applied(Machine&, Request& request, const Fact& fact) {
    OpenOperation* open = open_in(request, LaneName::retain, fact);
    if (open == nullptr || !awaited(*open, fact.rank, fact.process_epoch)) {
        return false;
    }
    report(*open, fact.rank, Outcome::completed);
    return true;
}

bool all_ranks_applied(Machine&, Request& request, const Fact& fact) {
    const OpenOperation* open = open_in(request, LaneName::retain, fact);
    return open != nullptr && all_reported(*open);
}

bool owners_committed(Machine& machine, Request& request, const Fact& fact) {
    const OpenOperation* open = open_in(request, LaneName::retain, fact);
    if (open == nullptr || fact.generation != open->generation) {
        return false;
    }
    commit_view(machine, request, *open);
    return true;
}

bool retain_acknowledged(Machine& machine, Request& request, const Fact& fact) {
    const OpenOperation* open = open_in(request, LaneName::retain, fact);
    if (open == nullptr || fact.process_epoch != machine.pool.producer_epoch) {
        return false;
    }
    request.retain.closed = closed_record(*open);
    request.retain.open.reset();
    return true;
}

}  // namespace kvsweep::fold
