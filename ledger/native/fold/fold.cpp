#include "fold.hpp"

#include <algorithm>
#include <array>

#include "change.hpp"
#include "phases.hpp"

namespace kvsweep::fold {
namespace {

constexpr std::string_view pool_stream = "@pool";

using Reducer = bool (*)(Machine&, Request&, const Fact&);

// Recorded, and nothing else.
bool noted(Machine&, Request&, const Fact&) {
    return true;
}

// By tag; nothing where the fact is not one of a request.
constexpr std::array<Reducer, tags> reducers = [] {
    std::array<Reducer, tags> by_tag{};
    const auto of = [&by_tag](Tag tag) -> Reducer& { return by_tag[static_cast<std::size_t>(tag)]; };
    of(Tag::request_opened) = opened;
    of(Tag::request_preempted) = preempted;
    of(Tag::request_resumed) = resumed;
    of(Tag::request_finished) = finished;
    of(Tag::request_closed) = closed;
    of(Tag::blocks_selected) = selected;
    of(Tag::upload_planned) = upload_planned;
    of(Tag::blocks_leased) = leased;
    of(Tag::transfer_started) = transfer_started;
    of(Tag::rank_transferred) = transferred;
    of(Tag::transfer_completed) = transfer_completed;
    of(Tag::residency_committed) = residency_committed;
    of(Tag::keep_map_published) = keep_map_published;
    of(Tag::upload_acknowledged) = upload_acknowledged;
    of(Tag::upload_aborted) = upload_aborted;
    of(Tag::retain_planned) = retain_planned;
    of(Tag::readers_drained) = readers_drained;
    of(Tag::tables_applied) = tables_applied;
    of(Tag::all_ranks_applied) = all_ranks_applied;
    of(Tag::owners_committed) = owners_committed;
    of(Tag::blocks_retired) = retired;
    of(Tag::retain_acknowledged) = retain_acknowledged;
    of(Tag::retain_aborted) = retain_aborted;
    of(Tag::tail_opened) = tail_opened;
    of(Tag::tail_sealed) = tail_sealed;
    of(Tag::store_started) = store_started;
    of(Tag::rank_stored) = rank_stored;
    of(Tag::store_completed) = store_completed;
    of(Tag::store_aborted) = store_aborted;
    of(Tag::block_lost) = block_lost;
    of(Tag::tail_dropped) = tail_dropped;
    of(Tag::fence_opened) = fence_opened;
    of(Tag::sources_registered) = sources_registered;
    of(Tag::transfer_settled) = transfer_settled;
    of(Tag::prefix_published) = prefix_published;
    of(Tag::prefix_attached) = prefix_attached;
    of(Tag::ack_ignored) = noted;
    of(Tag::ack_refused) = noted;
    of(Tag::plan_refused) = noted;
    of(Tag::command_refused) = noted;
    return by_tag;
}();

// Facts that a request may have beside those of a life that is under way.
bool of_the_living(Tag tag) {
    return tag != Tag::request_opened && tag != Tag::ack_ignored && tag != Tag::ack_refused &&
           tag != Tag::command_refused;
}

// Every phase as the event leaves it.
struct Phases {
    Life life;
    Phase upload, retain, store;
};

template <class State>
bool advance(const Table<State>& table, Tag tag, State& phase) {
    if (!table.knows(tag)) {
        return true;
    }
    if (!table.takes(phase, tag)) {
        return false;
    }
    phase = table.next(phase, tag);
    return true;
}

bool advance(Tag tag, const Fact& fact, Phases& phases) {
    // Only the view that the retain lane replaced moves that lane.
    const bool moves_retain = tag != Tag::blocks_retired || fact.cause == RetireCause::retain;
    return advance(life_table, tag, phases.life) && advance(upload_table, tag, phases.upload) &&
           (!moves_retain || advance(retain_table, tag, phases.retain)) && advance(store_table, tag, phases.store);
}

// ---- joint rules: what binds the machines to each other. See kvsweep.ledger.joint.

bool on_planned_view(const Pool& pool, const Request& request, const Lane& lane) {
    return request.life == Life::running && lane.open &&
           lane.open->operation.pool_generation == pool.pool_generation &&
           lane.open->operation.map_revision == request.map_revision;
}

bool turned_back(const Request& request) {
    const Phase upload = request.upload.phase;
    return upload != Phase::selected && upload != Phase::planned && upload != Phase::leased &&
           !upload_table.takes(upload, Tag::upload_aborted) &&
           !retain_table.takes(request.retain.phase, Tag::retain_aborted);
}

bool nothing_held(const Request& request) {
    return !request.upload.open && !request.retain.open && !request.store.open && request.settling.empty() &&
           request.views.empty() && request.tail.empty() && request.fences.empty() && request.held.empty();
}

bool jointly_legal(const Pool& pool, const Request& request, Tag tag) {
    switch (tag) {
        case Tag::blocks_selected:
            return request.life == Life::running && request.retain.phase == Phase::idle;
        case Tag::retain_planned:
            return request.life == Life::running && request.upload.phase == Phase::idle;
        case Tag::residency_committed:
            return on_planned_view(pool, request, request.upload);
        case Tag::owners_committed:
            return on_planned_view(pool, request, request.retain);
        case Tag::request_preempted:
            return turned_back(request);
        case Tag::request_finished:
            return turned_back(request) && !store_table.takes(request.store.phase, Tag::store_aborted);
        case Tag::request_closed:
            return nothing_held(request);
        case Tag::tail_opened:
        case Tag::prefix_published:
        case Tag::prefix_attached:
            return request.life == Life::running;
        case Tag::store_started:
        case Tag::sources_registered:
            return request.life == Life::running || request.life == Life::preempted;
        default:
            return true;
    }
}

// One fact of a request that the key names, at its next number.
bool reduce(Machine& machine, Request& request, const Fact& fact) {
    const Tag tag = static_cast<Tag>(fact.tag);
    Phases phases{request.life, request.upload.phase, request.retain.phase, request.store.phase};
    if (!advance(tag, fact, phases)) {
        return false;
    }
    const bool living = request.life != Life::fresh && request.life != Life::closed;
    if ((!living && of_the_living(tag)) || !jointly_legal(machine.pool, request, tag) ||
        !reducers[static_cast<std::size_t>(fact.tag)](machine, request, fact)) {
        return false;
    }
    request.seq = fact.seq + 1;
    request.life = phases.life;
    request.upload.phase = phases.upload;
    request.retain.phase = phases.retain;
    request.store.phase = phases.store;
    return true;
}

bool may_begin(const Machine& machine, const Request* earlier, const Fact& fact) {
    // A closed life holds nothing; one that does, in a snapshot of who knows what, is left to the reference.
    if (earlier != nullptr && (earlier->life != Life::closed || !earlier->held.empty())) {
        return false;
    }
    const std::int64_t last = earlier != nullptr ? earlier->key.epoch : machine.pool.epoch_floor;
    return fact.seq == 0 && fact.request_epoch - 1 == last;
}

bool evict(Machine& machine, const Fact& fact) {
    std::vector<Prefix>& prefixes = machine.pool.prefixes;
    const auto found = std::find_if(prefixes.begin(), prefixes.end(),
                                    [&fact](const Prefix& prefix) { return prefix.number == fact.number; });
    if (found == prefixes.end() || !machine.relation.evict(fact.number, fact.freed)) {
        return false;
    }
    prefixes.erase(found);
    return true;
}

}  // namespace

bool Machine::apply(const Fact& fact) {
    if (!pool.configured() || !countable(fact.seq)) {
        return false;
    }
    if (fact.request_id == pool_stream && fact.request_epoch == 0) {
        return apply_pool(fact);
    }
    if (static_cast<std::size_t>(fact.tag) >= tags || reducers[static_cast<std::size_t>(fact.tag)] == nullptr) {
        return false;
    }
    Request* known = find(fact.request_id);
    if (static_cast<Tag>(fact.tag) == Tag::request_opened) {
        if (!may_begin(*this, known, fact)) {
            return false;
        }
        auto life = std::make_unique<Request>();
        life->key = {std::string(fact.request_id), fact.request_epoch};
        if (!reduce(*this, *life, fact)) {
            return false;
        }
        add(std::move(life));
        return true;
    }
    if (known == nullptr || known->key.epoch != fact.request_epoch || known->seq != fact.seq) {
        return false;
    }
    return reduce(*this, *known, fact);
}

bool Machine::apply_pool(const Fact& fact) {
    if (fact.seq != pool.seq) {
        return false;
    }
    switch (static_cast<Tag>(fact.tag)) {
        case Tag::digest_recorded:
        case Tag::handshake_agreed:
        case Tag::handshake_refused:
        case Tag::coordinator_restarted:
        case Tag::ack_ignored:
        case Tag::ack_refused:
        case Tag::command_refused:
            break;  // recorded, and nothing else: a position below 0 was not read
        case Tag::prefix_evicted:
            if (!evict(*this, fact)) {
                return false;
            }
            break;
        default:
            return false;
    }
    pool.seq = fact.seq + 1;
    return true;
}

Request* Machine::find(std::string_view id) {
    const auto found = by_id_.find(id);
    return found == by_id_.end() ? nullptr : found->second;
}

Request& Machine::add(std::unique_ptr<Request> request) {
    Request& added = *request;
    const auto known = by_id_.find(added.key.id);
    if (known == by_id_.end()) {
        requests.push_back(std::move(request));
    } else {
        const Request* earlier = known->second;
        by_id_.erase(known);  // its key is a part of the earlier life
        *std::find_if(requests.begin(), requests.end(), [earlier](const auto& one) { return one.get() == earlier; }) =
            std::move(request);
    }
    by_id_.emplace(added.key.id, &added);
    return added;
}

void Machine::forget(std::string_view id) {
    const auto known = by_id_.find(id);
    const Request* forgotten = known->second;
    by_id_.erase(known);
    requests.erase(std::find_if(requests.begin(), requests.end(),
                                [forgotten](const auto& one) { return one.get() == forgotten; }));
}

}  // namespace kvsweep::fold
