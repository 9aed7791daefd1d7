// Reducers of aborts and of what settles after them. See kvsweep.ledger.reducers.settle.
#include <algorithm>

#include "change.hpp"
#include "fold.hpp"

namespace kvsweep::fold {
namespace {

bool ended_everywhere(const OpenOperation& open) {
    return std::all_of(open.ranks.begin(), open.ranks.end(), [&open](const Pair& awaited) {
        return std::any_of(open.outcomes.begin(), open.outcomes.end(),
                           [&awaited](const auto& outcome) { return outcome.first == awaited.first; });
    });
}

// Nobody reads or writes for the operation any more.
void quiet(Machine& machine, Request& request, const OpenOperation& open) {
    std::vector<Holder> drop;
    for (const HolderKind kind : {HolderKind::dst, HolderKind::src}) {
        const Holder holder{kind, open.operation.id};
        if (request.holding(holder) != nullptr) {
            drop.push_back(holder);
        }
    }
    machine.relation.change(request, {}, drop);
    request.lane(open.lane).closed = closed_record(open);
}

bool aborted(Machine& machine, Request& request, LaneName name, const Fact& fact) {
    if (open_in(request, name, fact) == nullptr) {
        return false;
    }
    Lane& lane = request.lane(name);
    OpenOperation open = std::move(*lane.open);
    lane.open.reset();
    for (std::shared_ptr<const Remembered>& known : request.commands) {
        if (known->operation == open.operation) {
            auto ended = std::make_shared<Remembered>(*known);
            ended->aborted = fact.reason;
            known = std::move(ended);
        }
    }
    // Keep all held until each rank is terminal; an operation never sent, or ended everywhere, is quiet at once.
    if (ended_everywhere(open)) {
        quiet(machine, request, open);
    } else {
        request.settling.push_back(std::move(open));
    }
    return true;
}

}  // namespace

bool upload_aborted(Machine& machine, Request& request, const Fact& fact) {
    return aborted(machine, request, LaneName::upload, fact);
}

bool retain_aborted(Machine& machine, Request& request, const Fact& fact) {
    return aborted(machine, request, LaneName::retain, fact);
}

bool store_aborted(Machine& machine, Request& request, const Fact& fact) {
    return aborted(machine, request, LaneName::store, fact);
}

bool transfer_settled(Machine& machine, Request& request, const Fact& fact) {
    const auto found =
        std::find_if(request.settling.begin(), request.settling.end(),
                     [&](const OpenOperation& open) { return names(request, fact, open.operation); });
    if (found == request.settling.end() || !awaited(*found, fact.rank, fact.process_epoch)) {
        return false;
    }
    OpenOperation open = std::move(*found);
    request.settling.erase(found);
    report(open, fact.rank, fact.outcome);
    if (open.outcomes.size() == open.ranks.size()) {
        quiet(machine, request, open);
    } else {
        request.settling.push_back(std::move(open));
    }
    return true;
}

}  // namespace kvsweep::fold
