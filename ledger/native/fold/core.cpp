#include "core.hpp"

#include <algorithm>

#include "words.hpp"

namespace kvsweep::fold {

Options::Options(nb::handle told)
    : blocks(nb::cast<bool>(told["blocks"])),
      layer_tables(nb::cast<bool>(told["layer_tables"])),
      scatter(nb::cast<bool>(told["scatter"])),
      diff(nb::borrow(told["diff"])) {
    std::string_view kind;
    if (!read(nb::object(told["source_kind"]).ptr(), kind) || !meaning(source_words, kind, source_kind)) {
        throw nb::value_error("source_kind: expected one of the settings");
    }
}

Core::Core(nb::object of, nb::handle types, nb::object open_steps, nb::handle told)
    : machine(nb::cast<Machine&>(of)), words(types), options(told), steps(std::move(open_steps)), keep_(std::move(of)) {
    for (const auto& request : machine.requests) {
        look_at(*request);
    }
}

nb::object Core::handle(nb::handle message) {
    PyObject* word = message.ptr();
    PyObject* reserved = nullptr;
    if (words.reserved.is(word)) {
        reserved = word;
        word = words.reserved.get(word, field::reserved::cause);
    }
    using Decide = nb::object (*)(Turn&, PyObject*, PyObject*);
    const struct {
        const Kind& kind;
        Decide decide;
    } known[] = {
        {words.done, [](Turn& turn, PyObject* one, PyObject*) { return done(turn, one); }},
        {words.acknowledged, [](Turn& turn, PyObject* one, PyObject*) { return acknowledged(turn, one); }},
        {words.select, select},
        {words.retain, retain},
    };
    for (const auto& one : known) {
        if (one.kind.is(word)) {
            Turn turn(*this);
            nb::object answer = one.decide(turn, word, reserved);
            return answer.is_valid() ? answer : nb::none();
        }
    }
    return nb::none();
}

nb::object Core::end_step(nb::handle keys) {
    Turn turn(*this);
    for (nb::handle key : keys) {
        if (turn.running(key.ptr()) == nullptr) {
            return nb::none();
        }
    }
    nb::object answer = turn.finish(nullptr);
    return answer.is_valid() ? answer : nb::none();
}

nb::object Core::handed_out(nb::handle key) const {
    std::string_view id;
    std::int64_t epoch = 0;
    if (!words.read_key(key.ptr(), id, epoch) || !machine.pool.lost.empty()) {
        return nb::none();
    }
    const Request* request = machine.find(id);
    if (request == nullptr || request->key.epoch != epoch || request->life != Life::running) {
        return nb::none();
    }
    TupleOf tail(request->tail.size());
    for (const TailBlock& block : request->tail) {
        tail.add(number(block.logical));
    }
    const View* view = request->view();
    const nb::object generation = number(request->current), row = number(view != nullptr ? view->row : hole);
    const nb::object blocks = std::move(tail).done();
    return words.handed_out.make({generation.ptr(), row.ptr(), blocks.ptr()});
}

void Core::adopt() {
    for (const Turn::Fence& fence : fences_) {
        steps.attr(fence.opened ? "forget_fence" : "fence")(fence.key, fence.number);
    }
    fences_.clear();
}

// What is there of the request, as Python has it too.
void Core::look_at(Request& request) {
    request.changed = false;
    request.relation_seen = request.relation;
    std::erase_if(live_, [&request](const auto& one) { return one.second == &request; });
    const auto add = [&](const OpenOperation& open) {
        const std::pair<std::int64_t, const Request*> one(open.operation.id, &request);
        live_.insert(std::upper_bound(live_.begin(), live_.end(), one), one);
    };
    for (const Lane* lane : {&request.upload, &request.retain, &request.store}) {
        if (lane->open) {
            add(*lane->open);
        }
    }
    for (const OpenOperation& settling : request.settling) {
        add(settling);
    }
}

void Core::fed(nb::handle keys) {
    ++version;
    moved_ = false;
    changed_.clear();
    for (nb::handle key : keys) {
        std::string_view id;
        std::int64_t epoch = 0;
        Request* request = words.read_key(key.ptr(), id, epoch) ? machine.find(id) : nullptr;
        if (request != nullptr) {
            look_at(*request);
        }
    }
}

}  // namespace kvsweep::fold
