#include "typecheck.hpp"

#include <nanobind/stl/string.h>

#include <stdexcept>
#include <string>

#include "slots.hpp"
#include "values.hpp"

namespace nb = nanobind;

namespace kvsweep::ledger {

TypeCheck::TypeCheck(nb::handle told) {
    for (nb::handle one : told) {
        types_.push_back(tree_of(one));
        if (types_.back()->kind != Kind::record) {
            throw std::invalid_argument("type trees: expected records");
        }
    }
}

const TypeCheck::Tree* TypeCheck::tree_of(nb::handle told) {
    static constexpr std::pair<const char*, Kind> kinds[] = {
        {"nothing", Kind::nothing}, {"integer", Kind::integer}, {"number", Kind::number}, {"text", Kind::text},
        {"flag", Kind::flag},       {"ids", Kind::ids},         {"rows", Kind::rows},     {"record", Kind::record},
        {"list", Kind::list},       {"each", Kind::each},       {"any", Kind::any},
    };
    const auto wanted = nb::cast<std::string>(told[0]);
    for (const auto& [name, kind] : kinds) {
        if (wanted != name) {
            continue;
        }
        Tree* tree = trees_.emplace_back(std::make_unique<Tree>(Tree{kind, {}, {}, {}})).get();
        if (kind == Kind::record || kind == Kind::rows) {
            tree->type = nb::borrow(told[1]);
            for (nb::handle field : told[2]) {
                tree->fields.emplace_back(slot_of(tree->type, field[0]), tree_of(field[1]));
            }
        } else if (kind == Kind::list || kind == Kind::each || kind == Kind::any) {
            for (nb::handle part : told[1]) {
                tree->parts.push_back(tree_of(part));
            }
        }
        if ((kind == Kind::rows && tree->fields.size() != 3) || (kind == Kind::list && tree->parts.size() != 1)) {
            throw std::invalid_argument("tree: expected three fields of rows, one part of a list");
        }
        return tree;
    }
    throw std::invalid_argument("tree: expected a kind that is known, got " + wanted);
}

bool TypeCheck::fine(PyObject* value) const {
    for (const Tree* tree : types_) {
        if (reinterpret_cast<PyObject*>(Py_TYPE(value)) == tree->type.ptr()) {
            return fields_fit(*tree, value);
        }
    }
    return false;
}

bool TypeCheck::fields_fit(const Tree& tree, PyObject* value) {
    for (const auto& [slot, field] : tree.fields) {
        PyObject* found = in_slot(value, slot);
        if (found == nullptr || !fits(*field, found)) {
            return false;
        }
    }
    return true;
}

// Each buffer is known to hold whole int32 values. As kvsweep.ledger.ids.Rows.check.
bool TypeCheck::rows_fit(const Tree& tree, PyObject* value) {
    const Words layers(in_slot(value, tree.fields[0].first)), row_ptr(in_slot(value, tree.fields[1].first));
    const Words ids(in_slot(value, tree.fields[2].first));
    if (row_ptr.count() != layers.count() + 1 || row_ptr[0] != 0 || row_ptr[layers.count()] != ids.count()) {
        return false;
    }
    std::int32_t before = -1;
    for (Py_ssize_t row = 0; row < layers.count(); ++row) {
        if (layers[row] <= before || row_ptr[row + 1] < row_ptr[row]) {
            return false;
        }
        before = layers[row];
    }
    return true;
}

bool TypeCheck::tuple_fits(const Tree& tree, PyObject* value) {
    if (!PyTuple_CheckExact(value)) {
        return false;
    }
    const bool list = tree.kind == Kind::list;
    const auto items = static_cast<std::size_t>(PyTuple_GET_SIZE(value));
    if (!list && items != tree.parts.size()) {
        return false;
    }
    for (std::size_t at = 0; at < items; ++at) {
        if (!fits(*tree.parts[list ? 0 : at], PyTuple_GET_ITEM(value, static_cast<Py_ssize_t>(at)))) {
            return false;
        }
    }
    return true;
}

bool TypeCheck::fits(const Tree& tree, PyObject* value) {
    std::int64_t number = 0;
    switch (tree.kind) {
        case Kind::nothing: return value == Py_None;
        case Kind::integer: return integer_of(value, INT64_MIN, number);
        case Kind::number: return PyFloat_CheckExact(value);
        case Kind::text: return PyUnicode_CheckExact(value);
        case Kind::flag: return PyBool_Check(value);
        case Kind::ids: return PyBytes_CheckExact(value) && PyBytes_GET_SIZE(value) % 4 == 0;
        case Kind::record:
        case Kind::rows:
            return reinterpret_cast<PyObject*>(Py_TYPE(value)) == tree.type.ptr() && fields_fit(tree, value) &&
                   (tree.kind == Kind::record || rows_fit(tree, value));
        case Kind::list:
        case Kind::each: return tuple_fits(tree, value);
        case Kind::any:
            for (const Tree* part : tree.parts) {
                if (fits(*part, value)) {
                    return true;
                }
            }
            return false;
    }
    return false;
}

}  // namespace kvsweep::ledger
