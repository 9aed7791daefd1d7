// The names of messages: SHA-256 of what msgspec writes for them. See selection_digest and retain_digest.
#pragma once

#include "vocabulary.hpp"

namespace kvsweep::fold {

// In hexadecimal. Null where the message, or something in it, is not plainly of its type.
nb::object digest_of(const Words& words, const Kind& kind, PyObject* message);

}  // namespace kvsweep::fold
