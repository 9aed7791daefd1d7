// Retain, where the new view is made by remapping: no bytes move. See kvsweep.runtime.core.retain.
#include "change.hpp"
#include "decide.hpp"
#include "named.hpp"
#include "selection.hpp"

namespace kvsweep::fold {
namespace {

// The command as Python has it, and what it says.
struct Command {
    PyObject* message = nullptr;
    Rows keep, adopt;
    std::int64_t map_revision = 0, selection_revision = 0;
    std::string_view idempotency_key;
};

bool read_command(const Words& words, PyObject* message, Command& command) {
    namespace said = field::retain;
    const auto get = [&words, message](std::size_t field) { return words.retain.get(message, field); };
    command.message = message;
    return get(said::pack) == Py_False && words.read_rows(get(said::keep), command.keep) &&
           words.read_rows(get(said::adopt), command.adopt) &&
           read_count(get(said::map_revision), command.map_revision) &&
           read_count(get(said::selection_revision), command.selection_revision) &&
           read(get(said::idempotency_key), command.idempotency_key);
}

// Slots ascend, or are refused by the fold: the first one of a row tells.
bool none_negative(const RowsSpan& slots) {
    for (std::uint32_t row = 0; row < slots.rows(); ++row) {
        if (slots.begin(row) != slots.end(row) && slots.ids[slots.begin(row)] < 0) {
            return false;
        }
    }
    return true;
}

// What the first fact does not check. `areas` gets where the adopted blocks stand, a row each layer.
bool in_order(const Turn& turn, const Request& request, const Command& command, Rows& areas) {
    const View* view = request.view();
    const Ids& active = turn.machine.pool.layout.active;
    if (!turn.core.options.blocks || !turn.core.options.layer_tables || !(command.keep.layers == active) ||
        (view != nullptr && !(view->physical.layers == active)) || command.map_revision != request.map_revision ||
        !may_begin(turn.machine, request, command.idempotency_key) || !none_negative(command.keep.span())) {
        return false;
    }
    if (command.adopt.ids.empty()) {
        areas = empty_rows(active.span());
        return true;
    }
    std::optional<Rows> found = adopted_areas(turn.machine, request, command.adopt.span());
    if (!found || !(found->layers == active)) {
        return false;
    }
    areas = *std::move(found);
    return true;
}

}  // namespace

nb::object retain(Turn& turn, PyObject* message, PyObject* reserved) {
    namespace said = field::retain;
    const Words& words = turn.words;
    Command command;
    Rows areas;
    if (reserved != nullptr || !read_command(words, message, command)) {
        return {};
    }
    Request* const request = turn.running(words.retain.get(message, said::request));
    const std::int64_t row = request == nullptr ? hole : vacant_row(turn.machine, *request);
    if (row == hole || !in_order(turn, *request, command, areas)) {
        return {};
    }
    const Layout& layout = turn.machine.pool.layout;
    const View* view = request->view();
    const Rows nothing = empty_rows(command.keep.layers.span());
    const Rows& resident = view == nullptr ? nothing : view->physical;
    const RetainMode mode = alike(layout, resident.span(), command.keep.span(), areas.span()) ? RetainMode::shared
                                                                                              : RetainMode::layer;
    const Operation operation = next_operation(turn.machine, *request);
    const nb::object digest = digest_of(words, words.retain, message);
    if (!digest.is_valid()) {
        return {};
    }

    Fact& planned = turn.fact(Tag::retain_planned, *request, operation);
    planned.generation = request->next_generation;
    planned.mode = mode;
    planned.attention = Attention::same;
    planned.keep = command.keep.span();
    planned.adopted = command.adopt.span();
    planned.moved_from = planned.moved_to = nothing.span();
    planned.row = row;
    planned.reserved.assign(layout.groups(), Span());
    planned.selection_revision = command.selection_revision;
    planned.idempotency_key = command.idempotency_key;
    if (!read(digest.ptr(), planned.digest)) {
        return {};
    }
    const nb::object named = turn.named(*request, operation), generation = number(request->next_generation);
    const nb::object unmoved = words.of(nothing), at = number(row), reserved_blocks = words.nothing_by_group(layout.groups());
    if (!turn.emit(words.retain_planned,
                   {named.ptr(), generation.ptr(), words.of(mode).ptr(), words.of(Attention::same).ptr(),
                    words.retain.get(message, said::keep), words.retain.get(message, said::adopt), unmoved.ptr(),
                    unmoved.ptr(), at.ptr(), reserved_blocks.ptr(), words.retain.get(message, said::selection_revision),
                    words.retain.get(message, said::idempotency_key), digest.ptr()})) {
        return {};
    }
    const RankEpochs& ranks = turn.machine.pool.ranks;
    const Rows& table = request->retain.open->table;
    // The row was free, so nobody reads it: no wait lies between the plan and its sending.
    Fact& drained = turn.fact(Tag::readers_drained, *request, operation);
    drained.row = row;
    drained.ranks = ranks;
    drained.metadata_bytes = ids_bytes({&nothing, &nothing, &table}) * static_cast<std::int64_t>(ranks.size());
    const nb::object everybody = words.of(ranks), size = number(drained.metadata_bytes), rows = words.of(table);
    const nb::object floor = number(turn.core.floor(operation.id));
    if (!turn.emit(words.readers_drained, {named.ptr(), at.ptr(), everybody.ptr(), size.ptr()})) {
        return {};
    }
    turn.effect(words.move_blocks.make({named.ptr(), everybody.ptr(), generation.ptr(), at.ptr(), words.of(mode).ptr(),
                                        unmoved.ptr(), unmoved.ptr(), rows.ptr(), floor.ptr()}));
    return turn.finish(named.ptr());
}

}  // namespace kvsweep::fold
