#include "vocabulary.hpp"

#include <cstddef>

#include "wire.hpp"
#include "words.hpp"

namespace kvsweep::fold {
namespace {

template <std::size_t count>
std::vector<nb::object> texts(const std::string_view (&words)[count]) {
    std::vector<nb::object> made;
    for (const std::string_view word : words) {
        PyObject* one = text(word).release().ptr();
        PyUnicode_InternInPlace(&one);
        made.push_back(nb::steal(one));
    }
    return made;
}

}  // namespace

Words::Words(nb::handle types)
    : key(types, "RequestKey", {"request_id", "request_epoch"}),
      operation(types, "Operation", {"request", "operation_id", "pool_generation", "map_revision"}),
      rows(types, "Rows", {"layer_bytes", "row_ptr_bytes", "id_bytes"}),

      done(types, "Done",
           {"operation", "rank", "process_epoch", "outcome", "h2d_bytes", "unpack_bytes", "d2h_bytes",
            "resident_moved_bytes", "table_updates", "wait_s"}),
      acknowledged(types, "Acknowledged", {"operation", "process_epoch", "cpu_gather_bytes"}),
      select(types, "Select", {"selection", "idempotency_key", "adopt"}),
      selection(types, "BlockSelection",
                {"request", "selection_revision", "block_size", "logical_blocks_by_layer", "ranked_tail_by_layer",
                 "group_by_layer", "whole_blocks", "effective_budget_blocks", "tokens_by_layer"}),
      retain(types, "Retain",
             {"request", "keep", "adopt", "map_revision", "selection_revision", "idempotency_key", "pack"}),
      reserved(types, "Reserved", {"cause", "device", "cpu_full", "cpu_copy", "free", "claimed"}),

      blocks_selected(types, "BlocksSelected",
                      {"request", "seq", "selection_revision", "digest", "whole_blocks", "effective_budget_blocks",
                       "idempotency_key"}),
      upload_planned(types, "UploadPlanned",
                     {"request", "seq", "operation", "generation", "kind", "source_kind", "logical"}),
      blocks_leased(types, "BlocksLeased",
                    {"request", "seq", "operation", "source", "destination", "adopted", "row", "reserved", "copies"}),
      transfer_started(types, "TransferStarted", {"request", "seq", "operation", "ranks", "metadata_bytes"}),
      rank_transferred(types, "RankTransferred",
                       {"request", "seq", "operation", "rank", "process_epoch", "h2d_bytes", "unpack_bytes",
                        "table_updates", "measured"}),
      transfer_completed(types, "TransferCompleted", {"request", "seq", "operation"}),
      residency_committed(types, "ResidencyCommitted", {"request", "seq", "operation", "generation"}),
      keep_map_published(types, "KeepMapPublished",
                         {"request", "seq", "operation", "selection_revision", "keep", "metadata_bytes"}),
      upload_acknowledged(types, "UploadAcknowledged",
                          {"request", "seq", "operation", "process_epoch", "cpu_gather_bytes"}),
      retain_planned(types, "RetainPlanned",
                     {"request", "seq", "operation", "generation", "mode", "attention", "keep", "adopted", "moved_from",
                      "moved_to", "row", "reserved", "selection_revision", "idempotency_key", "digest"}),
      readers_drained(types, "ReadersDrained", {"request", "seq", "operation", "row", "ranks", "metadata_bytes"}),
      tables_applied(types, "TablesApplied",
                     {"request", "seq", "operation", "rank", "process_epoch", "resident_moved_bytes", "table_updates",
                      "measured"}),
      all_ranks_applied(types, "AllRanksApplied", {"request", "seq", "operation"}),
      owners_committed(types, "OwnersCommitted", {"request", "seq", "operation", "generation"}),
      blocks_retired(types, "BlocksRetired", {"request", "seq", "generation", "cause", "freed"}),
      retain_acknowledged(types, "RetainAcknowledged", {"request", "seq", "operation", "process_epoch"}),
      rank_stored(types, "RankStored", {"request", "seq", "operation", "rank", "process_epoch", "d2h_bytes", "measured"}),
      store_completed(types, "StoreCompleted", {"request", "seq", "operation"}),
      tail_dropped(types, "TailDropped", {"request", "seq", "group", "logical", "fence"}),
      fence_opened(types, "FenceOpened", {"request", "seq", "fence", "freed"}),
      measured(types, "Measured", {"wait_s"}),

      reserve(types, "Reserve", {"cause", "device", "cpu_full", "cpu_copy"}),
      release(types, "Release", {"device", "cpu"}),
      gather(types, "Gather", {"operation", "source", "destination"}),
      transfer(types, "Transfer",
               {"operation", "ranks", "generation", "row", "source_kind", "source", "destination", "table", "floor"}),
      move_blocks(types, "MoveBlocks",
                  {"operation", "ranks", "generation", "row", "mode", "source", "destination", "table", "floor"}),
      publish_keep_map(types, "PublishKeepMap", {"operation", "selection_revision", "keep"}),
      acknowledge(types, "Acknowledge", {"operation", "generation"}),
      turn(types, "Turn", {"outcome", "operation", "events", "effects", "holds_blocks"}),
      handed_out(types, "HandedOut", {"generation", "row", "tail"}),

