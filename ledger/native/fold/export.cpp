// What Python sees of the state: kvsweep.ledger.state.State. Whatever has not changed is the same object as before.
#include <algorithm>

#include "core.hpp"

namespace kvsweep::fold {
namespace {

// The fields of what was seen before, or nothing where there was none.
class Before {
  public:
    Before(const Kind& kind, PyObject* object)
        : kind_(kind), object_(object != nullptr && kind.is(object) ? object : nullptr) {}
    PyObject* operator[](std::size_t field) const { return object_ == nullptr ? nullptr : kind_.get(object_, field); }
    PyObject* object() const { return object_; }

  private:
    const Kind& kind_;
    PyObject* object_;
};

// Null where it is no tuple that has one.
PyObject* item(PyObject* tuple, std::size_t at) {
    return tuple != nullptr && PyTuple_CheckExact(tuple) && static_cast<Py_ssize_t>(at) < PyTuple_GET_SIZE(tuple)
               ? PyTuple_GET_ITEM(tuple, static_cast<Py_ssize_t>(at))
               : nullptr;
}

// A tuple of what `make` gives for each value and what stood in its place before; the same tuple where all are the same.
template <class Values, class Make>
nb::object tuple_like(PyObject* known, const Values& values, Make make) {
    TupleOf made(values.size());
    bool same = known != nullptr && PyTuple_CheckExact(known) &&
                PyTuple_GET_SIZE(known) == static_cast<Py_ssize_t>(values.size());
    std::size_t at = 0;
    for (const auto& value : values) {
        nb::object one = make(value, item(known, at));
        same = same && one.ptr() == item(known, at);
        made.add(std::move(one));
        ++at;
    }
    return same ? nb::borrow(known) : std::move(made).done();
}

nb::object int_like(PyObject* known, std::int64_t value) {
    std::int64_t before = 0;
    return known != nullptr && read(known, before) && before == value ? nb::borrow(known) : number(value);
}

nb::object text_like(PyObject* known, std::string_view value) {
    std::string_view before;
    return known != nullptr && read(known, before) && before == value ? nb::borrow(known) : text(value);
}

class Show {
  public:
    explicit Show(const Words& words) : words_(words) {}

    nb::object request(const Request& request, PyObject* known);
    nb::object holders(const Request& request, PyObject* known) const;

  private:
    nb::object pairs(const RankEpochs& ranks, PyObject* known) const {
        return tuple_like(known, ranks, [](const Pair& pair, PyObject* before) {
            const std::int64_t parts[] = {pair.first, pair.second};
            return tuple_like(before, std::vector<std::int64_t>(parts, parts + 2),
                              [](std::int64_t part, PyObject* was) { return int_like(was, part); });
        });
    }
    nb::object outcomes(const std::vector<std::pair<std::int64_t, Outcome>>& ended, PyObject* known) const {
        return tuple_like(known, ended, [this](const auto& one, PyObject* before) {
            const nb::object rank = int_like(item(before, 0), one.first), outcome = words_.of(one.second);
            PyObject* const was = item(before, 1);
            if (was != nullptr && rank.ptr() == item(before, 0) && same_text(was, outcome)) {
                return nb::borrow(before);
            }
            TupleOf made(2);
            made.add(rank);
            made.add(outcome);
            return std::move(made).done();
        });
    }
    nb::object ints(const std::vector<std::int64_t>& values, PyObject* known) const {
        return tuple_like(known, values, [](std::int64_t value, PyObject* before) { return int_like(before, value); });
    }
    nb::object view(const View& view, PyObject* known) const;
    nb::object views(const Request& request, PyObject* known) const;
    nb::object open(const OpenOperation& open, PyObject* known) const;
    nb::object lane(const Lane& lane, PyObject* known) const;
    nb::object commands(const Request& request, PyObject* known) const;

