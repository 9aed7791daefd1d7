// The Python edge of the core for ordinary words. What each method means stands in _fold.pyi.
#include "core.hpp"

namespace kvsweep::fold {

void bind_core(nb::module_& module) {
    nb::class_<Core>(module, "Core")
        .def(nb::init<nb::object, nb::handle, nb::object, nb::handle>())
        .def("handle", &Core::handle)
        .def("end_step", &Core::end_step)
        .def("handed_out", &Core::handed_out)
        .def("adopt", &Core::adopt)
        .def("torn", &Core::torn)
        .def("state", &Core::state)
        .def("taken", &Core::taken)
        .def("moved", &Core::moved)
        .def("floor", &Core::floor)
        .def("fed", &Core::fed);
}

}  // namespace kvsweep::fold