      state(types, "State", {"pool", "requests", "ownership"}),
      pool(types, "PoolState",
           {"seq", "run", "pool_generation", "ranks", "lost", "producer_epoch", "next_operation_id", "closed",
            "epoch_floor", "prefixes", "next_prefix"}),
      request(types, "RequestState",
              {"key", "seq", "life", "rows", "map_revision", "selection_revision", "selected", "next_generation",
               "next_fence", "current", "views", "upload", "retain", "store", "settling", "tail", "fences", "source",
               "stale", "whole_blocks", "keep_map", "commands"}),
      lane(types, "Lane", {"phase", "open", "closed"}),
      open(types, "OpenOperation",
           {"operation", "lane", "generation", "ranks", "outcomes", "kind", "mode", "attention", "logical",
            "destination", "adopted", "table", "table_logical", "row", "replaced", "stored", "stored_to"}),
      closed(types, "ClosedOperation", {"operation", "outcomes"}),
      view(types, "View", {"generation", "logical", "physical", "row", "replaced_by"}),
      tail_block(types, "TailBlock", {"logical", "physical", "phase"}),
      keep_map(types, "KeepMap", {"selection_revision", "map_revision", "keep"}),
      remembered(types, "Remembered", {"key", "what", "operation", "aborted"}),
      holder(types, "Holder", {"kind", "number", "group"}),
      holding(types, "Holding", {"areas", "sources", "rows"}),
      ownership(types, "Ownership", {"held", "own", "shared", "shared_sources"}),
      holders(nb::borrow(types["Holders"])),

      accepted(text("accepted")),
      asks(text("reserve")),
      completed(text("completed")),
      nothing(owned(PyBytes_FromStringAndSize(nullptr, 0))),
      reads(owned(PyUnicode_InternFromString("reads"))),
      fence_is_quiet(owned(PyUnicode_InternFromString("fence_is_quiet"))),
      writes(owned(PyUnicode_InternFromString("writes"))),
      lives_(texts(life_words)),
      phases_(texts(phase_words)),
      lanes_(texts(lane_words)),
      plans_(texts(plan_words)),
      sources_(texts(source_words)),
      modes_(texts(mode_words)),
      attentions_(texts(attention_words)),
      outcomes_(texts(outcome_words)),
      causes_(texts(cause_words)),
      tails_(texts(tail_words)),
      kinds_(texts(holder_words)) {}

nb::object Words::of(const Operation& value, PyObject* request_key, PyObject* known) const {
    const nb::object id = number(value.id), generation = number(value.pool_generation);
    const nb::object revision = number(value.map_revision);
    return operation.like(known, {request_key, id.ptr(), generation.ptr(), revision.ptr()});
}

nb::object Words::of(const Rows& value, PyObject* known) const {
    const nb::object layers = owned(value.layers.bytes()), row_ptr = owned(value.row_ptr.bytes());
    const nb::object ids = owned(value.ids.bytes());
    return rows.like(known, {layers.ptr(), row_ptr.ptr(), ids.ptr()});
}

nb::object Words::of(const RankEpochs& value) const {
    TupleOf made(value.size());
    for (const Pair& pair : value) {
        TupleOf one(2);
        one.add(number(pair.first));
        one.add(number(pair.second));
        made.add(std::move(one).done());
    }
    return std::move(made).done();
}

nb::object Words::of(const std::vector<Ids>& by_group) const {
    TupleOf made(by_group.size());
    for (const Ids& ids : by_group) {
        made.add(owned(ids.bytes()));
    }
    return std::move(made).done();
}

nb::object Words::nothing_by_group(std::size_t groups) const {
    TupleOf made(groups);
    for (std::size_t group = 0; group < groups; ++group) {
        made.add(nothing);
    }
    return std::move(made).done();
}

bool Words::read_rows(PyObject* object, Rows& value) const {
    if (!rows.is(object)) {
        return false;
    }
    PyObject* parts[] = {rows.get(object, field::rows::layer_bytes), rows.get(object, field::rows::row_ptr_bytes),
                         rows.get(object, field::rows::id_bytes)};
    for (PyObject* part : parts) {
        if (!PyBytes_CheckExact(part) || PyBytes_GET_SIZE(part) % 4 != 0) {
            return false;
        }
    }
    value = Rows(Ids::of(parts[0]), Ids::of(parts[1]), Ids::of(parts[2]));
    return fit(value.span());
}

bool Words::read_key(PyObject* object, std::string_view& id, std::int64_t& epoch) const {
    return key.is(object) && read(key.get(object, field::key::request_id), id) &&
           read(key.get(object, field::key::request_epoch), epoch);
}

bool Words::read_operation(PyObject* object, Operation& value) const {
    return operation.is(object) && read(operation.get(object, field::operation::operation_id), value.id) &&
           read(operation.get(object, field::operation::pool_generation), value.pool_generation) &&
           read(operation.get(object, field::operation::map_revision), value.map_revision);
}

}  // namespace kvsweep::fold
