// The Python types and texts that ordinary words are read from and answered with. Each `Kind` names its fields in the
// order in which they are read and given; see kvsweep.ledger.messages, events and state.
#pragma once

#include <string>

#include "kind.hpp"
#include "state.hpp"

namespace kvsweep::fold {

// Fields of what is read, by their places in their `Kind`.
namespace field {
namespace key { enum : std::size_t { request_id, request_epoch }; }
namespace operation { enum : std::size_t { request, operation_id, pool_generation, map_revision }; }
namespace rows { enum : std::size_t { layer_bytes, row_ptr_bytes, id_bytes }; }
namespace done {
enum : std::size_t {
    operation, rank, process_epoch, outcome, h2d_bytes, unpack_bytes, d2h_bytes, resident_moved_bytes, table_updates, wait_s
};
}
namespace acknowledged { enum : std::size_t { operation, process_epoch, cpu_gather_bytes }; }
namespace select { enum : std::size_t { selection, idempotency_key, adopt }; }
namespace selection {
enum : std::size_t {
    request, selection_revision, block_size, logical_blocks_by_layer, ranked_tail_by_layer, group_by_layer, whole_blocks,
    effective_budget_blocks, tokens_by_layer
};
}
namespace retain {
enum : std::size_t { request, keep, adopt, map_revision, selection_revision, idempotency_key, pack };
}
namespace reserved { enum : std::size_t { cause, device, cpu_full, cpu_copy, free, claimed }; }
}  // namespace field

struct Words {
    // `types` gives each type by its name.
    explicit Words(nb::handle types);

    // ---- identities and rows
    Kind key, operation, rows;

    // ---- messages
    Kind done, acknowledged, select, selection, retain, reserved;

    // ---- facts: after `request` and `seq`, which come first
    Kind blocks_selected, upload_planned, blocks_leased, transfer_started, rank_transferred, transfer_completed;
    Kind residency_committed, keep_map_published, upload_acknowledged;
    Kind retain_planned, readers_drained, tables_applied, all_ranks_applied, owners_committed, blocks_retired;
    Kind retain_acknowledged, rank_stored, store_completed, tail_dropped, fence_opened, measured;

    // ---- effects and the answer
    Kind reserve, release, gather, transfer, move_blocks, publish_keep_map, acknowledge, turn, handed_out;

    // ---- the state
    Kind state, pool, request, lane, open, closed, view, tail_block, keep_map, remembered, holder, holding, ownership;
    nb::object holders;  // a dict of its own type

    // ---- texts
    nb::object accepted, asks, completed, nothing;     // nothing: no bytes
    nb::object reads, fence_is_quiet, writes;          // methods of OpenSteps
    nb::object of(Life value) const { return lives_[static_cast<std::size_t>(value)]; }
    nb::object of(Phase value) const { return phases_[static_cast<std::size_t>(value)]; }
    nb::object of(LaneName value) const { return lanes_[static_cast<std::size_t>(value)]; }
    nb::object of(PlanKind value) const { return plans_[static_cast<std::size_t>(value)]; }
    nb::object of(SourceKind value) const { return sources_[static_cast<std::size_t>(value)]; }
    nb::object of(RetainMode value) const { return modes_[static_cast<std::size_t>(value)]; }
    nb::object of(Attention value) const { return attentions_[static_cast<std::size_t>(value)]; }
    nb::object of(Outcome value) const { return outcomes_[static_cast<std::size_t>(value)]; }
    nb::object of(RetireCause value) const { return causes_[static_cast<std::size_t>(value)]; }
    nb::object of(TailPhase value) const { return tails_[static_cast<std::size_t>(value)]; }
    nb::object of(HolderKind value) const { return kinds_[static_cast<std::size_t>(value)]; }

    // ---- what is made of several
    nb::object of(const Operation& value, PyObject* request_key, PyObject* known = nullptr) const;
    nb::object of(const Rows& value, PyObject* known = nullptr) const;  // the known one where it has these very bytes
    nb::object of(const RankEpochs& value) const;
    nb::object of(const std::vector<Ids>& by_group) const;
    nb::object nothing_by_group(std::size_t groups) const;

    // ---- what is read: false where it is not plainly of its type
    bool read_rows(PyObject* object, Rows& value) const;  // shares the bytes
    bool read_key(PyObject* object, std::string_view& id, std::int64_t& epoch) const;
    bool read_operation(PyObject* object, Operation& value) const;  // all but its request

  private:
    using Texts = std::vector<nb::object>;
    Texts lives_, phases_, lanes_, plans_, sources_, modes_, attentions_, outcomes_, causes_, tails_, kinds_;
};

inline bool same_text(PyObject* text, const nb::object& word) {
    return text == word.ptr() || (PyUnicode_CheckExact(text) && PyUnicode_Compare(text, word.ptr()) == 0);
}

}  // namespace kvsweep::fold
