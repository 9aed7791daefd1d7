// One word under way: facts and their events, effects, and what follows from them by itself.
#include <algorithm>
#include <stdexcept>
#include <tuple>

#include "core.hpp"

namespace kvsweep::fold {

Turn::Turn(Core& of) : core(of), machine(of.machine), words(of.words) {
    machine.relation.steps = &steps_;
}

Turn::~Turn() {
    machine.relation.steps = nullptr;
    core.torn_ = core.torn_ || (changed_ && !finished_);
}

Request* Turn::running(PyObject* key) {
    std::string_view id;
    std::int64_t epoch = 0;
    if (!words.read_key(key, id, epoch)) {
        return nullptr;
    }
    Request* found = machine.find(id);
    if (found == nullptr || found->key.epoch != epoch || found->life != Life::running) {
        return nullptr;
    }
    touched_.push_back({found, nb::borrow(key), found->next_fence});
    return found;
}

const Turn::Touched& Turn::touched(const Request& request) const {
    // Of several, it is the last that is looked at.
    const auto found = std::find_if(touched_.rbegin(), touched_.rend(),
                                    [&request](const Touched& one) { return one.request == &request; });
    if (found == touched_.rend()) {
        throw std::logic_error("request: expected one of the turn");
    }
    return *found;
}

PyObject* Turn::key_of(const Request& request) const {
    return touched(request).key.ptr();
}

bool Turn::is_new(const Request& request, std::int64_t fence) const {
    return fence >= touched(request).next_fence;
}

void Turn::known(const Operation& operation, PyObject* named) {
    known_ = operation;
    named_ = nb::borrow(named);
}

nb::object Turn::named(const Request& request, const Operation& operation) {
    if (!named_.is_valid() || known_ != operation) {  // ids of operations are never used again
        known_ = operation;
        named_ = words.of(operation, key_of(request));
    }
    return named_;
}

Fact& Turn::fact(Tag tag, Request& request) {
    Fact& fact = core.fact_;
    fact.tag = static_cast<int>(tag);
    fact.request_id = request.key.id;
    fact.request_epoch = request.key.epoch;
    fact.seq = seq_ = request.seq;
    fact.found = nullptr;
    writes_ = &request;
    return fact;
}

Fact& Turn::fact(Tag tag, Request& request, const Operation& operation) {
    Fact& made = fact(tag, request);
    made.operation_request_id = request.key.id;
    made.operation_request_epoch = request.key.epoch;
    made.operation = operation;
    return made;
}

bool Turn::apply() {
    if (!machine.apply(core.fact_)) {
        return false;
    }
    changed_ = true;
    if (!writes_->changed) {
        writes_->changed = true;
        core.changed_.emplace_back(writes_, touched(*writes_).key);
    }
    note(core.fact_);
    return true;
}

void Turn::note(const Fact& fact) {
    auto& live = core.live_;
    switch (static_cast<Tag>(fact.tag)) {
        case Tag::upload_planned:
        case Tag::keep_map_published:
        case Tag::retain_planned:
            live.emplace_back(fact.operation.id, writes_);  // numbered in the order in which they begin
            break;
        case Tag::upload_acknowledged:
        case Tag::retain_acknowledged:
        case Tag::store_completed:
            std::erase(live, std::pair<std::int64_t, const Request*>(fact.operation.id, writes_));
            break;
        case Tag::tail_dropped:
        case Tag::fence_opened:
            fences_.push_back({touched(*writes_).key, fact.fence, static_cast<Tag>(fact.tag) == Tag::fence_opened});
            break;
        default:
            break;
    }
}

void Turn::say(const Kind& kind, std::initializer_list<PyObject*> fields) {
    constexpr std::size_t most = 24;
    PyObject* values[most];
    const nb::object at = number(seq_);
    values[0] = key_of(*writes_);
    values[1] = at.ptr();
    if (fields.size() + 2 > most) {
        throw std::logic_error("fields: expected fewer");
    }
    std::copy(fields.begin(), fields.end(), values + 2);
    events_.push_back(kind.make(values, fields.size() + 2));
}

nb::object Turn::ask(nb::object reserve) {
    effect(std::move(reserve));
    return answer(words.asks, nullptr, false);
}

nb::object Turn::finish(PyObject* operation) {
    for (const Touched& one : touched_) {
        if (!settle(*this, *one.request)) {
            return {};
        }
    }
    release();
    const bool holds_blocks = !touched_.empty() && !touched_.front().request->held.empty();
    nb::object made = answer(words.accepted, operation, holds_blocks);
    finished_ = true;
    core.fences_ = std::move(fences_);
    core.version += changed_;
    core.moved_ = core.moved_ || !steps_.empty();
    return made;
}

// Held before and by nobody now: what the owners take back.
void Turn::release() {
    if (std::none_of(steps_.begin(), steps_.end(), [](const Relation::Step& step) { return step.freed; })) {
        return;
    }
    std::stable_sort(steps_.begin(), steps_.end(), [](const Relation::Step& one, const Relation::Step& other) {
        return std::tie(one.group, one.block) < std::tie(other.group, other.block);
    });
    constexpr std::int32_t cpu = -1;  // stands first
    std::vector<std::vector<std::int32_t>> freed(machine.pool.layout.groups() + 1);
    bool any = false;
    for (std::size_t first = 0, next = 0; first < steps_.size(); first = next) {
        const Relation::Step& step = steps_[first];
        while (next < steps_.size() && steps_[next].group == step.group && steps_[next].block == step.block) {
            ++next;
        }
        if (step.freed && steps_[next - 1].freed) {
            freed[static_cast<std::size_t>(step.group - cpu)].push_back(step.block);
            any = true;
        }
    }
    if (!any) {
        return;
    }
    std::vector<nb::object> lists;
    for (const std::vector<std::int32_t>& blocks : freed) {
        lists.push_back(owned(PyBytes_FromStringAndSize(reinterpret_cast<const char*>(blocks.data()),
                                                        static_cast<Py_ssize_t>(4 * blocks.size()))));
    }
    TupleOf device(lists.size() - 1);
    for (std::size_t group = 1; group < lists.size(); ++group) {
        device.add(lists[group]);
    }
    const nb::object by_group = std::move(device).done();
    effect(words.release.make({by_group.ptr(), lists[0].ptr()}));
}

nb::object Turn::answer(const nb::object& outcome, PyObject* operation, bool holds_blocks) const {
    TupleOf events(events_.size()), effects(effects_.size());
    for (const nb::object& event : events_) {
        events.add(event);
    }
    for (const nb::object& effect : effects_) {
        effects.add(effect);
    }
    const nb::object said = std::move(events).done(), asked = std::move(effects).done();
    return words.turn.make({outcome.ptr(), operation == nullptr ? Py_None : operation, said.ptr(), asked.ptr(),
                            holds_blocks ? Py_True : Py_False});
}

}  // namespace kvsweep::fold
