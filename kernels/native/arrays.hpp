// NumPy arrays at the edge: type, dtype, number of axes, order and writability are checked once, here.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <cstring>
#include <string>

#include "core.hpp"

namespace kvsweep {

// numpy.ndarray; set when the module is imported.
inline PyTypeObject* array_type = nullptr;

template <class T>
constexpr bool format_is(const char* format) {
    if constexpr (std::is_same_v<T, std::int32_t>) {
        return (format[0] == 'i' || (format[0] == 'l' && sizeof(long) == 4)) && format[1] == 0;
    } else if constexpr (std::is_same_v<T, std::uint8_t>) {
        return format[0] == 'B' && format[1] == 0;
    } else {
        static_assert(std::is_same_v<T, float>);
        return format[0] == 'f' && format[1] == 0;
    }
}

// A C-contiguous array of T with `axes` axes, borrowed while this lives; const T for arrays that are only read.
template <class T, int axes>
class Array {
  public:
    Array(nanobind::handle object, const char* argument) {
        if (!PyObject_TypeCheck(object.ptr(), array_type)) {
            refuse(argument, "a NumPy array");
        }
        constexpr int wanted = PyBUF_FORMAT | PyBUF_C_CONTIGUOUS | (std::is_const_v<T> ? 0 : PyBUF_WRITABLE);
        if (PyObject_GetBuffer(object.ptr(), &view_, wanted) != 0) {
            PyErr_Clear();
            refuse(argument, std::is_const_v<T> ? "a C-contiguous array" : "a writable C-contiguous array");
        }
        if (view_.ndim != axes || !format_is<std::remove_const_t<T>>(view_.format)) {
            PyBuffer_Release(&view_);
            refuse(argument, "another dtype or number of axes");
        }
    }
    Array(const Array&) = delete;
    Array& operator=(const Array&) = delete;
    ~Array() { PyBuffer_Release(&view_); }

    T* data() const { return static_cast<T*>(view_.buf); }
    std::int64_t size(int axis) const { return view_.shape[axis]; }
    std::int64_t bytes() const { return view_.len; }

    void expect(int axis, std::int64_t size, const char* argument) const {
        if (view_.shape[axis] != size) {
            refuse(argument, "another shape");
        }
    }

    [[noreturn]] static void refuse(const char* argument, const char* expected) {
        throw Refused(std::string(argument) + ": expected " + expected);
    }

  private:
    Py_buffer view_{};
};

using Ids = Array<const std::int32_t, 1>;

inline Rows rows_of(const Ids& row_ptr, const Ids& ids, const char* argument) {
    if (row_ptr.size(0) == 0) {
        Ids::refuse(argument, "rows + 1 row pointers");
    }
    const Rows rows{row_ptr.data(), ids.data(), row_ptr.size(0) - 1, ids.size(0)};
    return rows;
}

template <class A, class B>
void expect_apart(const A& one, const B& other, const char* argument) {
    const auto a = reinterpret_cast<std::uintptr_t>(one.data()), b = reinterpret_cast<std::uintptr_t>(other.data());
    const auto a_bytes = static_cast<std::uintptr_t>(one.bytes()), b_bytes = static_cast<std::uintptr_t>(other.bytes());
    if (a < b + b_bytes && b < a + a_bytes) {
        A::refuse(argument, "memory apart from the input");
    }
}

inline Run run_of(int isa, int threads) {
    if (isa < 0 || isa > static_cast<int>(best_isa()) || threads < 1 || threads > 1024) {
        throw Refused("isa, threads: expected an instruction set of this processor and 1 to 1024 threads");
    }
    return {static_cast<Isa>(isa), threads};
}

}  // namespace kvsweep
