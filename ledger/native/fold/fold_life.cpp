// Reducers of a request's life. See kvsweep.ledger.reducers.life.
#include <algorithm>

#include "change.hpp"
#include "fold.hpp"

namespace kvsweep::fold {
namespace {

// The view loses its place; its keep map names slots that are gone.
void lose_view(Request& request, RetireCause cause) {
    replace_view(request, cause);
    request.current = 0;
    ++request.map_revision;
    request.keep_map.reset();
}

}  // namespace

bool opened(Machine& machine, Request& request, const Fact& fact) {
    Pool& pool = machine.pool;
    if (fact.pool_generation != pool.pool_generation || fact.rows < 2) {
        return false;
    }
    if (machine.find(request.key.id) != nullptr) {  // its earlier life was closed
        const auto known = std::find(pool.closed.begin(), pool.closed.end(), request.key.id);
        if (known != pool.closed.end()) {
            pool.closed.erase(known);
        }
    }
    request.rows = fact.rows;
    return true;
}

bool preempted(Machine&, Request& request, const Fact&) {
    lose_view(request, RetireCause::preempt);
    return true;
}

bool resumed(Machine&, Request&, const Fact&) {
    return true;
}

// CPU blocks go with the view: only leases of operations in flight still hold some of them.
bool finished(Machine& machine, Request& request, const Fact&) {
    if (request.holding({HolderKind::owner}) != nullptr) {
        machine.relation.change(request, {}, {{HolderKind::owner}});
    }
    lose_view(request, RetireCause::finish);
    request.source = {};
    request.stale = {};
    return true;
}

bool closed(Machine& machine, Request& request, const Fact&) {
    Pool& pool = machine.pool;
    if (pool.closed.size() >= closed_kept) {
        const Request* oldest = machine.find(pool.closed.front());
        if (oldest == nullptr || oldest == &request) {
            return false;
        }
        pool.epoch_floor = std::max(pool.epoch_floor, oldest->key.epoch);
        machine.forget(pool.closed.front());
        pool.closed.pop_front();
    }
    pool.closed.push_back(request.key.id);
    return true;
}

// The fence rule: a generation that is not current and that no open step was handed is released.
bool retired(Machine& machine, Request& request, const Fact& fact) {
    const auto& lane = request.retain.open;
    const bool by_retain = fact.cause == RetireCause::retain;
    if ((lane && lane->replaced == fact.generation) != by_retain) {  // the lane waits for this very event
        return false;
    }
    if (fact.generation == 0) {  // a first retain replaced nothing
        if (fact.found != nullptr) {
            fact.found->assign(machine.pool.layout.groups(), {});
            return by_retain;
        }
        return by_retain && std::all_of(fact.freed.begin(), fact.freed.end(), [](Span list) { return list.empty(); });
    }
    const auto view = std::find_if(request.views.begin(), request.views.end(),
                                   [&fact](const View& one) { return one.generation == fact.generation; });
    if (fact.generation == request.current || view == request.views.end() || view->replaced_by != fact.cause) {
        return false;
    }
    if (!machine.relation.release(request, {HolderKind::view, fact.generation}, fact.freed, fact.found)) {
        return false;
    }
    request.views.erase(view);
    return true;
}

}  // namespace kvsweep::fold
