// The Python edge of the ledger's native part. kvsweep.ledger.store.encoding, typecheck and hashing are its only
// callers.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <stdexcept>

#include "chain.hpp"
#include "crc.hpp"
#include "encode.hpp"
#include "sha256.hpp"
#include "typecheck.hpp"

namespace nb = nanobind;

namespace kvsweep::ledger {
namespace {

constexpr std::int64_t kept_lock_bytes = 512 << 10;
constexpr std::int64_t most_position = std::int64_t{1} << 62;
constexpr const char* schema_name = "kvsweep.ledger.schema";

Schema& schema_in(nb::handle capsule) {
    auto* found = static_cast<Schema*>(PyCapsule_GetPointer(capsule.ptr(), schema_name));
    if (found == nullptr) {
        nb::raise_python_error();
    }
    return *found;
}

constexpr const char* typecheck_name = "kvsweep.ledger.typecheck";

// The capsule owns it from here on.
template <class Made>
nb::object capsule_of(std::unique_ptr<Made> made, const char* const name) {
    PyObject* capsule = PyCapsule_New(made.get(), name, [](PyObject* self) {
        delete static_cast<Made*>(PyCapsule_GetPointer(self, PyCapsule_GetName(self)));
    });
    if (capsule == nullptr) {
        nb::raise_python_error();
    }
    static_cast<void>(made.release());
    return nb::steal(capsule);
}

nb::object bind_schema(nb::handle facts, nb::handle names, nb::handle request, nb::handle operation, nb::handle part,
                       nb::handle otherwise) {
    auto made = std::make_unique<Schema>(facts, names);
    made->types(request, operation, part, otherwise);
    return capsule_of(std::move(made), schema_name);
}

// Called for every append: a plain function of one argument that carries its schema costs the least.
PyObject* encode(PyObject* schema, PyObject* events) noexcept {
    try {
        return schema_in(schema).encode(events).release().ptr();
    } catch (nb::python_error& error) {
        error.restore();
    } catch (const std::bad_alloc&) {
        PyErr_NoMemory();
    } catch (const std::exception& error) {
        PyErr_SetString(PyExc_RuntimeError, error.what());
    }
    return nullptr;
}

PyMethodDef encode_method = {"encode_part", encode, METH_O, "Check and encode a batch."};

// Called for every message.
PyObject* fine(PyObject* trees, PyObject* value) noexcept {
    const auto* found = static_cast<const TypeCheck*>(PyCapsule_GetPointer(trees, typecheck_name));
    return found == nullptr ? nullptr : PyBool_FromLong(found->fine(value));
}

PyMethodDef fine_method = {"fine", fine, METH_O, "Whether a value has the types of its declaration."};

nb::object function_of(PyMethodDef& method, nb::handle self) {
    PyObject* made = PyCFunction_New(&method, self.ptr());
    if (made == nullptr) {
        nb::raise_python_error();
    }
    return nb::steal(made);
}

nb::object bind_encoder(nb::handle schema) {
    schema_in(schema);
    return function_of(encode_method, schema);
}

nb::object bind_checker(nb::handle told) {
    return function_of(fine_method, capsule_of(std::make_unique<TypeCheck>(told), typecheck_name));
}

struct Bytes {
    const std::uint8_t* data;
    std::int64_t size;

