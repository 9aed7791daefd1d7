// Ordinary words of kvsweep.runtime.core.core, decided on a state that is changed in place. Python's core is the reference
// and decides all others: a word that is not found ordinary has changed nothing.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "fold.hpp"
#include "vocabulary.hpp"

namespace kvsweep::fold {

class Core;
struct Draft;

// What the settings say, and what is asked of Python.
struct Options {
    explicit Options(nb::handle told);

    bool blocks = true;  // what a selection names
    bool layer_tables = true, scatter = false;
    SourceKind source_kind = SourceKind::source_only;
    nb::object diff;
};

// One word under way. Whatever may speak against the word is checked before its first fact: a turn that is given up after
// one leaves no state behind, see `Core::torn`.
class Turn {
  public:
    explicit Turn(Core& core);
    ~Turn();
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

    // The request of exactly this life, which runs; from here on the turn knows it by this key. Else null.
    Request* running(PyObject* key);
    // Python's form of an operation of the request.
    nb::object named(const Request& request, const Operation& operation);
    // The same, where it is there already.
    void known(const Operation& operation, PyObject* named);

    // The next fact, with its stream and number; the caller fills in the rest.
    Fact& fact(Tag tag, Request& request);
    // The same, with its operation.
    Fact& fact(Tag tag, Request& request, const Operation& operation);
    // Applies that fact: false where it is refused. Then `say` gives its event, whose `fields` are those behind `request`
    // and `seq`, as its kind has them.
    bool apply();
    void say(const Kind& kind, std::initializer_list<PyObject*> fields);
    bool emit(const Kind& kind, std::initializer_list<PyObject*> fields) { return apply() && (say(kind, fields), true); }
    void effect(nb::object effect) { effects_.push_back(std::move(effect)); }

    // Takes every step that follows by itself, and says what is free: the answer, staged; null where that did not work
    // out. `operation` may be null.
    nb::object finish(PyObject* operation);
    // Asks for blocks: nothing has changed.
    nb::object ask(nb::object reserve);

    PyObject* key_of(const Request& request) const;  // borrowed
    bool is_new(const Request& request, std::int64_t fence) const;

    Core& core;
    Machine& machine;
    const Words& words;

  private:
    struct Touched {
        Request* request;
        nb::object key;
        std::int64_t next_fence;  // before the turn
    };
    struct Fence {
        nb::object key;
        std::int64_t number;
        bool opened;
    };
    const Touched& touched(const Request& request) const;
    void note(const Fact& fact);
    void release();
    nb::object answer(const nb::object& outcome, PyObject* operation, bool holds_blocks) const;

    Request* writes_ = nullptr;
    std::int64_t seq_ = 0;
    Operation known_;
    nb::object named_;
    bool changed_ = false, finished_ = false;
    std::vector<Touched> touched_;
    std::vector<nb::object> events_, effects_;
    std::vector<Fence> fences_;
    std::vector<Relation::Step> steps_;
    friend class Core;
};

class Core {
  public:
    // `machine` is Python's object around the Machine; `steps` are kvsweep.runtime.core.steps.OpenSteps.
    Core(nb::object machine, nb::handle types, nb::object steps, nb::handle options);

    // ---- words: the Turn, staged; None where Python has to decide
    nb::object handle(nb::handle message);
    nb::object end_step(nb::handle keys);
    nb::object handed_out(nb::handle key) const;  // None where a step may not begin

    void adopt();          // the staged turn is in the log
    bool torn() const { return torn_; }  // the state is none: it has to be made again

    // ---- looking
    // What Python sees. All but what has changed since it was last asked is taken over from `before`.
    nb::object state(nb::handle before);
    // Device blocks by group, and CPU blocks, that anybody holds: bytes of bools.
    nb::object taken();
    // Whether words decided here have taken or freed any since it was last asked, or the machine was fed.
    bool moved() const { return moved_; }
    std::int64_t floor(std::int64_t number) const { return live_.empty() ? number : std::min(live_.front().first, number); }
    // The machine was fed with facts of these requests, and Python has the state that they gave.
    void fed(nb::handle keys);

    Machine& machine;
    const Words words;
    const Options options;
    const nb::object steps;
    std::uint64_t version = 0;  // another one whenever the state may have changed
    std::shared_ptr<Draft> draft;  // of the last Select that asked for room

  private:
    friend class Turn;
    nb::object keep_;
    Fact fact_;
    bool torn_ = false, moved_ = true;
    void look_at(Request& request);

    std::vector<std::pair<std::int64_t, const Request*>> live_;  // ids of open and settling operations, ascending
    std::vector<std::pair<Request*, nb::object>> changed_;  // since the last look, by their keys
    std::vector<Turn::Fence> fences_;  // of the staged turn
};

// ---- words: the answer, or null where the word is not ordinary or did not work out

nb::object done(Turn& turn, PyObject* message);
nb::object acknowledged(Turn& turn, PyObject* message);
// `reserved` is null where nothing was asked for yet.
nb::object select(Turn& turn, PyObject* message, PyObject* reserved);
nb::object retain(Turn& turn, PyObject* message, PyObject* reserved);

// Every step of the request that nothing waits for. False: it did not work out.
bool settle(Turn& turn, Request& request);

void bind_core(nb::module_& module);

}  // namespace kvsweep::fold
