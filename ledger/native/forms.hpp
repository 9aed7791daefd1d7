// Whether an object has the types that its declaration gives, as kvsweep.ledger.typecheck tells them. Says only yes or no:
// Python explains a no.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <utility>
#include <vector>

namespace kvsweep::ledger {

class Forms {
  public:
    // A form of each type that is fine; see kvsweep.ledger.typecheck for what is told.
    explicit Forms(nanobind::handle told);

    bool fine(PyObject* value) const;

  private:
    enum class Kind { nothing, word, number, text, flag, ids, rows, record, list, each, any };
    struct Form {
        Kind kind;
        nanobind::object type;                                  // of a record, and of rows
        std::vector<std::pair<Py_ssize_t, const Form*>> fields;  // slot and form
        std::vector<const Form*> parts;                         // of a tuple, or to choose from
    };

    const Form* form_of(nanobind::handle told);
    static bool fits(const Form& form, PyObject* value);
    static bool fields_fit(const Form& form, PyObject* value);
    static bool rows_fit(const Form& form, PyObject* value);
    static bool tuple_fits(const Form& form, PyObject* value);

    std::vector<std::unique_ptr<Form>> forms_;
    std::vector<const Form*> types_;
};

}  // namespace kvsweep::ledger
