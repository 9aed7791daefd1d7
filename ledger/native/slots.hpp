// Where objects of a type with slots keep a field.
#pragma once

#include <nanobind/nanobind.h>
#include <structmember.h>

#include <stdexcept>

namespace kvsweep::ledger {

// Raises ValueError for a field that is kept elsewhere, or is no object.
inline Py_ssize_t slot_of(nanobind::handle type, nanobind::handle field) {
    constexpr int member_object = 16;  // T_OBJECT_EX: a slot that holds a reference, or nothing yet
    const nanobind::object found = nanobind::getattr(type, field);
    if (Py_TYPE(found.ptr()) != &PyMemberDescr_Type) {
        throw std::invalid_argument("field: expected one that is kept in a slot");
    }
    const PyMemberDef* member = reinterpret_cast<PyMemberDescrObject*>(found.ptr())->d_member;
    if (member->type != member_object) {
        throw std::invalid_argument("field: expected a slot that holds an object");
    }
    return member->offset;
}

}  // namespace kvsweep::ledger
