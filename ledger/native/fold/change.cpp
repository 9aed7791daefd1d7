#include "change.hpp"

#include <algorithm>

namespace kvsweep::fold {

bool begins(const Machine& machine, const Request& request, const Fact& fact) {
    const Operation next{machine.pool.next_operation_id, machine.pool.pool_generation, request.map_revision};
    return names(request, fact, next) && countable(next.id);
}

bool names(const Request& request, const Fact& fact, const Operation& operation) {
    return fact.operation == operation && fact.operation_request_epoch == request.key.epoch &&
           fact.operation_request_id == request.key.id;
}

OpenOperation* open_in(Request& request, LaneName name, const Fact& fact) {
    Lane& lane = request.lane(name);
    return lane.open && names(request, fact, lane.open->operation) ? &*lane.open : nullptr;
}

bool expected_ranks(const Machine& machine, const RankEpochs& ranks) {
    return !ranks.empty() && ranks == machine.pool.ranks;
}

bool awaited(const OpenOperation& open, std::int64_t rank, std::int64_t process_epoch) {
    return std::find(open.ranks.begin(), open.ranks.end(), Pair{rank, process_epoch}) != open.ranks.end() &&
           std::none_of(open.outcomes.begin(), open.outcomes.end(), [rank](const auto& one) { return one.first == rank; });
}

bool all_reported(const OpenOperation& open) {
    auto outcome = open.outcomes.begin();  // both are ascending
    for (const auto& [rank, process_epoch] : open.ranks) {
        while (outcome != open.outcomes.end() && outcome->first < rank) {
            ++outcome;
        }
        if (outcome == open.outcomes.end() || outcome->first != rank || outcome->second != Outcome::completed) {
            return false;
        }
    }
    return true;
}

bool free_row(const Machine& machine, const Request& request, std::int64_t row) {
    return row >= 0 && row < request.rows && !machine.relation.row_taken(request, row);
}

std::optional<Rows> adopted_areas(const Machine& machine, const Request& request, const RowsSpan& adopted) {
    Ids areas = Ids::uninitialized(adopted.ids.count);
    std::int32_t* next = areas.writable();
    for (std::uint32_t row = 0; row < adopted.rows(); ++row) {
        if (!machine.pool.layout.is_active(adopted.layers[row])) {
            return {};
        }
        const Layer& layer = machine.pool.layout.layers[static_cast<std::size_t>(adopted.layers[row])];
        for (std::uint32_t at = adopted.begin(row); at < adopted.end(row); ++at) {
            const auto block =
                std::lower_bound(request.tail.begin(), request.tail.end(), adopted.ids[at],
                                 [](const TailBlock& one, std::int32_t logical) { return one.logical < logical; });
            if (block == request.tail.end() || block->logical != adopted.ids[at] || block->phase != TailPhase::clean) {
                return {};
            }
            const std::int64_t physical = block->physical[static_cast<std::size_t>(layer.group)];
            if (physical == hole) {
                return {};
            }
            *next++ = static_cast<std::int32_t>(physical);
        }
    }
    return Rows(Ids(adopted.layers), Ids(adopted.row_ptr), std::move(areas));
}

bool slots_exist(const RowsSpan& keep, const View* view) {
    if (!rows_ascend(keep)) {
        return false;
    }
    const RowsSpan have = view == nullptr ? RowsSpan() : view->logical.span();
    std::uint32_t at = 0;  // the view's row of the layer, or of a later one
    for (std::uint32_t row = 0; row < keep.rows(); ++row) {
        if (keep.begin(row) == keep.end(row)) {
            continue;
        }
        while (at < have.rows() && have.layers[at] < keep.layers[row]) {
            ++at;
        }
        const bool known = at < have.rows() && have.layers[at] == keep.layers[row];
        const std::uint32_t count = known ? have.end(at) - have.begin(at) : 0;
        if (static_cast<std::uint32_t>(keep.ids[keep.end(row) - 1]) >= count) {
            return false;
        }
    }
    return true;
}

void report(OpenOperation& open, std::int64_t rank, Outcome outcome) {
    const auto after = std::find_if(open.outcomes.begin(), open.outcomes.end(),
                                    [rank](const auto& one) { return one.first > rank; });
    open.outcomes.insert(after, {rank, outcome});
}

ClosedOperation closed_record(const OpenOperation& open) { return {open.operation, open.outcomes}; }

void remember(Request& request, std::string_view key, std::string_view what, const Operation& operation) {
    if (key.empty()) {
        return;
    }
    request.commands.push_back(
        std::make_shared<const Remembered>(Remembered{std::string(key), std::string(what), operation, {}}));
    if (request.commands.size() > commands_kept) {
        request.commands.pop_front();
    }
}

void replace_view(Request& request, RetireCause cause) {
    for (View& view : request.views) {
        if (view.generation == request.current) {
            view.replaced_by = cause;
        }
    }
}

void commit_view(Machine& machine, Request& request, const OpenOperation& open) {
    const RetireCause cause = open.lane == LaneName::upload ? RetireCause::upload : RetireCause::retain;
    machine.relation.change(request, {{{HolderKind::view, open.generation, 0}, {open.table, {}, {open.row}}}},
                            {{HolderKind::dst, open.operation.id, 0}, {HolderKind::src, open.operation.id, 0}});
    replace_view(request, cause);
    request.views.push_back({open.generation, open.table_logical, open.table, open.row, {}});
    request.current = open.generation;
    ++request.map_revision;
    request.keep_map.reset();
}

}  // namespace kvsweep::fold
