// A struct type of Python's: made with all of its fields that are named here, read where it keeps them.
#pragma once

#include <nanobind/nanobind.h>

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string_view>
#include <vector>

namespace kvsweep::fold {

namespace nb = nanobind;

// ---- values. Each gives a new reference, or throws.

inline nb::object owned(PyObject* made) {
    if (made == nullptr) {
        nb::raise_python_error();
    }
    return nb::steal(made);
}
inline nb::object number(std::int64_t value) { return owned(PyLong_FromLongLong(value)); }
inline nb::object text(std::string_view utf8) {
    return owned(PyUnicode_DecodeUTF8(utf8.data(), static_cast<Py_ssize_t>(utf8.size()), nullptr));
}

// ---- and back. False where the object is of another type, or does not fit.

inline bool read(PyObject* object, std::int64_t& value) {
    if (!PyLong_CheckExact(object)) {
        return false;
    }
    int beyond = 0;
    value = PyLong_AsLongLongAndOverflow(object, &beyond);
    return beyond == 0;
}
inline bool read_count(PyObject* object, std::int64_t& value) { return read(object, value) && value >= 0; }
// Borrowed from the text.
inline bool read(PyObject* object, std::string_view& utf8) {
    if (!PyUnicode_CheckExact(object)) {
        return false;
    }
    Py_ssize_t size = 0;
    const char* data = PyUnicode_AsUTF8AndSize(object, &size);
    if (data == nullptr) {  // half a surrogate pair
        PyErr_Clear();
        return false;
    }
    utf8 = {data, static_cast<std::size_t>(size)};
    return true;
}

// A tuple whose items are set one after the other.
class TupleOf {
  public:
    explicit TupleOf(std::size_t size) : made_(owned(PyTuple_New(static_cast<Py_ssize_t>(size)))) {}
    void add(nb::object item) { PyTuple_SET_ITEM(made_.ptr(), next_++, item.release().ptr()); }
    nb::object done() && { return std::move(made_); }

  private:
    nb::object made_;
    Py_ssize_t next_ = 0;
};

// ---- types

class Kind {
  public:
    // `types` gives the type by its name. Fields that are not named keep their defaults.
    Kind(nb::handle types, const char* name, std::initializer_list<const char*> fields);

    bool is(PyObject* object) const { return reinterpret_cast<PyObject*>(Py_TYPE(object)) == type_.ptr(); }
    std::size_t fields() const { return slots_.size(); }
    PyObject* name(std::size_t field) const { return PyTuple_GET_ITEM(names_.ptr(), static_cast<Py_ssize_t>(field)); }
    // Borrowed. `field` is its place among those that are named here.
    PyObject* get(PyObject* object, std::size_t field) const {
        return *reinterpret_cast<PyObject**>(reinterpret_cast<char*>(object) + slots_[field]);
    }
    // A value for each field, borrowed.
    nb::object make(std::initializer_list<PyObject*> values) const { return make(values.begin(), values.size()); }
    nb::object make(PyObject* const* values, std::size_t count) const;
    // `known` where that has these very values; it may be null.
    nb::object like(PyObject* known, std::initializer_list<PyObject*> values) const;

  private:
    nb::object type_, names_;
    std::vector<Py_ssize_t> slots_;
};

}  // namespace kvsweep::fold
