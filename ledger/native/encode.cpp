#include "encode.hpp"

#include <algorithm>
#include <utility>

#include "sink.hpp"
#include "values.hpp"

namespace nb = nanobind;

namespace kvsweep::ledger {
namespace {

// Whether each finds nothing wrong with itself. Runs Python, so nothing of ours is in use meanwhile.
bool all_fine(const std::vector<PyObject*>& later) {
    std::vector<nb::object> held;
    for (PyObject* value : later) {
        held.push_back(nb::borrow(value));
    }
    for (const nb::object& value : held) {
        const nb::object said = nb::steal(PyObject_CallMethod(value.ptr(), "check", nullptr));
        if (!said) {
            PyErr_Clear();
            return false;
        }
    }
    return true;
}

nb::object bytes_of(const std::uint8_t* from, std::size_t bytes) {
    PyObject* made = PyBytes_FromStringAndSize(reinterpret_cast<const char*>(from), static_cast<Py_ssize_t>(bytes));
    if (made == nullptr) {
        nb::raise_python_error();
    }
    return nb::steal(made);
}

// Of a list or tuple that is not empty; otherwise 0.
Py_ssize_t count_of(nb::handle events) {
    const bool fine = PyList_CheckExact(events.ptr()) || PyTuple_CheckExact(events.ptr());
    return fine ? PySequence_Fast_GET_SIZE(events.ptr()) : 0;
}

}  // namespace

std::int64_t Batch::number_of(PyObject* name) {
    const auto same = [name](PyObject* other) { return other == name || PyUnicode_Compare(other, name) == 0; };
    const auto found = std::find_if(names.begin(), names.end(), same) - names.begin();
    if (found == static_cast<std::ptrdiff_t>(names.size())) {
        names.push_back(name);
    }
    return found;
}

// Rows and bodies of a batch: false where an event is not fine or, of a bounded sink, where there is no room.
template <class Sink>
bool Schema::put_batch(Sink& sink, PyObject** events, Py_ssize_t count, Row* rows, Batch& batch) const {
    put_array(sink, count);
    batch.names.clear();
    batch.dense = true;
    PyObject* request = nullptr;
    std::int64_t number = 0, epoch = 0;
    std::uint64_t following = 0;  // a peer's number may be the largest there is
    for (Py_ssize_t at = 0; at < count; ++at) {
        PyObject* event = events[at];
        if (at + 1 < count) {
            __builtin_prefetch(events[at + 1]);
            __builtin_prefetch(reinterpret_cast<const char*>(events[at + 1]) + 64);
        }
        const Fact* fact = fact_of(Py_TYPE(event));
        const std::size_t before = sink.bytes();
        if (fact == nullptr || !put_fact(sink, *fact, event) || sink.full()) {
            return false;
        }
        // From here on every field is known to be what its shape says.
        Row row{fact->tag, 0, 0, integer_in(event, fact->seq), 0, 0, static_cast<std::int64_t>(sink.bytes() - before),
                0};
        PyObject* mine = in_slot(event, fact->request);
        if (mine != request) {
            batch.dense = request == nullptr;
            request = mine;
            epoch = integer_in(mine, request_epoch_);
            number = batch.number_of(in_slot(mine, request_id_));
        } else {
            batch.dense = batch.dense && static_cast<std::uint64_t>(row.seq) == following;
        }
        following = static_cast<std::uint64_t>(row.seq) + 1;
        row.request = number;
        row.epoch = epoch;
        PyObject* operation = fact->operation != 0 ? in_slot(event, fact->operation) : Py_None;
        if (operation != Py_None) {
            row.operation = integer_in(operation, operation_id_);
            row.flags |= has_operation;
        }
        if (fact->rank != 0) {
            row.rank = integer_in(event, fact->rank);
            row.flags |= has_rank;
        }
        rows[at] = row;
    }
    return true;
}

// The latest single name's is kept: most batches are of one life, and often the next is of the same.
nb::object Schema::names_of(const std::vector<PyObject*>& names) {
    if (names.size() == 1 && latest_.is_valid() && PyTuple_GET_ITEM(latest_.ptr(), 0) == names[0]) {
        return latest_;
    }
    nb::object made = nb::steal(PyTuple_New(static_cast<Py_ssize_t>(names.size())));
    if (!made) {
        nb::raise_python_error();
    }
    for (std::size_t at = 0; at < names.size(); ++at) {
        PyTuple_SET_ITEM(made.ptr(), static_cast<Py_ssize_t>(at), nb::handle(names[at]).inc_ref().ptr());
    }
    if (names.size() == 1) {
        latest_ = made;
    }
    return made;
}

nb::object Schema::put_bodies(nb::handle events, Row* rows, Batch& batch, std::vector<PyObject*>& later) {
    const Py_ssize_t count = PySequence_Fast_GET_SIZE(events.ptr());
    PyObject** each = PySequence_Fast_ITEMS(events.ptr());
    Bounded bounded(kept_.data(), kept_.size(), later);
    if (put_batch(bounded, each, count, rows, batch)) {
        return bytes_of(kept_.data(), bounded.bytes());
    }
    later.clear();
    Count counted(later);
    if (!bounded.full() || !put_batch(counted, each, count, rows, batch)) {
        return {};
    }
    nb::object data = bytes_of(nullptr, counted.bytes());
    Write sink(reinterpret_cast<std::uint8_t*>(PyBytes_AS_STRING(data.ptr())));
    put_array(sink, count);
    for (Py_ssize_t at = 0; at < count; ++at) {
        put_fact(sink, *fact_of(Py_TYPE(each[at])), each[at]);
    }
    return data;
}

nb::object Schema::encode(nb::handle events) {
    const Py_ssize_t count = count_of(events);
    if (count == 0) {
        return otherwise_(events);
    }
    const nb::object rows = bytes_of(nullptr, static_cast<std::size_t>(count) * sizeof(Row));
    Batch batch = std::move(batch_);  // whatever the garbage collector calls may call this
    std::vector<PyObject*> later;
    const nb::object data = put_bodies(events, reinterpret_cast<Row*>(PyBytes_AS_STRING(rows.ptr())), batch, later);
    if (!data) {
        return otherwise_(events);
    }
    const nb::object names = names_of(batch.names);
    const bool dense = batch.dense;
    batch_ = std::move(batch);
    if (!later.empty() && !all_fine(later)) {
        return otherwise_(events);
    }
    PyObject* arguments[] = {data.ptr(), rows.ptr(), names.ptr(), dense ? Py_True : Py_False};
    PyObject* part = PyObject_Vectorcall(part_.ptr(), arguments, 4, nullptr);
    if (part == nullptr) {
        nb::raise_python_error();
    }
    return nb::steal(part);
}

nb::object Schema::bodies_of(nb::handle events) {
    std::vector<Row> rows(static_cast<std::size_t>(count_of(events)));
    if (rows.empty()) {
        return {};
    }
    Batch batch;
    std::vector<PyObject*> later;  // what those are asked is not what a digest is about
    return put_bodies(events, rows.data(), batch, later);
}

}  // namespace kvsweep::ledger