    const Words& words_;
    PyObject* key_ = nullptr;
};

nb::object Show::view(const View& view, PyObject* known) const {
    const Before before(words_.view, known);
    const nb::object generation = int_like(before[0], view.generation), row = int_like(before[3], view.row);
    const nb::object logical = words_.of(view.logical, before[1]), physical = words_.of(view.physical, before[2]);
    const nb::object replaced_by = view.replaced_by ? words_.of(*view.replaced_by) : nb::none();
    return words_.view.like(known, {generation.ptr(), logical.ptr(), physical.ptr(), row.ptr(), replaced_by.ptr()});
}

nb::object Show::views(const Request& request, PyObject* known) const {
    const auto same_generation = [&](const View& one) {
        for (std::size_t at = 0; item(known, at) != nullptr; ++at) {
            const Before before(words_.view, item(known, at));
            std::int64_t generation = 0;
            if (before[0] != nullptr && read(before[0], generation) && generation == one.generation) {
                return before.object();
            }
        }
        return static_cast<PyObject*>(nullptr);
    };
    return tuple_like(known, request.views,
                      [&](const View& one, PyObject*) { return view(one, same_generation(one)); });
}

nb::object Show::open(const OpenOperation& open, PyObject* known) const {
    const Before before(words_.open, known);
    const nb::object operation = words_.of(open.operation, key_, before[0]), lane = words_.of(open.lane);
    const nb::object generation = int_like(before[2], open.generation), ranks = pairs(open.ranks, before[3]);
    const nb::object ended = outcomes(open.outcomes, before[4]), kind = words_.of(open.kind), mode = words_.of(open.mode);
    const nb::object attention = words_.of(open.attention), logical = words_.of(open.logical, before[8]);
    const nb::object destination = words_.of(open.destination, before[9]);
    const nb::object adopted = words_.of(open.adopted, before[10]), table = words_.of(open.table, before[11]);
    const nb::object table_logical = words_.of(open.table_logical, before[12]), row = int_like(before[13], open.row);
    const nb::object replaced = int_like(before[14], open.replaced), stored = owned(open.stored.bytes());
    const nb::object stored_to = owned(open.stored_to.bytes());
    return words_.open.like(
        known, {operation.ptr(), lane.ptr(), generation.ptr(), ranks.ptr(), ended.ptr(), kind.ptr(), mode.ptr(),
                attention.ptr(), logical.ptr(), destination.ptr(), adopted.ptr(), table.ptr(), table_logical.ptr(),
                row.ptr(), replaced.ptr(), stored.ptr(), stored_to.ptr()});
}

nb::object Show::lane(const Lane& lane, PyObject* known) const {
    const Before before(words_.lane, known);
    const nb::object phase = words_.of(lane.phase);
    const nb::object opened = lane.open ? open(*lane.open, before[1]) : nb::none();
    nb::object closed = nb::none();
    if (lane.closed) {
        const Before was(words_.closed, before[2]);
        const nb::object operation = words_.of(lane.closed->operation, key_, was[0]);
        const nb::object ended = outcomes(lane.closed->outcomes, was[1]);
        closed = words_.closed.like(was.object(), {operation.ptr(), ended.ptr()});
    }
    return words_.lane.like(known, {phase.ptr(), opened.ptr(), closed.ptr()});
}

// Each is made once: a request remembers many, and they do not change.
nb::object Show::commands(const Request& request, PyObject* known) const {
    return tuple_like(known, request.commands, [this](const std::shared_ptr<const Remembered>& one, PyObject*) {
        if (!one->shown) {
            const nb::object key = text(one->key), what = text(one->what), aborted = text(one->aborted);
            const nb::object operation = words_.of(one->operation, key_);
            one->shown.keep(words_.remembered.make({key.ptr(), what.ptr(), operation.ptr(), aborted.ptr()}).ptr());
        }
        return nb::borrow(one->shown.object());
    });
}

nb::object Show::request(const Request& request, PyObject* known) {
    const Before before(words_.request, known);
    key_ = before[0];
    const nb::object seq = number(request.seq), life = words_.of(request.life), rows = int_like(before[3], request.rows);
    const nb::object map_revision = int_like(before[4], request.map_revision);
    const nb::object selection_revision = int_like(before[5], request.selection_revision);
    const std::vector<std::string_view> both{request.selected_key, request.selected_digest};
    const nb::object selected = tuple_like(
        before[6], both, [](std::string_view value, PyObject* was) { return text_like(was, value); });
    const nb::object next_generation = int_like(before[7], request.next_generation);
    const nb::object next_fence = int_like(before[8], request.next_fence);
    const nb::object current = int_like(before[9], request.current), seen_views = views(request, before[10]);
    const nb::object upload = lane(request.upload, before[11]), retain = lane(request.retain, before[12]);
    const nb::object store = lane(request.store, before[13]);
    const nb::object settling = tuple_like(before[14], request.settling, [this](const OpenOperation& one, PyObject* was) {
        return open(one, was);
    });
    const nb::object tail = tuple_like(before[15], request.tail, [this](const TailBlock& block, PyObject* was) {
        const Before known_block(words_.tail_block, was);
        const nb::object logical = int_like(known_block[0], block.logical);
        const nb::object physical = ints(block.physical, known_block[1]), phase = words_.of(block.phase);
        return words_.tail_block.like(was, {logical.ptr(), physical.ptr(), phase.ptr()});
    });
    const nb::object fences = ints(request.fences, before[16]);
    const nb::object source = owned(request.source.bytes()), stale = owned(request.stale.bytes());
    const nb::object whole_blocks = int_like(before[19], request.whole_blocks);
    nb::object keep_map = nb::none();
    if (request.keep_map) {
        const Before was(words_.keep_map, before[20]);
        const nb::object of_selection = int_like(was[0], request.keep_map->selection_revision);
        const nb::object of_map = int_like(was[1], request.keep_map->map_revision);
        const nb::object keep = words_.of(request.keep_map->keep, was[2]);
        keep_map = words_.keep_map.like(was.object(), {of_selection.ptr(), of_map.ptr(), keep.ptr()});
    }
    const nb::object remembered = commands(request, before[21]);
    return words_.request.make({key_, seq.ptr(), life.ptr(), rows.ptr(), map_revision.ptr(), selection_revision.ptr(),
                                selected.ptr(), next_generation.ptr(), next_fence.ptr(), current.ptr(), seen_views.ptr(),
                                upload.ptr(), retain.ptr(), store.ptr(), settling.ptr(), tail.ptr(), fences.ptr(),
                                source.ptr(), stale.ptr(), whole_blocks.ptr(), keep_map.ptr(), remembered.ptr()});
}

nb::object Show::holders(const Request& request, PyObject* known) const {
    nb::object made = words_.holders();
    for (const Held& held : request.held) {
        const nb::object kind = words_.of(held.holder.kind), of = number(held.holder.number);
        const nb::object group = number(held.holder.group);
        const nb::object holder = words_.holder.make({kind.ptr(), of.ptr(), group.ptr()});
        PyObject* was = known == nullptr || !PyDict_Check(known) ? nullptr : PyDict_GetItemWithError(known, holder.ptr());
        const Before before(words_.holding, was);
        const nb::object areas = words_.of(held.holding.areas, before[0]);
        const nb::object sources = owned(held.holding.sources.bytes()), rows = ints(held.holding.rows, before[2]);
        const nb::object holding = words_.holding.like(was, {areas.ptr(), sources.ptr(), rows.ptr()});
        if (PyDict_SetItem(made.ptr(), holder.ptr(), holding.ptr()) != 0) {
            nb::raise_python_error();
        }
    }
    return made;
}

void put(const nb::object& dict, PyObject* key, const nb::object& value) {
    if (PyDict_SetItem(dict.ptr(), key, value.ptr()) != 0) {
        nb::raise_python_error();
    }
}

void drop(const nb::object& dict, PyObject* key) {
    if (PyDict_DelItem(dict.ptr(), key) != 0) {
        PyErr_Clear();
    }
}

bool owns_any(const Request& request) {
    return std::any_of(request.own.begin(), request.own.end(), [](const Ids& ids) { return !ids.empty(); });
}

// Ownership after requests, given by their keys, have changed it.
nb::object ownership(const Machine& machine, const Words& words, PyObject* before,
                     const std::vector<std::pair<Request*, nb::object>>& changed) {
    const Before was(words.ownership, before);
    nb::object held, own;
    Show show(words);
    for (const auto& [request, key] : changed) {
        if (request->relation == request->relation_seen) {
            continue;
        }
        request->relation_seen = request->relation;
        if (!held.is_valid()) {
            held = owned(PyDict_Copy(was[0]));
            own = owned(PyDict_Copy(was[1]));
        }
        if (request->held.empty()) {
            drop(held, key.ptr());
        } else {
            put(held, key.ptr(), show.holders(*request, PyDict_GetItemWithError(was[0], key.ptr())));
        }
        if (owns_any(*request)) {
            const nb::object known = nb::borrow(PyDict_GetItemWithError(was[1], key.ptr()));
            put(own, key.ptr(), tuple_like(known.ptr(), request->own, [](const Ids& ids, PyObject*) {
                    return owned(ids.bytes());
                }));
        } else {
            drop(own, key.ptr());
        }
    }
    if (!held.is_valid()) {
        return nb::borrow(before);
    }
    const nb::object shared = tuple_like(was[2], machine.relation.shared(), [](const Ids& ids, PyObject*) {
        return owned(ids.bytes());
    });
    const nb::object sources = owned(machine.relation.shared_sources().bytes());
    return words.ownership.make({held.ptr(), own.ptr(), shared.ptr(), sources.ptr()});
}

nb::object pool_of(const Pool& pool, const Words& words, PyObject* before) {
    const Before was(words.pool, before);
    const nb::object next = int_like(was[6], pool.next_operation_id);  // all that words of requests change
    return words.pool.like(before, {was[0], was[1], was[2], was[3], was[4], was[5], next.ptr(), was[7], was[8], was[9],
                                    was[10]});
}

// What is not looked at where it is used.
void expect_before(const Words& words, const Before& state) {
    const auto is_dict = [](PyObject* object) { return object != nullptr && PyDict_Check(object); };
    if (state.object() != nullptr && is_dict(state[1]) && state[0] != nullptr && words.pool.is(state[0]) &&
        state[2] != nullptr && words.ownership.is(state[2])) {
        const Before owners(words.ownership, state[2]);
        if (is_dict(owners[0]) && is_dict(owners[1])) {
            return;
        }
    }
    throw nb::type_error("before: expected the state that was looked at last");
}

}  // namespace

nb::object Core::state(nb::handle before) {
    if (changed_.empty()) {
        return nb::borrow(before);
    }
    const Before was(words.state, before.ptr());
    expect_before(words, was);
    const nb::object requests = owned(PyDict_Copy(was[1]));
    Show show(words);
    for (const auto& [request, key] : changed_) {
        PyObject* name = words.key.get(key.ptr(), field::key::request_id);
        PyObject* known = PyDict_GetItemWithError(was[1], name);
        if (known == nullptr || !words.request.is(known)) {
            throw nb::key_error("before: expected the state that was looked at last");
        }
        put(requests, name, show.request(*request, known));
        request->changed = false;
    }
    const nb::object pool = pool_of(machine.pool, words, was[0]);
    const nb::object owners = ownership(machine, words, was[2], changed_);
    changed_.clear();
    return words.state.make({pool.ptr(), requests.ptr(), owners.ptr()});
}

nb::object Core::taken() {
    moved_ = false;
    const auto bytes = [](const std::string& marks) {
        return owned(PyBytes_FromStringAndSize(marks.data(), static_cast<Py_ssize_t>(marks.size())));
    };
    TupleOf device(machine.pool.layout.groups());
    for (std::size_t group = 0; group < machine.pool.layout.groups(); ++group) {
        device.add(bytes(machine.relation.marks(group)));
    }
    return nb::make_tuple(std::move(device).done(), bytes(machine.relation.cpu_marks()));
}

}  // namespace kvsweep::fold
