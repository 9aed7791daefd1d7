// What follows from the state by itself, for requests that run. See kvsweep.runtime.core.follow, step for step.
#include <algorithm>

#include "core.hpp"

namespace kvsweep::fold {
namespace {

enum class Step { none, taken, failed };

Step taken_if(bool worked) {
    return worked ? Step::taken : Step::failed;
}

bool all_done(const OpenOperation& open) {
    return std::equal(open.ranks.begin(), open.ranks.end(), open.outcomes.begin(), open.outcomes.end(),
                      [](const auto& one, const auto& other) { return one.first == other.first; });
}

// ---- all distinct ranks have completed

Step complete(Turn& turn, Request& request) {
    const struct {
        const Lane& lane;
        Phase phase;
        Tag tag;
        const Kind& kind;
    } lanes[] = {
        {request.upload, Phase::moving, Tag::transfer_completed, turn.words.transfer_completed},
        {request.retain, Phase::applying, Tag::all_ranks_applied, turn.words.all_ranks_applied},
        {request.store, Phase::moving, Tag::store_completed, turn.words.store_completed},
    };
    for (const auto& one : lanes) {
        if (one.lane.phase == one.phase && one.lane.open && all_done(*one.lane.open)) {
            const Operation operation = one.lane.open->operation;
            const nb::object named = turn.named(request, operation);
            turn.fact(one.tag, request, operation);
            return taken_if(turn.emit(one.kind, {named.ptr()}));
        }
    }
    return Step::none;
}

// ---- switch to the new view

// These blocks leave the group's tail into a fence.
bool drop_tail(Turn& turn, Request& request, std::size_t group, const std::vector<std::int32_t>& logical) {
    const nb::object wire = owned(PyBytes_FromStringAndSize(reinterpret_cast<const char*>(logical.data()),
                                                            static_cast<Py_ssize_t>(4 * logical.size())));
    const nb::object of = number(static_cast<std::int64_t>(group)), fence = number(request.next_fence);
    Fact& fact = turn.fact(Tag::tail_dropped, request);
    fact.group = static_cast<std::int64_t>(group);
    fact.fence = request.next_fence;
    fact.logical_list = {reinterpret_cast<const unsigned char*>(logical.data()),
                         static_cast<std::uint32_t>(logical.size())};
    return turn.emit(turn.words.tail_dropped, {of.ptr(), wire.ptr(), fence.ptr()});
}

// Clean tail blocks that the last selection has seen leave the active groups.
bool drop_considered_tail(Turn& turn, Request& request) {
    const Layout& layout = turn.machine.pool.layout;
    for (std::size_t group = 0; group < layout.groups() && !request.tail.empty(); ++group) {
        if (!layout.is_active(layout.layers_of_group[group].front())) {
            continue;
        }
        std::vector<std::int32_t> seen;
        for (const TailBlock& block : request.tail) {
            if (block.phase == TailPhase::clean && block.logical < request.whole_blocks && block.physical[group] != hole) {
                seen.push_back(static_cast<std::int32_t>(block.logical));
            }
        }
        if (!seen.empty() && !drop_tail(turn, request, group, seen)) {
            return false;
        }
    }
    return true;
}

void acknowledge(Turn& turn, const nb::object& operation, std::int64_t generation) {
    turn.effect(turn.words.acknowledge.make({operation.ptr(), number(generation).ptr()}));
}

Step commit(Turn& turn, Request& request) {
    const bool upload = request.upload.phase == Phase::moved && request.upload.open;
    if (!upload && !(request.retain.phase == Phase::applied && request.retain.open)) {
        return Step::none;
    }
    const OpenOperation& open = upload ? *request.upload.open : *request.retain.open;
    const Operation operation = open.operation;
    const std::int64_t generation = open.generation;
    const nb::object named = turn.named(request, operation), made = number(generation);
    Fact& fact = turn.fact(upload ? Tag::residency_committed : Tag::owners_committed, request, operation);
    fact.generation = generation;
    if (!turn.emit(upload ? turn.words.residency_committed : turn.words.owners_committed, {named.ptr(), made.ptr()})) {
        return Step::failed;
    }
    if (upload) {
        acknowledge(turn, named, generation);
    }
    return taken_if(drop_considered_tail(turn, request));
}

// ---- release what no open step was handed

// What Python's open steps say of the request; null where only the request is asked about.
bool asked(const Turn& turn, const nb::object& question, const Request& request, const nb::object& argument = {}) {
    PyObject* const values[] = {turn.core.steps.ptr(), turn.key_of(request), argument.ptr()};
    const std::size_t count = argument.is_valid() ? 3 : 2;
    return owned(PyObject_VectorcallMethod(question.ptr(), values, count, nullptr)).ptr() == Py_True;
}

bool retire(Turn& turn, Request& request, std::int64_t generation, RetireCause cause) {
    std::vector<Ids> freed(turn.machine.pool.layout.groups());
    Fact& fact = turn.fact(Tag::blocks_retired, request);
    fact.generation = generation;
    fact.cause = cause;
    if (generation == 0) {
        fact.freed.assign(freed.size(), {});
    } else {
        fact.found = &freed;
    }
    if (!turn.apply()) {
        return false;
    }
    const nb::object of = number(generation), lists = turn.words.of(freed);
    turn.say(turn.words.blocks_retired, {of.ptr(), turn.words.of(cause).ptr(), lists.ptr()});
    return true;
}

bool open_fence(Turn& turn, Request& request, std::int64_t number_of) {
    std::vector<Ids> freed(turn.machine.pool.layout.groups());
    Fact& fact = turn.fact(Tag::fence_opened, request);
    fact.fence = number_of;
    fact.found = &freed;
    if (!turn.apply()) {
        return false;
    }
    const nb::object of = number(number_of), lists = turn.words.of(freed);
    turn.say(turn.words.fence_opened, {of.ptr(), lists.ptr()});
    return true;
}

Step retire(Turn& turn, Request& request) {
    const Lane& lane = request.retain;
    const bool first = lane.phase == Phase::committed && lane.open && lane.open->replaced == 0;
    auto replaced = request.views.begin();
    while (!first && replaced != request.views.end() &&
           (replaced->generation == request.current ||
            asked(turn, turn.words.reads, request, number(replaced->generation)))) {
        ++replaced;
    }
    if (first || replaced != request.views.end()) {
        const std::int64_t generation = first ? 0 : replaced->generation;
        if (!first && !replaced->replaced_by) {
            return Step::failed;
        }
        const RetireCause cause = first ? RetireCause::retain : *replaced->replaced_by;
        nb::object named;
        std::int64_t committed = 0;
        if (cause == RetireCause::retain && lane.open) {
            named = turn.named(request, lane.open->operation);
            committed = lane.open->generation;
        }
        if (!retire(turn, request, generation, cause)) {
            return Step::failed;
        }
        if (named.is_valid()) {
            acknowledge(turn, named, committed);
        }
        return Step::taken;
    }
    for (const std::int64_t fence : request.fences) {
        // A fence of this very turn is bound to the open steps only when the turn is adopted.
        const bool waits = !asked(turn, turn.words.fence_is_quiet, request, number(fence)) ||
                           (turn.is_new(request, fence) && asked(turn, turn.words.writes, request));
        if (!waits) {
            return taken_if(open_fence(turn, request, fence));
        }
    }
    return Step::none;
}

Step step(Turn& turn, Request& request) {
    for (const auto kind : {complete, commit, static_cast<Step (*)(Turn&, Request&)>(retire)}) {
        const Step came = kind(turn, request);
        if (came != Step::none) {
            return came;
        }
    }
    return Step::none;
}

}  // namespace

bool settle(Turn& turn, Request& request) {
    Step came = Step::taken;
    while (came == Step::taken) {
        came = step(turn, request);
    }
    return came == Step::none;
}

}  // namespace kvsweep::fold
