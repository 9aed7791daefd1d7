// Select, where every layer has its own table: what the view lacks is uploaded, or a keep map is published. See
// kvsweep.runtime.core.upload.
#include "change.hpp"
#include "decide.hpp"
#include "named.hpp"
#include "place.hpp"
#include "selection.hpp"
#include "wire.hpp"

namespace kvsweep::fold {

// What one selection comes to on one state: between asking for room and getting it nothing changes, so it is not made
// twice.
struct Draft {
    nb::object message;
    std::uint64_t version;
    Rows upload, adopted;
    Ids sources;
    std::int64_t row, copies;
    Placement placement;
};

namespace {

// The command as Python has it, and what it says.
struct Command {
    PyObject* message = nullptr;
    PyObject* told = nullptr;  // its selection
    Selection selection;
    Rows wanted, tail;  // what the selection looks at
    Ids groups;
    std::string_view idempotency_key;
};

bool read_command(const Words& words, PyObject* message, Command& command) {
    namespace said = field::selection;
    PyObject* const told = words.select.get(message, field::select::selection);
    if (!words.selection.is(told) || words.selection.get(told, said::tokens_by_layer) != Py_None) {
        return false;
    }
    command.message = message;
    command.told = told;
    Selection& selection = command.selection;
    const auto get = [&words, told](std::size_t field) { return words.selection.get(told, field); };
    if (!read(words.select.get(message, field::select::idempotency_key), command.idempotency_key) ||
        !read_count(get(said::selection_revision), selection.revision) ||
        !read_count(get(said::block_size), selection.block_size) ||
        !read_count(get(said::whole_blocks), selection.whole_blocks) ||
        !read_count(get(said::effective_budget_blocks), selection.budget_blocks) ||
        !words.read_rows(get(said::logical_blocks_by_layer), command.wanted) ||
        !words.read_rows(get(said::ranked_tail_by_layer), command.tail) ||
        !read_ids(get(said::group_by_layer), command.groups)) {
        return false;
    }
    selection.wanted = command.wanted.span();
    selection.tail = command.tail.span();
    selection.groups = command.groups.span();
    return true;
}

bool in_order(const Turn& turn, const Request& request, const Command& command) {
    const Selection& selection = command.selection;
    const View* view = request.view();
    return turn.core.options.blocks && turn.core.options.layer_tables &&
           may_begin(turn.machine, request, command.idempotency_key) &&
           acceptable(selection, turn.machine.pool.layout, request) &&
           (view == nullptr || view->logical.layers == command.wanted.layers);
}

// What is wanted and neither resident nor adopted, as the kernels find it. False where their answer makes no sense.
bool find_new(const Turn& turn, const Command& command, const Rows& held, Rows& found) {
    const nb::object want_ptr = owned(command.wanted.row_ptr.bytes()), want_ids = owned(command.wanted.ids.bytes());
    const nb::object held_ptr = owned(held.row_ptr.bytes()), held_ids = owned(held.ids.bytes());
    const nb::object answer =
        turn.core.options.diff(want_ptr, want_ids, held_ptr, held_ids, command.selection.whole_blocks);
    if (!PyTuple_CheckExact(answer.ptr()) || PyTuple_GET_SIZE(answer.ptr()) != 2 ||
        !read_ids(PyTuple_GET_ITEM(answer.ptr(), 0), found.row_ptr) ||
        !read_ids(PyTuple_GET_ITEM(answer.ptr(), 1), found.ids)) {
        return false;
    }
    found.layers = command.wanted.layers;
    return fit(found.span()) && none_negative(found.ids.span());
}

bool emit_selected(Turn& turn, Request& request, const Command& command) {
    namespace said = field::selection;
    const Words& words = turn.words;
    const nb::object digest = digest_of(words, words.selection, command.told);
    if (!digest.is_valid()) {
        return false;
    }
    Fact& fact = turn.fact(Tag::blocks_selected, request);
    fact.selection_revision = command.selection.revision;
    fact.whole_blocks = command.selection.whole_blocks;
    fact.effective_budget_blocks = command.selection.budget_blocks;
    fact.idempotency_key = command.idempotency_key;
    return read(digest.ptr(), fact.digest) &&
           turn.emit(words.blocks_selected, {words.selection.get(command.told, said::selection_revision), digest.ptr(),
                                             words.selection.get(command.told, said::whole_blocks),
                                             words.selection.get(command.told, said::effective_budget_blocks),
                                             words.select.get(command.message, field::select::idempotency_key)});
}

// Zero bytes: residency stays, the keep map of this revision is published.
nb::object publish(Turn& turn, Request& request, const Command& command) {
    const View* view = request.view();
    const Rows keep = view == nullptr ? empty_rows(command.selection.wanted.layers)
                                      : slots_of(view->logical.span(), command.selection.wanted);
    if (!emit_selected(turn, request, command)) {
        return {};
    }
    const Words& words = turn.words;
    const Operation operation = next_operation(turn.machine, request);
    const nb::object named = turn.named(request, operation), slots = words.of(keep);
    const nb::object revision = number(request.selection_revision);
    Fact& fact = turn.fact(Tag::keep_map_published, request, operation);
    fact.selection_revision = request.selection_revision;
    fact.keep = keep.span();
    fact.metadata_bytes = ids_bytes({&keep});
    const nb::object size = number(fact.metadata_bytes);
    if (!turn.emit(words.keep_map_published, {named.ptr(), revision.ptr(), slots.ptr(), size.ptr()})) {
        return {};
    }
    turn.effect(words.publish_keep_map.make({named.ptr(), revision.ptr(), slots.ptr()}));
    return turn.finish(named.ptr());
}

// The j-th block of every layer goes to the j-th copy destination, each layer into its own area of it.
Ids copies_of(const Rows& upload, const Ids& copied) {
    Ids read = Ids::uninitialized(upload.ids.count());
    for (std::uint32_t row = 0; row < upload.rows(); ++row) {
        const std::int32_t begin = upload.row_ptr[row], end = upload.row_ptr[row + 1];
        std::copy_n(copied.begin(), end - begin, read.writable() + begin);
    }
    return read;
}

// What came of asking for room.
struct Room {
    std::vector<Span> device;
    Ids copied;
    nb::object told;  // the device's blocks as Python has them
};

bool read_room(const Words& words, std::size_t groups, PyObject* reserved, Room& room) {
    if (reserved == nullptr) {
        room.device.assign(groups, Span());
        room.told = words.nothing_by_group(groups);
        return true;
    }
    PyObject* const device = words.reserved.get(reserved, field::reserved::device);
    if (!PyTuple_CheckExact(device) || static_cast<std::size_t>(PyTuple_GET_SIZE(device)) != groups ||
        !read_ids(words.reserved.get(reserved, field::reserved::cpu_copy), room.copied)) {
        return false;
    }
    for (std::size_t group = 0; group < groups; ++group) {
        Ids blocks;
        if (!read_ids(PyTuple_GET_ITEM(device, static_cast<Py_ssize_t>(group)), blocks)) {
            return false;
        }
        room.device.push_back(blocks.span());  // the tuple keeps them
    }
    room.told = nb::borrow(device);
    return true;
}

// What the transfer is told beside what the lease fixed, as Python has it.
struct Sent {
    const Operation& operation;
    const Rows& source;
    const nb::object &named, &read, &written;
};

bool send(Turn& turn, Request& request, const Sent& sent) {
    const Words& words = turn.words;
    const RankEpochs& ranks = turn.machine.pool.ranks;
    const OpenOperation& open = *request.upload.open;
    const nb::object everybody = words.of(ranks), table = words.of(open.table);
    const nb::object generation = number(open.generation), row = number(open.row);
    Fact& fact = turn.fact(Tag::transfer_started, request, sent.operation);
    fact.ranks = ranks;
    fact.metadata_bytes =
        ids_bytes({&sent.source, &open.destination, &open.table}) * static_cast<std::int64_t>(ranks.size());
    const nb::object size = number(fact.metadata_bytes);
    if (!turn.emit(words.transfer_started, {sent.named.ptr(), everybody.ptr(), size.ptr()})) {
        return false;
    }
    const nb::object floor = number(turn.core.floor(sent.operation.id));
    turn.effect(words.transfer.make({sent.named.ptr(), everybody.ptr(), generation.ptr(), row.ptr(),
                                     words.of(turn.core.options.source_kind).ptr(), sent.read.ptr(),
                                     sent.written.ptr(), table.ptr(), floor.ptr()}));
    return true;
}

nb::object begin(Turn& turn, Request& request, const Command& command, const Draft& draft, const Room& room) {
    Ids places;
    if (room.copied.count() != draft.copies ||
        !draft.placement.areas(room.device, turn.core.options.scatter, places) ||
        !emit_selected(turn, request, command)) {
        return {};
    }
    const Words& words = turn.words;
    const Options& options = turn.core.options;
    const Operation operation = next_operation(turn.machine, request);
    const Rows destination(draft.upload.layers, draft.upload.row_ptr, std::move(places));
    const Rows own(draft.upload.layers, draft.upload.row_ptr, draft.sources);
    const Rows source = draft.copies == 0 ? own : Rows(own.layers, own.row_ptr, copies_of(draft.upload, room.copied));
    const nb::object named = turn.named(request, operation), logical = words.of(draft.upload);
    const nb::object read = words.of(source), written = words.of(destination);

    Fact& planned = turn.fact(Tag::upload_planned, request, operation);
    planned.generation = request.next_generation;
    planned.kind = PlanKind::diff;
    planned.source_kind = options.source_kind;
    planned.logical = draft.upload.span();
    planned.common_new_slots = 0;
    planned.valid_tokens = {};
    const nb::object generation = number(request.next_generation);
    if (!turn.emit(words.upload_planned, {named.ptr(), generation.ptr(), words.of(PlanKind::diff).ptr(),
                                          words.of(options.source_kind).ptr(), logical.ptr()})) {
        return {};
    }
    if (draft.copies != 0) {
        const nb::object from = words.of(own);
        turn.effect(words.gather.make({named.ptr(), from.ptr(), read.ptr()}));
    }
    Fact& leased = turn.fact(Tag::blocks_leased, request, operation);
    leased.source = source.span();
    leased.destination = destination.span();
    leased.adopted = draft.adopted.span();
    leased.row = draft.row;
    leased.reserved = room.device;
    leased.copies = room.copied.span();
    const nb::object adopted = words.of(draft.adopted), row = number(draft.row), copied = owned(room.copied.bytes());
    if (!turn.emit(words.blocks_leased, {named.ptr(), read.ptr(), written.ptr(), adopted.ptr(), row.ptr(),
                                         room.told.ptr(), copied.ptr()}) ||
        !send(turn, request, {operation, source, named, read, written})) {
        return {};
    }
    return turn.finish(named.ptr());
}

// Asks for blocks, and keeps the draft for when they come.
nb::object ask(Turn& turn, const std::shared_ptr<Draft>& draft) {
    const std::vector<std::int64_t>& counts = draft->placement.new_blocks();
    TupleOf device(counts.size());
    for (const std::int64_t count : counts) {
        device.add(number(count));
    }
    const nb::object blocks = std::move(device).done(), none = number(0), copies = number(draft->copies);
    turn.core.draft = draft;
    return turn.ask(turn.words.reserve.make({draft->message.ptr(), blocks.ptr(), none.ptr(), copies.ptr()}));
}

// What the selection lacks of the view and of the tail that it may adopt.
bool find_upload(Turn& turn, const Request& request, const Command& command, Rows& upload, Rows& adopted) {
    const View* view = request.view();
    const Rows resident = view == nullptr ? empty_rows(command.selection.wanted.layers) : view->logical;
    const bool adopts = turn.words.select.get(command.message, field::select::adopt) == Py_True;
    adopted = adopts ? adoptable(request, turn.machine.pool.layout, command.selection.wanted, resident.span())
                     : empty_rows(command.selection.wanted.layers);
    return find_new(turn, command, adopted.ids.empty() ? resident : joined({resident.span(), adopted.span()}), upload);
}

// None where a block has no source or no table row is free.
std::shared_ptr<Draft> draft_of(const Turn& turn, const Request& request, const Command& command, Rows upload,
                                Rows adopted) {
    Ids sources;
    const std::int64_t row = vacant_row(turn.machine, request);
    if (row == hole || !sources_of(request, upload.ids.span(), sources)) {
        return nullptr;
    }
    std::int32_t most = 0;
    for (std::uint32_t at = 0; at < upload.rows(); ++at) {
        most = std::max(most, upload.row_ptr[at + 1] - upload.row_ptr[at]);
    }
    const std::int64_t copies = turn.core.options.source_kind == SourceKind::copy ? most : 0;
    Placement placement(turn.machine.relation, turn.machine.pool.layout, request, upload.span());
    return std::make_shared<Draft>(Draft{nb::borrow(command.message), turn.core.version, std::move(upload),
                                         std::move(adopted), std::move(sources), row, copies, std::move(placement)});
}

}  // namespace

nb::object select(Turn& turn, PyObject* message, PyObject* reserved) {
    Command command;
    if (!read_command(turn.words, message, command)) {
        return {};
    }
    Request* const request = turn.running(turn.words.selection.get(command.told, field::selection::request));
    std::shared_ptr<Draft> draft = std::move(turn.core.draft);
    turn.core.draft = nullptr;
    if (request == nullptr) {
        return {};
    }
    if (draft == nullptr || !draft->message.is(nb::handle(message)) || draft->version != turn.core.version) {
        Rows upload, adopted;
        if (!in_order(turn, *request, command) || !find_upload(turn, *request, command, upload, adopted)) {
            return {};
        }
        if (upload.ids.empty()) {
            return publish(turn, *request, command);
        }
        draft = draft_of(turn, *request, command, std::move(upload), std::move(adopted));
        if (draft == nullptr) {
            return {};
        }
    }
    if (reserved == nullptr && (draft->placement.needs_new() || draft->copies != 0)) {
        return ask(turn, draft);
    }
    Room room;
    if (!read_room(turn.words, turn.machine.pool.layout.groups(), reserved, room)) {
        return {};
    }
    return begin(turn, *request, command, *draft, room);
}

}  // namespace kvsweep::fold
