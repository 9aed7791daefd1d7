// Small steps that the reducers share. What each means stands in kvsweep.ledger.reducers.shared.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string_view>

#include "fact.hpp"
#include "fold.hpp"
#include "state.hpp"

namespace kvsweep::fold {

// ---- checks: they change nothing

// Whether a number can still be counted up.
inline bool countable(std::int64_t number) { return number < std::numeric_limits<std::int64_t>::max(); }

// The fact's operation is the next new one of this request, planned on what is.
bool begins(const Machine& machine, const Request& request, const Fact& fact);

// Generations are never reused, not even after an abort.
inline bool next_generation(const Request& request, std::int64_t generation) {
    return generation == request.next_generation && countable(generation);
}

// The fact's operation is this one of the request.
bool names(const Request& request, const Fact& fact, const Operation& operation);

// The lane's open operation, which the fact must name exactly; null where it does not.
OpenOperation* open_in(Request& request, LaneName lane, const Fact& fact);

// Every rank with its process epoch.
bool expected_ranks(const Machine& machine, const RankEpochs& ranks);

// Ranks are collected as a set, never counted: this one is of the set and has not ended yet.
bool awaited(const OpenOperation& open, std::int64_t rank, std::int64_t process_epoch);

// Every distinct rank of the set has completed.
bool all_reported(const OpenOperation& open);

// A table row is a resource like a block: whoever writes it must be its only holder.
bool free_row(const Machine& machine, const Request& request, std::int64_t row);

// Areas of clean tail blocks, row for row; none where one is not clean or a layer is not active.
std::optional<Rows> adopted_areas(const Machine& machine, const Request& request, const RowsSpan& adopted);

// Keep slots are in resident order and name slots that exist.
bool slots_exist(const RowsSpan& keep, const View* view);

// ---- changes

// Takes the number of an operation that `begins`.
inline void take_number(Machine& machine) { ++machine.pool.next_operation_id; }

// A rank that was `awaited` has ended.
void report(OpenOperation& open, std::int64_t rank, Outcome outcome);

ClosedOperation closed_record(const OpenOperation& open);

// Idempotency keys, newest last, bounded. Without a key there is nothing to remember.
void remember(Request& request, std::string_view key, std::string_view what, const Operation& operation);

// Marks the current view with what takes its place.
void replace_view(Request& request, RetireCause cause);

// Adds the new view's pairs, drops those of the operation, switches. The replaced view stays until it is retired.
void commit_view(Machine& machine, Request& request, const OpenOperation& open);

}  // namespace kvsweep::fold
