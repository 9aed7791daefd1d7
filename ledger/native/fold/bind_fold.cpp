// The Python edge: kvsweep.ledger._fold. What each function means stands in _fold.pyi.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string_view.h>

#include <algorithm>
#include <memory>

#include "core.hpp"
#include "phases.hpp"
#include "snapshot.hpp"
#include "wire.hpp"

namespace nb = nanobind;

namespace kvsweep::fold {
namespace {

std::string_view view_of(const nb::bytes& bytes) { return {bytes.c_str(), bytes.size()}; }

nb::object bind_machine_of(const nb::bytes& state) {
    auto made = std::make_unique<Machine>();  // it never moves: its parts point into it
    if (!load(view_of(state), *made)) {
        return nb::none();
    }
    return nb::cast(made.release(), nb::rv_policy::take_ownership);
}

nb::bytes bind_state_bytes(const Machine& machine) {
    const std::string state = save(machine);
    return nb::bytes(state.data(), state.size());
}

bool bind_apply(Machine& machine, const nb::bytes& body) {
    Fact fact;
    return read_fact(view_of(body), fact) && machine.apply(fact);
}

// Those before `start` are stepped over, whether they could be read or not.
std::int64_t bind_feed(Machine& machine, const nb::bytes& bodies, std::int64_t start, std::int64_t stop, int pause) {
    Cursor in(view_of(bodies));
    std::uint32_t items = 0;
    if (start < 0 || !in.array(items) || stop > items) {
        return start;
    }
    for (std::int64_t at = 0; at < start; ++at) {
        if (!in.skip()) {
            return start;
        }
    }
    std::string_view left(reinterpret_cast<const char*>(in.at()), in.left());
    Fact fact;
    for (std::int64_t at = start; at < stop; ++at) {
        const std::size_t size = read_front(left, fact);
        const bool more_than_said = at + 1 == items && size != left.size();
        if (size == 0 || more_than_said || fact.tag == pause || !machine.apply(fact)) {
            return at;
        }
        left.remove_prefix(size);
    }
    return std::max(start, stop);
}

nb::dict bind_tables() {
    nb::dict tables;
    each_move([&tables](std::string_view machine, std::string_view from, int tag, std::string_view to) {
        const nb::str name(machine.data(), machine.size());
        if (!tables.contains(name)) {
            tables[name] = nb::dict();
        }
        tables[name][nb::make_tuple(from, tag)] = nb::cast(to);
    });
    return tables;
}

}  // namespace
}  // namespace kvsweep::fold

NB_MODULE(_fold, module) {
    using namespace kvsweep::fold;
    nb::set_leak_warnings(false);  // a program may end with a driver that nobody closed: no word of it on its stderr
    nb::class_<Machine>(module, "Machine")
        .def("state_bytes", &bind_state_bytes)
        .def("apply", &bind_apply)
        .def("feed", &bind_feed, nb::arg("bodies"), nb::arg("start"), nb::arg("stop"), nb::arg("pause") = -1);
    module.def("machine_of", &bind_machine_of);
    module.def("readable", [](const nb::bytes& body) {
        Fact fact;
        return read_fact(view_of(body), fact);
    });
    module.def("tables", &bind_tables);
    bind_core(module);
}
