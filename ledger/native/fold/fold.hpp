// The one door: `apply` checks key, table, joint rules and identities, then reduces. See kvsweep.ledger.fold, which is
// the reference, says why a fact is refused, and takes the facts that are not taken here.
#pragma once

#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <memory>
#include <vector>

#include "fact.hpp"
#include "relation.hpp"
#include "state.hpp"

namespace kvsweep::fold {

class Machine {
  public:
    Machine() = default;
    Machine(const Machine&) = delete;  // its parts point into it: it stays where it is
    Machine& operator=(const Machine&) = delete;

    Pool pool;
    Relation relation;
    std::vector<std::unique_ptr<Request>> requests;  // in the order in which their ids were first seen

    // True: the fact was legal and is part of the state now. False: the state is as it was, and the reference has to be
    // asked, because the fact is illegal or of a kind that is left to it. Every reducer checks first, then changes.
    bool apply(const Fact& fact);

    Request* find(std::string_view id);
    Request& add(std::unique_ptr<Request> request);  // one more, or a new life in the place of the earlier one
    void forget(std::string_view id);  // a closed request, oldest first

  private:
    bool apply_pool(const Fact& fact);
    std::unordered_map<std::string_view, Request*> by_id_;
};

// ---- reducers. `request.seq` and phases are moved by the door once the reducer has said yes; the reducer sees the
// phases as they were before. Each returns false, having changed nothing, where the reference would refuse.

bool opened(Machine& machine, Request& request, const Fact& fact);
bool preempted(Machine& machine, Request& request, const Fact& fact);
bool resumed(Machine& machine, Request& request, const Fact& fact);
bool finished(Machine& machine, Request& request, const Fact& fact);
bool closed(Machine& machine, Request& request, const Fact& fact);
bool retired(Machine& machine, Request& request, const Fact& fact);

bool selected(Machine& machine, Request& request, const Fact& fact);
bool upload_planned(Machine& machine, Request& request, const Fact& fact);
bool leased(Machine& machine, Request& request, const Fact& fact);
bool transfer_started(Machine& machine, Request& request, const Fact& fact);
bool transferred(Machine& machine, Request& request, const Fact& fact);
bool transfer_completed(Machine& machine, Request& request, const Fact& fact);
bool residency_committed(Machine& machine, Request& request, const Fact& fact);
bool keep_map_published(Machine& machine, Request& request, const Fact& fact);
bool upload_acknowledged(Machine& machine, Request& request, const Fact& fact);

bool retain_planned(Machine& machine, Request& request, const Fact& fact);
bool readers_drained(Machine& machine, Request& request, const Fact& fact);
bool tables_applied(Machine& machine, Request& request, const Fact& fact);
bool all_ranks_applied(Machine& machine, Request& request, const Fact& fact);
bool owners_committed(Machine& machine, Request& request, const Fact& fact);
bool retain_acknowledged(Machine& machine, Request& request, const Fact& fact);

bool upload_aborted(Machine& machine, Request& request, const Fact& fact);
bool retain_aborted(Machine& machine, Request& request, const Fact& fact);
bool store_aborted(Machine& machine, Request& request, const Fact& fact);
bool transfer_settled(Machine& machine, Request& request, const Fact& fact);

bool tail_opened(Machine& machine, Request& request, const Fact& fact);
bool tail_sealed(Machine& machine, Request& request, const Fact& fact);
bool store_started(Machine& machine, Request& request, const Fact& fact);
bool rank_stored(Machine& machine, Request& request, const Fact& fact);
bool store_completed(Machine& machine, Request& request, const Fact& fact);
bool block_lost(Machine& machine, Request& request, const Fact& fact);
bool tail_dropped(Machine& machine, Request& request, const Fact& fact);
bool fence_opened(Machine& machine, Request& request, const Fact& fact);
bool sources_registered(Machine& machine, Request& request, const Fact& fact);

bool prefix_published(Machine& machine, Request& request, const Fact& fact);
bool prefix_attached(Machine& machine, Request& request, const Fact& fact);

}  // namespace kvsweep::fold
