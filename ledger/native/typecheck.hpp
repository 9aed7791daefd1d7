// Whether an object has the types that its declaration gives, as kvsweep.ledger.typecheck tells them. Says only yes or
// no: Python explains a no.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <utility>
#include <vector>

namespace kvsweep::ledger {

class TypeCheck {
  public:
    // A tree of each type that is fine; see kvsweep.ledger.typecheck for what is told.
    explicit TypeCheck(nanobind::handle told);

    bool fine(PyObject* value) const;

  private:
    enum class Kind { nothing, integer, number, text, flag, ids, rows, record, list, each, any };
    struct Tree {
        Kind kind;
        nanobind::object type;                                   // of a record, and of rows
        std::vector<std::pair<Py_ssize_t, const Tree*>> fields;  // slot and tree
        std::vector<const Tree*> parts;                          // of a tuple, or to choose from
    };

    const Tree* tree_of(nanobind::handle told);
    static bool fits(const Tree& tree, PyObject* value);
    static bool fields_fit(const Tree& tree, PyObject* value);
    static bool rows_fit(const Tree& tree, PyObject* value);
    static bool tuple_fits(const Tree& tree, PyObject* value);

    std::vector<std::unique_ptr<Tree>> trees_;
    std::vector<const Tree*> types_;
};

}  // namespace kvsweep::ledger
