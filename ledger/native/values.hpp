// A field of each kind: checked where the sink checks, and written. False: it is not fine.
#pragma once

#include <nanobind/nanobind.h>

#include <cmath>
#include <cstring>

#include "encode.hpp"
#include "sink.hpp"

namespace kvsweep::ledger {

template <class Sink>
bool put_text(Sink& sink, PyObject* value) {
    if (Sink::checks && !PyUnicode_CheckExact(value)) {
        return false;
    }
    Py_ssize_t bytes = 0;
    const char* from = PyUnicode_AsUTF8AndSize(value, &bytes);
    if (from == nullptr) {  // half a surrogate pair
        PyErr_Clear();
        return false;
    }
    if (Sink::checks && static_cast<std::uint64_t>(bytes) > most_bytes) {
        return false;
    }
    if (bytes < 0x20) {
        sink.byte(static_cast<std::uint8_t>(0xA0 | bytes));
    } else if (bytes <= 0xFF) {
        sink.big_endian(0xD9, static_cast<std::uint8_t>(bytes));
    } else if (bytes <= 0xFFFF) {
        sink.big_endian(0xDA, static_cast<std::uint16_t>(bytes));
    } else {
        sink.big_endian(0xDB, static_cast<std::uint32_t>(bytes));
    }
    sink.put(from, static_cast<std::size_t>(bytes));
    return true;
}

inline PyObject* in_slot(PyObject* object, Py_ssize_t slot) {
    return *reinterpret_cast<PyObject**>(reinterpret_cast<char*>(object) + slot);
}

// Most ints are one digit of at least 30 bits: those are read where they stand.
inline bool small_of(PyObject* value, std::int64_t& found) {
    auto* number = reinterpret_cast<PyLongObject*>(value);
#if PY_VERSION_HEX >= 0x030C0000
    if (PyUnstable_Long_IsCompact(number)) {
        found = PyUnstable_Long_CompactValue(number);
        return true;
    }
#else
    if (Py_SIZE(value) == 0 || Py_SIZE(value) == 1) {
        found = Py_SIZE(value) == 0 ? 0 : number->ob_digit[0];
        return true;
    }
#endif
    return false;
}

inline bool integer_of(PyObject* value, std::int64_t least, std::int64_t& found) {
    if (!PyLong_CheckExact(value)) {  // a bool is none
        return false;
    }
    if (small_of(value, found)) {
        return found >= least;
    }
    int beyond = 0;
    found = PyLong_AsLongLongAndOverflow(value, &beyond);
    return beyond == 0 && found >= least;
}

// Of an int that is known to fit.
inline std::int64_t integer_in(PyObject* object, Py_ssize_t slot) {
    PyObject* value = in_slot(object, slot);
    std::int64_t found = 0;
    return small_of(value, found) ? found : PyLong_AsLongLong(value);
}

template <class Sink>
bool put_number(Sink& sink, PyObject* value, std::int64_t least) {
    std::int64_t found = 0;
    if (!integer_of(value, least, found)) {
        return false;
    }
    put_integer(sink, found);
    return true;
}

// Little-endian words that borrow an object's bytes.
struct Words {
    const char* data;
    Py_ssize_t bytes;

