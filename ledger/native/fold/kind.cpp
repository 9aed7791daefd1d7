#include "kind.hpp"

#include "../slots.hpp"

namespace kvsweep::fold {
namespace {

// Values that cannot be told apart. Ints beyond the small ones are objects of their own each time.
bool same(PyObject* one, PyObject* other) {
    if (one == other) {
        return true;
    }
    std::int64_t first = 0, second = 0;
    return PyLong_CheckExact(one) && PyLong_CheckExact(other) && read(one, first) && read(other, second) &&
           first == second;
}

}  // namespace

Kind::Kind(nb::handle types, const char* name, std::initializer_list<const char*> fields)
    : type_(nb::borrow(types[name])), names_(owned(PyTuple_New(static_cast<Py_ssize_t>(fields.size())))) {
    Py_ssize_t at = 0;
    for (const char* field : fields) {
        nb::object name_of = owned(PyUnicode_InternFromString(field));  // as the type has it: found by its address
        slots_.push_back(ledger::slot_of(type_, name_of));
        PyTuple_SET_ITEM(names_.ptr(), at++, name_of.release().ptr());
    }
}

nb::object Kind::make(PyObject* const* values, std::size_t count) const {
    if (count != slots_.size()) {
        throw std::logic_error("values: expected one for each field");
    }
    return owned(PyObject_Vectorcall(type_.ptr(), values, 0, names_.ptr()));
}

nb::object Kind::like(PyObject* known, std::initializer_list<PyObject*> values) const {
    bool alike = known != nullptr && is(known) && values.size() == slots_.size();
    for (std::size_t at = 0; alike && at < values.size(); ++at) {
        alike = same(get(known, at), values.begin()[at]);
    }
    return alike ? nb::borrow(known) : make(values);
}

}  // namespace kvsweep::fold
