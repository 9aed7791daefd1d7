#include "named.hpp"

#include "../sha256.hpp"
#include "../sink.hpp"

namespace kvsweep::fold {
namespace {

class Hashed {
  public:
    void put(const void* from, std::size_t bytes) { hash_.update(from, bytes); }
    void byte(std::uint8_t value) { put(&value, 1); }
    template <class T>
    void big_endian(std::uint8_t head, T value) {
        std::uint8_t wire[1 + sizeof(T)];
        ledger::write_head(wire, head, value);
        put(wire, sizeof wire);
    }
    nb::object hex() {
        constexpr char digits[] = "0123456789abcdef";
        char made[64];
        char* next = made;
        for (const std::uint8_t byte : hash_.digest()) {
            *next++ = digits[byte >> 4];
            *next++ = digits[byte & 15];
        }
        return text({made, sizeof made});
    }

  private:
    ledger::Sha256 hash_;
};

bool put_text(Hashed& to, PyObject* object) {
    std::string_view utf8;
    if (!read(object, utf8) || utf8.size() > 0xFFFF) {
        return false;
    }
    if (utf8.size() < 0x20) {
        to.byte(static_cast<std::uint8_t>(0xA0 | utf8.size()));
    } else if (utf8.size() <= 0xFF) {
        to.big_endian(0xD9, static_cast<std::uint8_t>(utf8.size()));
    } else {
        to.big_endian(0xDA, static_cast<std::uint16_t>(utf8.size()));
    }
    to.put(utf8.data(), utf8.size());
    return true;
}

bool put_value(Hashed& to, const Words& words, PyObject* object) {
    std::int64_t number_of = 0;
    if (object == Py_None || object == Py_False || object == Py_True) {
        to.byte(object == Py_None ? 0xC0 : object == Py_False ? 0xC2 : 0xC3);
        return true;
    }
    if (PyBytes_CheckExact(object)) {
        ledger::put_bytes(to, PyBytes_AS_STRING(object), PyBytes_GET_SIZE(object));
        return static_cast<std::uint64_t>(PyBytes_GET_SIZE(object)) <= ledger::most_bytes;
    }
    if (read(object, number_of)) {
        ledger::put_integer(to, number_of);
        return true;
    }
    for (const Kind* kind : {&words.rows, &words.key}) {  // structs that are written as arrays
        if (kind->is(object)) {
            ledger::put_array(to, static_cast<std::int64_t>(kind->fields()));
            bool fine = true;
            for (std::size_t field = 0; fine && field < kind->fields(); ++field) {
                fine = put_value(to, words, kind->get(object, field));
            }
            return fine;
        }
    }
    return put_text(to, object);
}

}  // namespace

nb::object digest_of(const Words& words, const Kind& kind, PyObject* message) {
    if (!kind.is(message)) {
        return {};
    }
    Hashed to;
    to.byte(static_cast<std::uint8_t>(0x80 | kind.fields()));  // a map of fewer than 16
    for (std::size_t field = 0; field < kind.fields(); ++field) {
        if (!put_text(to, kind.name(field)) || !put_value(to, words, kind.get(message, field))) {
            return {};
        }
    }
    return to.hex();
}

}  // namespace kvsweep::fold