    explicit Bytes(nb::handle object) {
        if (!PyBytes_CheckExact(object.ptr())) {
            throw std::invalid_argument("data: expected bytes");
        }
        data = reinterpret_cast<const std::uint8_t*>(PyBytes_AS_STRING(object.ptr()));
        size = PyBytes_GET_SIZE(object.ptr());
    }
};

// A part whose rows say nothing that is not so: everything that `pack` will follow is looked at here.
Part part_of(nb::handle data, nb::handle rows, nb::handle numbers, const std::vector<std::string>& names) {
    const Bytes bytes(data), told(rows);
    if (told.size % static_cast<std::int64_t>(sizeof(Row)) != 0 || !PyList_CheckExact(numbers.ptr())) {
        throw std::invalid_argument("part: expected whole rows, and a list of numbers");
    }
    const std::int64_t events = told.size / static_cast<std::int64_t>(sizeof(Row));
    Part part{bytes.data, 0, reinterpret_cast<const Row*>(told.data), events, {}};
    for (Py_ssize_t at = 0; at < PyList_GET_SIZE(numbers.ptr()); ++at) {
        const std::int64_t number = PyLong_AsLongLong(PyList_GET_ITEM(numbers.ptr(), at));
        if (number == -1 && PyErr_Occurred() != nullptr) {
            nb::raise_python_error();
        }
        part.numbers.push_back(number);
    }
    std::uint8_t head[5];
    part.start = array_head(part.events, head);
    std::int64_t left = bytes.size - part.start;
    bool fine = left >= 0;
    for (std::int64_t at = 0; fine && at < part.events; ++at) {
        const Row& row = part.rows[at];
        fine = row.bytes >= 0 && row.bytes <= left && row.request >= 0 &&
               row.request < static_cast<std::int64_t>(part.numbers.size()) && row.tag >= 0 &&
               row.tag < static_cast<std::int64_t>(names.size()) && !names[static_cast<std::size_t>(row.tag)].empty();
        left -= row.bytes;
    }
    if (!fine || left != 0) {
        throw std::invalid_argument("part: expected rows that fit its data, its numbers and the types of events");
    }
    return part;
}

nb::object text_of(const std::string& ascii) {
    PyObject* made = PyUnicode_New(static_cast<Py_ssize_t>(ascii.size()), 127);
    if (made == nullptr) {
        nb::raise_python_error();
    }
    std::memcpy(PyUnicode_1BYTE_DATA(made), ascii.data(), ascii.size());
    return nb::steal(made);
}

nb::object buffer_of(std::int64_t bytes) {
    PyObject* made = PyBytes_FromStringAndSize(nullptr, bytes);
    if (made == nullptr) {
        nb::raise_python_error();
    }
    return nb::steal(made);
}

std::uint8_t* inside(nb::handle bytes) { return reinterpret_cast<std::uint8_t*>(PyBytes_AS_STRING(bytes.ptr())); }

// (crcs, plain, body, places) of parts (data, rows, numbers).
nb::tuple bind_pack(nb::handle schema, nb::list told, std::int64_t first, bool fold) {
    const std::vector<std::string>& names = schema_in(schema).names();
    if (fold && !crc_folds()) {
        throw std::invalid_argument("fold: expected false on this processor");
    }
    std::vector<Part> parts;
    std::int64_t events = 0, bytes = 0;
    for (nb::handle one : told) {
        parts.push_back(part_of(one[0], one[1], one[2], names));
        const Part& part = parts.back();
        events += part.events;
        bytes += Bytes(one[0]).size - part.start;
    }
    if (events == 0 || events > std::numeric_limits<std::uint32_t>::max() || first < 0 || first > most_position) {
        throw std::invalid_argument("parts, first: expected at least one event, and a position from 0 to 2^62");
    }
    const bool alone = parts.size() == 1;
    std::uint8_t head[5];
    nb::object body = alone ? nb::borrow(told[0][0]) : buffer_of(array_head(events, head) + bytes);
    nb::object crcs = buffer_of(4 * events);
    // Beside a thread that computes, the interpreter's lock comes back after its whole interval of 5 ms: what takes
    // less than a tenth of that keeps it.
    std::optional<nb::gil_scoped_release> released;
    if (bytes > kept_lock_bytes) {
        released.emplace();  // bytes do not change, and `told` holds them
    }
    const Texts texts = pack(parts, first, names, alone ? nullptr : inside(body), inside(crcs), fold);
    released.reset();
    return nb::make_tuple(crcs, text_of(texts.plain), body, text_of(texts.places));
}

std::uint32_t bind_crc32(nb::handle data, std::uint32_t crc, bool fold) {
    if (fold && !crc_folds()) {
        throw std::invalid_argument("fold: expected false on this processor");
    }
    Py_buffer view;
    if (PyObject_GetBuffer(data.ptr(), &view, PyBUF_SIMPLE) != 0) {
        nb::raise_python_error();
    }
    crc = crc32(crc, static_cast<const std::uint8_t*>(view.buf), static_cast<std::size_t>(view.len), fold);
    PyBuffer_Release(&view);
    return crc;
}

nb::object bytes_of(const Link& link) { return nb::bytes(reinterpret_cast<const char*>(link.data()), link.size()); }

Link link_of(nb::handle chain) {
    const Bytes told(chain);
    Link made{};
    if (told.size != static_cast<std::int64_t>(made.size())) {
        throw std::invalid_argument("chain: expected 32 bytes");
    }
    std::memcpy(made.data(), told.data, made.size());
    return made;
}

nb::object sha256_by(nb::handle data, bool hardware) {
    if (hardware && !sha256_hardware()) {
        throw std::invalid_argument("hardware: expected false on this processor");
    }
    const Bytes told(data);
    Sha256 hash(hardware);
    hash.update(told.data, static_cast<std::size_t>(told.size));
    return bytes_of(hash.digest());
}

// Keeps the interpreter's lock, whatever the size.
nb::object bind_sha256(nb::handle data) { return sha256_by(data, sha256_hardware()); }

nb::object chain_of(nb::handle schema, nb::handle chain, nb::handle bodies, std::int64_t start, std::int64_t stop) {
    const Bytes told(bodies);
    Link link = link_of(chain);
    if (!add_bodies(schema_in(schema), Reader(told.data, static_cast<std::size_t>(told.size)), start, stop, link)) {
        throw std::invalid_argument("bodies: expected one array of events as the encoder writes them");
    }
    return bytes_of(link);
}

nb::object bind_chain_of_events(nb::handle schema, nb::handle chain, nb::handle events) {
    const nb::object bodies = schema_in(schema).bodies_of(events);
    if (!bodies) {
        throw std::invalid_argument("events: expected a list or tuple of events that can be encoded");
    }
    return chain_of(schema, chain, bodies, 0, PySequence_Fast_GET_SIZE(events.ptr()));
}

// (inode, device, bytes) of a file, None where it is not there. `os.stat` gives the interpreter's lock away, for a
// microsecond that may cost the interval of 5 ms.
nb::object bind_look(nb::handle path) {
    const Bytes name(path);
    struct stat found;
    if (::stat(reinterpret_cast<const char*>(name.data), &found) == 0) {
        return nb::make_tuple(static_cast<std::uint64_t>(found.st_ino), static_cast<std::uint64_t>(found.st_dev),
                              static_cast<std::int64_t>(found.st_size));
    }
    if (errno == ENOENT) {
        return nb::none();
    }
    PyErr_SetFromErrnoWithFilename(PyExc_OSError, reinterpret_cast<const char*>(name.data));
    nb::raise_python_error();
}

}  // namespace
}  // namespace kvsweep::ledger

NB_MODULE(_store, module) {
    using namespace kvsweep::ledger;
    nb::set_leak_warnings(false);  // a program may end with a driver that nobody closed: no word of it on its stderr
    module.def("crc_folds", &crc_folds);
    module.def("crc32", &bind_crc32);
    module.def("schema", &bind_schema);
    module.def("encoder", &bind_encoder);
    module.def("pack", &bind_pack);
    module.def("look", &bind_look);
    module.def("checker", &bind_checker);
    module.def("sha256_hardware", &sha256_hardware);
    module.def("sha256", &bind_sha256);
    module.def("sha256_by", &sha256_by);
    module.def("chain_of_bodies", &chain_of);
    module.def("chain_of_events", &bind_chain_of_events);
}
