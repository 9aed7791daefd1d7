// Reducers of the upload lane. See kvsweep.ledger.reducers.upload.
#include "change.hpp"
#include "fold.hpp"
#include "rows.hpp"

namespace kvsweep::fold {
namespace {

// Token method: a new set each time, copied, in as few blocks as hold it.
bool packed(const Layout& layout, const Fact& fact) {
    const RowsSpan& blocks = fact.logical;
    if (fact.kind != PlanKind::full || fact.source_kind != SourceKind::copy ||
        fact.valid_tokens.count != blocks.rows() || layout.block_size > most_id) {
        return false;
    }
    for (std::uint32_t row = 0; row < blocks.rows(); ++row) {
        const std::int64_t size = layout.block_size, tokens = fact.valid_tokens[row];
        const std::uint32_t from = blocks.begin(row), count = blocks.end(row) - from;
        if ((tokens + size - 1) / size != count) {
            return false;
        }
        for (std::uint32_t at = 0; at < count; ++at) {
            if (static_cast<std::uint32_t>(blocks.ids[from + at]) != at) {
                return false;
            }
        }
    }
    return true;
}

// Source-only: the request's own valid CPU block of each logical block. Copy: only this plan's copies.
bool sources_known(const Machine& machine, const Request& request, const Fact& fact, Span wanted) {
    if (!fact.copies.empty()) {
        for (std::uint32_t at = 0; at < fact.copies.count; ++at) {
            const std::int32_t copy = fact.copies[at];
            if (copy < machine.pool.cpu_full_blocks || !machine.relation.in_cpu_pool(copy) ||
                machine.relation.cpu_taken(copy)) {  // an operation that settles may still be read from
                return false;
            }
        }
        return all_apart(fact.copies) && all_among(fact.source.ids, fact.copies);
    }
    const std::int32_t* const sources = request.source.begin();
    const std::uint32_t known = request.source.count();
    for (std::uint32_t at = 0; at < wanted.count; ++at) {
        const auto logical = static_cast<std::uint32_t>(wanted[at]);
        if (logical >= known || sources[logical] != fact.source.ids[at] || sources[logical] == hole) {
            return false;
        }
    }
    return true;
}

}  // namespace

bool selected(Machine&, Request& request, const Fact& fact) {
    if (fact.selection_revision <= request.selection_revision || fact.effective_budget_blocks < 0 ||
        fact.effective_budget_blocks > fact.whole_blocks) {
        return false;
    }
    request.selection_revision = fact.selection_revision;
    request.selected_key = fact.idempotency_key;
    request.selected_digest = fact.digest;
    request.whole_blocks = fact.whole_blocks;
    return true;
}

bool upload_planned(Machine& machine, Request& request, const Fact& fact) {
    const Layout& layout = machine.pool.layout;
    if (!begins(machine, request, fact) || !next_generation(request, fact.generation) ||
        fact.logical.layers != layout.active.span() || !rows_ascend(fact.logical) ||
        !all_below(fact.logical.ids, request.whole_blocks)) {
        return false;
    }
    const View* view = request.view();
    if (view != nullptr && fact.kind == PlanKind::diff) {
        const RowsSpan resident = view->logical.span();
        if (resident.layers != fact.logical.layers || !rows_disjoint(resident, fact.logical)) {
            return false;
        }
    }
    if (!fact.valid_tokens.empty() && !packed(layout, fact)) {
        return false;
    }
    take_number(machine);
    ++request.next_generation;
    OpenOperation& open = request.upload.open.emplace();
    open.operation = fact.operation;
    open.lane = LaneName::upload;
    open.generation = fact.generation;
    open.kind = fact.kind;
    open.logical = Rows(fact.logical);
    open.replaced = request.current;
    remember(request, request.selected_key, request.selected_digest, fact.operation);
    return true;
}

bool leased(Machine& machine, Request& request, const Fact& fact) {
    OpenOperation* open = open_in(request, LaneName::upload, fact);
    if (open == nullptr) {
        return false;
    }
    const RowsSpan planned = open->logical.span();
    if (!fact.source.same_shape(planned) || !fact.destination.same_shape(planned) ||
        !free_row(machine, request, fact.row) ||
        !machine.relation.placeable(request, fact.destination, fact.reserved) ||
        !sources_known(machine, request, fact, planned.ids)) {
        return false;
    }
    std::optional<Rows> adopted = adopted_areas(machine, request, fact.adopted);
    if (!adopted) {
        return false;
    }
    const View* base = open->kind == PlanKind::diff ? request.view() : nullptr;
    const RowsSpan old_logical = base == nullptr ? RowsSpan() : base->logical.span();
    const RowsSpan old_physical = base == nullptr ? RowsSpan() : base->physical.span();
    Rows logical = joined({old_logical, fact.adopted, planned});
    if (!fact.adopted.ids.empty() && !rows_apart(logical.span())) {  // the rest is apart already
        return false;
    }
    open->table = joined({old_physical, adopted->span(), fact.destination});
    open->table_logical = std::move(logical);
    open->destination = Rows(fact.destination);
    open->adopted = Rows(fact.adopted);
    open->row = fact.row;
    const std::int64_t number = fact.operation.id;
    // Adopted areas are held as well: their block may leave the tail before the commit.
    machine.relation.change(
        request,
        {{{HolderKind::dst, number, 0}, {open->destination, {}, {fact.row}}},
         {{HolderKind::src, number, 0}, {*std::move(adopted), distinct(fact.source.ids, fact.copies), {}}}},
        {}, fact.reserved);
    return true;
}

bool transfer_started(Machine& machine, Request& request, const Fact& fact) {
    OpenOperation* open = open_in(request, LaneName::upload, fact);
    if (open == nullptr || !expected_ranks(machine, fact.ranks)) {
        return false;
    }
    open->ranks = fact.ranks;
    return true;
}

bool transferred(Machine&, Request& request, const Fact& fact) {
    OpenOperation* open = open_in(request, LaneName::upload, fact);
    if (open == nullptr || !awaited(*open, fact.rank, fact.process_epoch)) {
        return false;
    }
    report(*open, fact.rank, Outcome::completed);
    return true;
}

bool transfer_completed(Machine&, Request& request, const Fact& fact) {
    const OpenOperation* open = open_in(request, LaneName::upload, fact);
    return open != nullptr && all_reported(*open);
}

bool residency_committed(Machine& machine, Request& request, const Fact& fact) {
    const OpenOperation* open = open_in(request, LaneName::upload, fact);
    if (open == nullptr || fact.generation != open->generation) {
        return false;
    }
    commit_view(machine, request, *open);
    return true;
}

// A zero-byte plan still updates selection and retention state (F1); it changes no table and no owner.
bool keep_map_published(Machine& machine, Request& request, const Fact& fact) {
    if (!begins(machine, request, fact) || fact.selection_revision != request.selection_revision ||
        !slots_exist(fact.keep, request.view())) {
        return false;
    }
    take_number(machine);
    OpenOperation& open = request.upload.open.emplace();
    open.operation = fact.operation;
    open.lane = LaneName::upload;
    open.replaced = request.current;
    request.keep_map = KeepMap{fact.selection_revision, request.map_revision, Rows(fact.keep)};
    remember(request, request.selected_key, request.selected_digest, fact.operation);
    return true;
}

bool upload_acknowledged(Machine& machine, Request& request, const Fact& fact) {
    const OpenOperation* open = open_in(request, LaneName::upload, fact);
    if (open == nullptr || fact.process_epoch != machine.pool.producer_epoch) {
        return false;
    }
    request.upload.closed = closed_record(*open);
    request.upload.open.reset();
    return true;
}

}  // namespace kvsweep::fold
