// Reports that are applied: everything the table of kvsweep.ledger.acks asks holds. All others are Python's to judge.
#include <algorithm>
#include <cmath>

#include "core.hpp"

namespace kvsweep::fold {
namespace {

// The request that the report's operation is of, with that operation; null where it does not run.
Request* reported(Turn& turn, PyObject* named, Operation& operation) {
    if (!turn.words.read_operation(named, operation)) {
        return nullptr;
    }
    turn.known(operation, named);
    return turn.running(turn.words.operation.get(named, field::operation::request));
}

bool opened(const Lane& lane, const Operation& operation) {
    return lane.open && lane.open->operation == operation;
}

// Whether the rank's own process says it, the one that lives now and that the plan named, for the first time.
bool heard_first(const Machine& machine, const OpenOperation& open, std::int64_t rank, std::int64_t process_epoch) {
    const Pair said{rank, process_epoch};
    const auto among = [&said](const RankEpochs& ranks) { return std::find(ranks.begin(), ranks.end(), said) != ranks.end(); };
    const std::vector<std::int64_t>& lost = machine.pool.lost;
    return among(machine.pool.ranks) && among(open.ranks) && std::find(lost.begin(), lost.end(), rank) == lost.end() &&
           std::none_of(open.outcomes.begin(), open.outcomes.end(), [rank](const auto& one) { return one.first == rank; });
}


// What the report measured is something that a fact can say.
bool sayable(const Words& words, PyObject* message) {
    std::int64_t unused = 0;
    for (const auto count : {field::done::h2d_bytes, field::done::unpack_bytes, field::done::d2h_bytes,
                             field::done::resident_moved_bytes, field::done::table_updates}) {
        if (!read_count(words.done.get(message, count), unused)) {
            return false;
        }
    }
    PyObject* wait_s = words.done.get(message, field::done::wait_s);
    return PyFloat_CheckExact(wait_s) && std::isfinite(PyFloat_AS_DOUBLE(wait_s)) && PyFloat_AS_DOUBLE(wait_s) >= 0;
}

}  // namespace

nb::object done(Turn& turn, PyObject* message) {
    const Words& words = turn.words;
    const auto said = [&](std::size_t place) { return words.done.get(message, place); };
    Operation operation;
    std::int64_t rank = 0, process_epoch = 0;
    Request* request = reported(turn, said(field::done::operation), operation);
    if (request == nullptr || !read_count(said(field::done::rank), rank) ||
        !read_count(said(field::done::process_epoch), process_epoch) || !sayable(words, message) ||
        !same_text(said(field::done::outcome), words.completed)) {
        return {};
    }
    const bool upload = opened(request->upload, operation), retain = opened(request->retain, operation);
    if (!upload && !retain && !opened(request->store, operation)) {
        return {};
    }
    const Lane& lane = upload ? request->upload : retain ? request->retain : request->store;
    if (!heard_first(turn.machine, *lane.open, rank, process_epoch)) {
        return {};
    }
    Fact& fact = turn.fact(upload ? Tag::rank_transferred : retain ? Tag::tables_applied : Tag::rank_stored, *request, operation);
    fact.rank = rank;
    fact.process_epoch = process_epoch;
    if (!turn.apply()) {
        return {};
    }
    const nb::object measured = words.measured.make({said(field::done::wait_s)});
    PyObject *named = said(field::done::operation), *who = said(field::done::rank);
    PyObject *process = said(field::done::process_epoch), *updates = said(field::done::table_updates);
    if (upload) {
        turn.say(words.rank_transferred, {named, who, process, said(field::done::h2d_bytes), said(field::done::unpack_bytes),
                                          updates, measured.ptr()});
    } else if (retain) {
        turn.say(words.tables_applied,
                 {named, who, process, said(field::done::resident_moved_bytes), updates, measured.ptr()});
    } else {
        turn.say(words.rank_stored, {named, who, process, said(field::done::d2h_bytes), measured.ptr()});
    }
    return turn.finish(named);
}

nb::object acknowledged(Turn& turn, PyObject* message) {
    const Words& words = turn.words;
    const auto said = [&](std::size_t place) { return words.acknowledged.get(message, place); };
    Operation operation;
    std::int64_t process_epoch = 0, gathered = 0;
    PyObject *named = said(field::acknowledged::operation), *process = said(field::acknowledged::process_epoch);
    Request* request = reported(turn, named, operation);
    if (request == nullptr || !read_count(process, process_epoch) || process_epoch != turn.machine.pool.producer_epoch ||
        !read_count(said(field::acknowledged::cpu_gather_bytes), gathered)) {
        return {};
    }
    const Phase phase = request->upload.phase;
    const bool upload =
        opened(request->upload, operation) && (phase == Phase::published || phase == Phase::committed);
    if (!upload && !(opened(request->retain, operation) && request->retain.phase == Phase::retired)) {
        return {};
    }
    Fact& fact = turn.fact(upload ? Tag::upload_acknowledged : Tag::retain_acknowledged, *request, operation);
    fact.process_epoch = process_epoch;
    if (!turn.apply()) {
        return {};
    }
    if (upload) {
        turn.say(words.upload_acknowledged, {named, process, said(field::acknowledged::cpu_gather_bytes)});
    } else {
        turn.say(words.retain_acknowledged, {named, process});
    }
    return turn.finish(named);
}

}  // namespace kvsweep::fold