    explicit Words(PyObject* value) : data(PyBytes_AS_STRING(value)), bytes(PyBytes_GET_SIZE(value)) {}
    Py_ssize_t count() const { return bytes / 4; }
    std::int32_t operator[](Py_ssize_t at) const {
        const auto* from = reinterpret_cast<const unsigned char*>(data) + 4 * at;
        return static_cast<std::int32_t>(from[0] | from[1] << 8 | from[2] << 16 | std::uint32_t{from[3]} << 24);
    }
    // Whole words, none of them negative.
    bool fine() const {
        std::uint32_t all = 0;  // by whole words, which the compiler takes many at a time
        for (Py_ssize_t at = 0; at < bytes / 4; ++at) {
            std::uint32_t word = 0;
            std::memcpy(&word, data + 4 * at, 4);
            all |= word;
        }
        unsigned char last[4];
        std::memcpy(last, &all, 4);
        return bytes % 4 == 0 && last[3] < 0x80;
    }
};

template <class Sink>
bool put_ids(Sink& sink, PyObject* value) {
    if (Sink::checks && !PyBytes_CheckExact(value)) {
        return false;
    }
    const Words words(value);
    if (Sink::checks && (static_cast<std::uint64_t>(words.bytes) > most_bytes || !words.fine())) {
        return false;
    }
    put_bytes(sink, words.data, words.bytes);
    return true;
}

template <class Sink>
bool put_pairs(Sink& sink, PyObject* value) {
    if (Sink::checks && !PyTuple_CheckExact(value)) {
        return false;
    }
    const Py_ssize_t items = PyTuple_GET_SIZE(value);
    put_array(sink, items);
    std::int64_t before = -1;
    for (Py_ssize_t at = 0; at < items; ++at) {
        PyObject* pair = PyTuple_GET_ITEM(value, at);
        if (Sink::checks && (!PyTuple_CheckExact(pair) || PyTuple_GET_SIZE(pair) != 2)) {
            return false;
        }
        std::int64_t rank = 0;
        if (!integer_of(PyTuple_GET_ITEM(pair, 0), before + 1, rank) || rank == INT64_MAX) {
            return false;
        }
        before = rank;
        put_array(sink, 2);
        put_integer(sink, rank);
        if (!put_number(sink, PyTuple_GET_ITEM(pair, 1), 0)) {
            return false;
        }
    }
    return true;
}

// Three lists of ids that fit each other: layers ascending, row_ptr from 0 to the number of ids.
inline bool rows_fit(PyObject* value, const std::vector<Field>& fields) {
    const Words layers(in_slot(value, fields[0].slot)), row_ptr(in_slot(value, fields[1].slot));
    const Words ids(in_slot(value, fields[2].slot));
    if (row_ptr.count() != layers.count() + 1 || row_ptr[0] != 0 || row_ptr[layers.count()] != ids.count()) {
        return false;
    }
    bool fine = true;
    for (Py_ssize_t row = 0; row < layers.count(); ++row) {
        fine = fine && row_ptr[row] <= row_ptr[row + 1] && (row == 0 || layers[row - 1] < layers[row]);
    }
    return fine;
}

template <class Sink>
bool put_value(Sink& sink, const Shape& shape, PyObject* value);

template <class Sink>
bool put_fields(Sink& sink, const std::vector<Field>& fields, PyObject* object) {
    // Facts lie all over the heap: their parts are asked for together rather than one after the other.
    for (const Field& field : fields) {
        __builtin_prefetch(in_slot(object, field.slot));
    }
    for (const Field& field : fields) {
        PyObject* value = in_slot(object, field.slot);
        if ((Sink::checks && value == nullptr) || !put_value(sink, *field.shape, value)) {
            return false;
        }
    }
    return true;
}

template <class Sink>
bool put_record(Sink& sink, const Shape& shape, PyObject* value) {
    if (Sink::checks && reinterpret_cast<PyObject*>(Py_TYPE(value)) != shape.type.ptr()) {
        return false;
    }
    put_array(sink, static_cast<Py_ssize_t>(shape.fields.size()));
    if (!put_fields(sink, shape.fields, value)) {
        return false;
    }
    if constexpr (Sink::checks) {
        if (shape.kind == Kind::checked) {
            sink.later.push_back(value);
        }
        return shape.kind != Kind::rows || rows_fit(value, shape.fields);
    }
    return true;
}

template <class Sink>
bool put_list(Sink& sink, const Shape& shape, PyObject* value) {
    if (Sink::checks && !PyTuple_CheckExact(value)) {
        return false;
    }
    const Py_ssize_t items = PyTuple_GET_SIZE(value);
    put_array(sink, items);
    for (Py_ssize_t at = 0; at < items; ++at) {
        if (!put_value(sink, *shape.items, PyTuple_GET_ITEM(value, at))) {
            return false;
        }
    }
    return true;
}

template <class Sink>
bool put_choice(Sink& sink, const Shape& shape, PyObject* value) {
    if (Sink::checks) {
        bool known = false;
        for (const nanobind::object& text : shape.texts) {
            known = known || text.ptr() == value;
        }
        for (auto text = shape.texts.begin(); !known && text != shape.texts.end(); ++text) {
            known = PyUnicode_CheckExact(value) && PyUnicode_Compare(text->ptr(), value) == 0;
        }
        if (!known) {
            return false;
        }
    }
    return put_text(sink, value);
}

template <class Sink>
bool put_value(Sink& sink, const Shape& shape, PyObject* value) {
    if (shape.optional && value == Py_None) {
        sink.byte(0xC0);
        return true;
    }
    switch (shape.kind) {
        case Kind::count: return put_number(sink, value, 0);
        case Kind::integer: return put_number(sink, value, INT64_MIN);
        case Kind::seconds: {
            if (Sink::checks && !PyFloat_CheckExact(value)) {
                return false;
            }
            const double seconds = PyFloat_AS_DOUBLE(value);
            if (Sink::checks && !(std::isfinite(seconds) && seconds >= 0)) {
                return false;
            }
            std::uint64_t bits = 0;
            std::memcpy(&bits, &seconds, sizeof bits);
            sink.big_endian(0xCB, bits);
            return true;
        }
        case Kind::text: return put_text(sink, value);
        case Kind::one_of: return put_choice(sink, shape, value);
        case Kind::ids: return put_ids(sink, value);
        case Kind::pairs: return put_pairs(sink, value);
        case Kind::list: return put_list(sink, shape, value);
        case Kind::record:
        case Kind::rows:
        case Kind::checked: return put_record(sink, shape, value);
    }
    return false;
}

template <class Sink>
bool put_fact(Sink& sink, const Fact& fact, PyObject* event) {
    put_array(sink, static_cast<Py_ssize_t>(fact.fields.size()) + 1);
    sink.byte(static_cast<std::uint8_t>(fact.tag));
    return put_fields(sink, fact.fields, event);
}

}  // namespace kvsweep::ledger
