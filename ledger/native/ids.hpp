// Lists of ids at the edge to Python: bytes, or arrays of int32, borrowed for the length of a call.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <stdexcept>
#include <string>

namespace kvsweep {

// Every argument that is not what it has to be: a ValueError in Python.
struct Refused : std::invalid_argument {
    using std::invalid_argument::invalid_argument;
};

inline bool is_int32(const Py_buffer& view) {
    const std::string format = view.format ? view.format : "B";
    return view.itemsize == 4 && (format == "i" || format == "l" || format == "<i" || format == "<l");
}

// Little-endian int32 values: a bytes object, or a C-contiguous array of int32.
class Ids {
  public:
    Ids(nanobind::handle object, const char* argument) {
        if (PyBytes_CheckExact(object.ptr())) {
            set(PyBytes_AS_STRING(object.ptr()), PyBytes_GET_SIZE(object.ptr()), argument);
            return;
        }
        if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_FORMAT | PyBUF_C_CONTIGUOUS) != 0) {
            PyErr_Clear();
            refuse(argument, "bytes or a C-contiguous array of int32");
        }
        if (!is_int32(view_)) {
            PyBuffer_Release(&view_);
            refuse(argument, "bytes or a C-contiguous array of int32");
        }
        set(view_.buf, view_.len, argument);
    }
    Ids(const Ids&) = delete;
    Ids& operator=(const Ids&) = delete;
    ~Ids() {
        if (view_.obj) {
            PyBuffer_Release(&view_);
        }
    }

    const std::int32_t* begin() const { return data_; }
    const std::int32_t* end() const { return data_ + size_; }
    std::int64_t size() const { return size_; }
    std::int32_t operator[](std::int64_t at) const { return data_[at]; }

    [[noreturn]] static void refuse(const char* argument, const char* expected) {
        throw Refused(std::string(argument) + ": expected " + expected);
    }

  private:
    void set(const void* data, std::int64_t bytes, const char* argument) {
        if (bytes % 4 != 0 || reinterpret_cast<std::uintptr_t>(data) % 4 != 0) {
            if (view_.obj) {
                PyBuffer_Release(&view_);
            }
            refuse(argument, "whole, aligned int32 values");
        }
        data_ = static_cast<const std::int32_t*>(data);
        size_ = bytes / 4;
    }

    Py_buffer view_{};
    const std::int32_t* data_ = nullptr;
    std::int64_t size_ = 0;
};

// Ragged rows: the ids of row r stand from ptr[r] to ptr[r + 1].
class Ragged {
  public:
    Ragged(nanobind::handle ptr, nanobind::handle ids, const char* argument)
        : ptr_(ptr, argument), ids_(ids, argument) {
        if (ptr_.size() < 1 || ptr_[0] != 0 || ptr_[ptr_.size() - 1] != ids_.size()) {
            Ids::refuse(argument, "row pointers from 0 to the number of ids");
        }
        for (std::int64_t row = 0; row < rows(); ++row) {
            if (ptr_[row + 1] < ptr_[row]) {
                Ids::refuse(argument, "ascending row pointers");
            }
        }
    }

    std::int64_t rows() const { return ptr_.size() - 1; }
    std::int64_t size() const { return ids_.size(); }
    const std::int32_t* begin(std::int64_t row) const { return ids_.begin() + ptr_[row]; }
    const std::int32_t* end(std::int64_t row) const { return ids_.begin() + ptr_[row + 1]; }
    std::int64_t count(std::int64_t row) const { return ptr_[row + 1] - ptr_[row]; }
    const Ids& ids() const { return ids_; }

  private:
    Ids ptr_, ids_;
};

// A new bytes object of `count` int32 values, to be filled before anybody else sees it.
class NewIds {
  public:
    explicit NewIds(std::int64_t count)
        : bytes_(nanobind::steal(PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(4 * count)))) {
        if (!bytes_.is_valid()) {
            throw nanobind::python_error();
        }
    }

    std::int32_t* data() const { return reinterpret_cast<std::int32_t*>(PyBytes_AS_STRING(bytes_.ptr())); }

    // The first `count` values of it.
    nanobind::object take(std::int64_t count) {
        PyObject* raw = bytes_.release().ptr();
        if (PyBytes_GET_SIZE(raw) != 4 * count && _PyBytes_Resize(&raw, static_cast<Py_ssize_t>(4 * count)) != 0) {
            throw nanobind::python_error();
        }
        return nanobind::steal(raw);
    }

  private:
    nanobind::object bytes_;
};

}  // namespace kvsweep
