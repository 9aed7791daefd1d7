// Lists of block ids that are never changed once they are made, and ragged rows of them.
#pragma once

#include <Python.h>

#include <cstdint>
#include <cstring>
#include <new>
#include <utility>

namespace kvsweep::fold {

constexpr std::int32_t hole = -1;

// A borrowed list of little-endian int32 that may stand anywhere in a body, so it is read byte-wise.
struct Span {
    const unsigned char* data = nullptr;
    std::uint32_t count = 0;

    std::int32_t operator[](std::uint32_t at) const {
        std::int32_t word;
        std::memcpy(&word, data + std::size_t{4} * at, sizeof word);
        return word;
    }
    std::size_t bytes() const { return std::size_t{4} * count; }
    bool empty() const { return count == 0; }
    bool operator==(const Span& other) const {
        return count == other.count && (count == 0 || std::memcmp(data, other.data, bytes()) == 0);
    }
};

// An owned list, shared by whoever copies it: Python's own bytes, so that a state and what Python sees of it are one.
// Whoever uses it holds Python's lock.
class Ids {
  public:
    Ids() = default;
    explicit Ids(Span from) : Ids(uninitialized(from.count)) {
        if (from.count != 0) {
            std::memcpy(writable(), from.data, from.bytes());
        }
    }
    // What these bytes hold; they are whole int32.
    static Ids of(PyObject* bytes) {
        Ids made;
        if (PyBytes_GET_SIZE(bytes) != 0) {
            made.bytes_ = Py_NewRef(bytes);
        }
        return made;
    }
    // Of so many ids, to be filled in through `writable` before anybody else sees it.
    static Ids uninitialized(std::uint32_t count) {
        Ids made;
        if (count != 0) {
            made.bytes_ = PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(count) * 4);
            if (made.bytes_ == nullptr) {
                throw std::bad_alloc();
            }
        }
        return made;
    }
    Ids(const Ids& other) : bytes_(Py_XNewRef(other.bytes_)) {}
    Ids(Ids&& other) noexcept : bytes_(std::exchange(other.bytes_, nullptr)) {}
    Ids& operator=(Ids other) noexcept {
        std::swap(bytes_, other.bytes_);
        return *this;
    }
    ~Ids() { Py_XDECREF(bytes_); }

    // Of a list that is longer than it came to be, and that nobody else has seen.
    Ids first(std::uint32_t kept) && {
        if (kept == 0) {
            return {};
        }
        if (kept != count() && _PyBytes_Resize(&bytes_, static_cast<Py_ssize_t>(kept) * 4) != 0) {
            throw std::bad_alloc();
        }
        return std::move(*this);
    }

    std::int32_t* writable() { return const_cast<std::int32_t*>(begin()); }
    const std::int32_t* begin() const {
        return bytes_ == nullptr ? nullptr : reinterpret_cast<const std::int32_t*>(PyBytes_AS_STRING(bytes_));
    }
    const std::int32_t* end() const { return begin() + count(); }
    std::uint32_t count() const {
        return bytes_ == nullptr ? 0 : static_cast<std::uint32_t>(PyBytes_GET_SIZE(bytes_) / 4);
    }
    bool empty() const { return bytes_ == nullptr; }
    std::int32_t operator[](std::uint32_t at) const { return begin()[at]; }
    Span span() const { return {reinterpret_cast<const unsigned char*>(begin()), count()}; }
    bool operator==(const Ids& other) const { return bytes_ == other.bytes_ || span() == other.span(); }
    // A new reference to the bytes.
    PyObject* bytes() const { return bytes_ == nullptr ? PyBytes_FromStringAndSize(nullptr, 0) : Py_NewRef(bytes_); }

  private:
    PyObject* bytes_ = nullptr;  // none where the list is empty
};

// Borrowed ragged rows (CSR): layers ascending, row_ptr one more than them, ids row after row. They fit each other.
struct RowsSpan {
    Span layers, row_ptr, ids;

    std::uint32_t rows() const { return layers.count; }
    std::uint32_t begin(std::uint32_t row) const { return static_cast<std::uint32_t>(row_ptr[row]); }
    std::uint32_t end(std::uint32_t row) const { return static_cast<std::uint32_t>(row_ptr[row + 1]); }
    Span row(std::uint32_t row) const { return {ids.data + std::size_t{4} * begin(row), end(row) - begin(row)}; }
    bool same_shape(const RowsSpan& other) const { return layers == other.layers && row_ptr == other.row_ptr; }
};

// The same, owned. Rows without any layer have a row_ptr of one 0.
struct Rows {
    Ids layers, row_ptr, ids;

    Rows() : row_ptr(Ids::uninitialized(1)) { row_ptr.writable()[0] = 0; }
    Rows(Ids of_layers, Ids of_ends, Ids of_ids)
        : layers(std::move(of_layers)), row_ptr(std::move(of_ends)), ids(std::move(of_ids)) {}
    explicit Rows(const RowsSpan& from) : layers(from.layers), row_ptr(from.row_ptr), ids(from.ids) {}

    RowsSpan span() const { return {layers.span(), row_ptr.span(), ids.span()}; }
    std::uint32_t rows() const { return layers.count(); }
    bool operator==(const Rows& other) const {
        return layers == other.layers && row_ptr == other.row_ptr && ids == other.ids;
    }
};

}  // namespace kvsweep::fold
