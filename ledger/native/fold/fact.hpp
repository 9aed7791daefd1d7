// One event as it stands in a body: numbers, and spans into the body, which outlives it. See kvsweep.ledger.events.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "buffer.hpp"
#include "state.hpp"

namespace kvsweep::fold {

enum class Tag : std::uint8_t {
    request_opened = 1, request_preempted, request_resumed, request_finished, request_closed,
    blocks_selected = 10, upload_planned, blocks_leased, transfer_started, rank_transferred, transfer_completed,
    residency_committed, keep_map_published, upload_acknowledged, upload_aborted,
    retain_planned = 20, readers_drained, tables_applied, all_ranks_applied, owners_committed, blocks_retired,
    retain_acknowledged, retain_aborted,
    tail_opened = 30, tail_sealed, store_started, rank_stored, store_completed, store_aborted, block_lost, tail_dropped,
    fence_opened, sources_registered,
    transfer_settled = 40, ack_ignored, ack_refused, plan_refused, command_refused,
    // Facts of the pool. Which of them the fold takes by itself stands in fold.hpp.
    run_configured = 50, rank_lost, rank_restarted, producer_restarted, digest_recorded,
    prefix_published = 60, prefix_attached, prefix_evicted, handshake_agreed, handshake_refused, coordinator_restarted,
};

// Fields by their names in kvsweep.ledger.events; those that the event has not keep what an earlier one left.
struct Fact {
    int tag = 0;
    std::string_view body;  // all of it
    std::string_view request_id;
    std::int64_t request_epoch = 0, seq = 0;

    // operation
    std::string_view operation_request_id;
    std::int64_t operation_request_epoch = 0;
    Operation operation;

    std::int64_t rank = 0, process_epoch = 0, pool_generation = 0, generation = 0, row = 0, rows = 0;
    std::int64_t selection_revision = 0, whole_blocks = 0, effective_budget_blocks = 0, common_new_slots = 0;
    std::int64_t metadata_bytes = 0, group = 0, fence = 0, number = 0, position = 0;
    std::int64_t one_logical = 0;  // `logical` where it is one number
    PlanKind kind = PlanKind::diff;
    SourceKind source_kind = SourceKind::source_only;
    RetainMode mode = RetainMode::layer;
    Attention attention = Attention::same;
    RetireCause cause = RetireCause::upload;
    Outcome outcome = Outcome::completed;
    std::string_view digest, idempotency_key, reason, key;
    RowsSpan logical, source, destination, adopted, keep, moved_from, moved_to;
    Span logical_list, source_list;  // `logical` and `source` where they are flat lists
    Span copies, valid_tokens, physical_by_group;
    std::vector<Span> reserved, freed;  // a list a group
    RankEpochs ranks;
    std::vector<Ids>* found = nullptr;  // who decides asks what becomes free: put here, and `freed` is not looked at
};

// Reads one body. False where it is not, byte for byte, what kvsweep.ledger.store.codec would take: then that says why.
bool read_fact(std::string_view body, Fact& fact);

// The same for the first of several bodies: its bytes, 0 where it is not.
std::size_t read_front(std::string_view bytes, Fact& fact);

}  // namespace kvsweep::fold
