// Events into msgpack, checked on the way: what kvsweep.ledger.store.codec does for one, for the events that are
// written by the thousand. Touches Python objects, so the interpreter's lock is held throughout.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <string>
#include <vector>

#include "pack.hpp"

namespace kvsweep::ledger {

// What the type of a field does not say by itself decides; kvsweep.ledger.store.checks is the reference.
enum class Kind {
    count,    // int in [0, 2^63)
    integer,  // int of 64 bits
    seconds,  // float, finite, 0 or more
    text,     // str
    one_of,   // str, one of a few
    ids,      // bytes: whole int32 values, none negative
    pairs,    // tuple of (rank, number), ranks ascending
    list,     // tuple of items of one shape
    record,   // a struct
    rows,     // the struct of ragged ids: layers, row_ptr, ids
    checked,  // a struct that has a `check` of its own
};

struct Shape;

struct Field {
    Py_ssize_t slot;  // where the object keeps it
    Shape* shape;
};

struct Shape {
    Kind kind;
    bool optional;
    nanobind::object type;                // of a record
    std::vector<Field> fields;            // of a record
    std::vector<nanobind::object> texts;  // to choose from
    Shape* items = nullptr;               // of a list
    std::string aside;                    // what digests see in its place; empty: the value itself
};

struct Fact {
    nanobind::object type;
    std::int64_t tag = -1;
    std::vector<Field> fields;
    Py_ssize_t request = 0, seq = 0, operation = 0, rank = 0;  // slots; 0: it has none
};

// What a batch is beside its bodies.
struct Batch {
    std::vector<PyObject*> names;  // ids of its requests, borrowed
    bool dense = true;             // all of one key, and numbered one after the other

    std::int64_t number_of(PyObject* name);
};

// The types of events, as kvsweep.ledger.store.encoding tells them.
class Schema {
  public:
    // (type, tag, ((field, shape), ...), has an operation, has a rank), ...; a shape is (kind, optional, more). And the
    // name of every tag.
    Schema(nanobind::handle facts, nanobind::handle names);

    // The types of a life's key, of an operation and of what is made, and what takes a batch that is not taken here.
    void types(nanobind::handle request, nanobind::handle operation, nanobind::handle part, nanobind::handle otherwise);

    // A part: see store/group.py. Where an event is of another type or is not fine, or a length is beyond what a head
    // can say, `otherwise` takes the batch or says why not.
    nanobind::object encode(nanobind::handle events);

    // The bodies alone, as one msgpack array. None where an event is of another type or is not fine.
    nanobind::object bodies_of(nanobind::handle events);

    const Fact* fact_of(std::int64_t tag) const;
    const std::vector<std::string>& names() const { return names_; }

  private:
    // Bodies, and the rows and the batch of them; `later` is to be asked. Nothing where they are not to be had.
    nanobind::object put_bodies(nanobind::handle events, Row* rows, Batch& batch, std::vector<PyObject*>& later);
    template <class Sink>
    bool put_batch(Sink& sink, PyObject** events, Py_ssize_t count, Row* rows, Batch& batch) const;
    nanobind::object names_of(const std::vector<PyObject*>& names);
    const Fact* fact_of(PyTypeObject* type) const;
    Shape* shape_of(nanobind::handle told);
    std::vector<Field> fields_of(nanobind::handle type, nanobind::handle told);

    std::vector<Fact> facts_;
    std::vector<const Fact*> by_type_;  // open addressing, a power of two
    std::vector<const Fact*> by_tag_;
    std::vector<std::unique_ptr<Shape>> shapes_;
    std::vector<std::string> names_;  // by tag
    Py_ssize_t request_id_ = 0, request_epoch_ = 0, operation_id_ = 0;
    nanobind::object part_, otherwise_, latest_;
    std::vector<std::uint8_t> kept_ = std::vector<std::uint8_t>(1 << 16);  // of one batch; the lock guards it
    Batch batch_;
};

}  // namespace kvsweep::ledger
