// Learning the types of events.
#include "encode.hpp"

#include <nanobind/stl/string.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "slots.hpp"

namespace nb = nanobind;

namespace kvsweep::ledger {
namespace {

constexpr std::int64_t most_tag = 127;  // one byte of msgpack

std::size_t place_of(const PyTypeObject* type, std::size_t size) {
    return (reinterpret_cast<std::uintptr_t>(type) >> 4) * 0x9E3779B1U & (size - 1);
}

std::string text_of(nb::handle bytes) {
    const auto held = nb::cast<nb::bytes>(bytes);
    return {held.c_str(), held.size()};
}

}  // namespace

Schema::Schema(nb::handle facts, nb::handle names) {
    facts_.reserve(nb::len(facts));
    by_type_.resize(8);
    while (by_type_.size() < 4 * nb::len(facts)) {
        by_type_.resize(2 * by_type_.size());
    }
    for (nb::handle told : facts) {
        Fact& fact = facts_.emplace_back();
        fact.type = nb::borrow(told[0]);
        fact.tag = nb::cast<std::int64_t>(told[1]);
        if (fact.tag < 0 || fact.tag > most_tag) {
            throw std::invalid_argument("tag: expected one from 0 to 127");
        }
        fact.fields = fields_of(fact.type, told[2]);
        fact.request = slot_of(fact.type, nb::str("request"));
        fact.seq = slot_of(fact.type, nb::str("seq"));
        fact.operation = nb::cast<bool>(told[3]) ? slot_of(fact.type, nb::str("operation")) : 0;
        fact.rank = nb::cast<bool>(told[4]) ? slot_of(fact.type, nb::str("rank")) : 0;
        by_tag_.resize(std::max(by_tag_.size(), static_cast<std::size_t>(fact.tag) + 1));
        by_tag_[static_cast<std::size_t>(fact.tag)] = &fact;
        std::size_t at = place_of(reinterpret_cast<PyTypeObject*>(fact.type.ptr()), by_type_.size());
        while (by_type_[at] != nullptr) {
            at = (at + 1) % by_type_.size();
        }
        by_type_[at] = &fact;
    }
    for (nb::handle told : names) {
        const auto tag = nb::cast<std::int64_t>(told[0]);
        if (tag < 0 || tag > most_tag) {
            throw std::invalid_argument("tag: expected one from 0 to 127");
        }
        names_.resize(std::max(names_.size(), static_cast<std::size_t>(tag) + 1));
        names_[static_cast<std::size_t>(tag)] = nb::cast<std::string>(told[1]);
    }
}

void Schema::types(nb::handle request, nb::handle operation, nb::handle part, nb::handle otherwise) {
    part_ = nb::borrow(part);
    otherwise_ = nb::borrow(otherwise);
    request_id_ = slot_of(request, nb::str("request_id"));
    request_epoch_ = slot_of(request, nb::str("request_epoch"));
    operation_id_ = slot_of(operation, nb::str("operation_id"));
}

std::vector<Field> Schema::fields_of(nb::handle type, nb::handle told) {
    std::vector<Field> fields;
    for (nb::handle field : told) {
        Shape* shape = shape_of(field[1]);
        fields.push_back({slot_of(type, field[0]), shape});
    }
    return fields;
}

Shape* Schema::shape_of(nb::handle told) {
    static constexpr std::pair<const char*, Kind> kinds[] = {
        {"count", Kind::count},   {"integer", Kind::integer}, {"seconds", Kind::seconds}, {"text", Kind::text},
        {"one of", Kind::one_of}, {"ids", Kind::ids},         {"pairs", Kind::pairs},     {"list", Kind::list},
        {"record", Kind::record}, {"rows", Kind::rows},       {"checked", Kind::checked},
    };
    const auto wanted = nb::cast<std::string>(told[0]);
    for (const auto& [name, kind] : kinds) {
        if (wanted != name) {
            continue;
        }
        Shape made{kind, nb::cast<bool>(told[1]), {}, {}, {}, nullptr, {}};
        Shape* shape = shapes_.emplace_back(std::make_unique<Shape>(std::move(made))).get();
        if (kind == Kind::record || kind == Kind::rows || kind == Kind::checked) {
            shape->type = nb::borrow(told[2]);
            shape->fields = fields_of(shape->type, told[3]);
            shape->aside = nb::len(told) > 4 ? text_of(told[4]) : "";
        } else if (kind == Kind::list) {
            shape->items = shape_of(told[2]);
        } else if (kind == Kind::one_of) {
            for (nb::handle text : told[2]) {
                shape->texts.push_back(nb::borrow(text));
            }
        }
        return shape;
    }
    throw std::invalid_argument("shape: expected a kind that is known, got " + wanted);
}

const Fact* Schema::fact_of(std::int64_t tag) const {
    const auto at = static_cast<std::size_t>(tag);  // one below 0 is beyond all
    return at < by_tag_.size() ? by_tag_[at] : nullptr;
}

const Fact* Schema::fact_of(PyTypeObject* type) const {
    for (std::size_t at = place_of(type, by_type_.size()); by_type_[at] != nullptr; at = (at + 1) % by_type_.size()) {
        if (by_type_[at]->type.ptr() == reinterpret_cast<PyObject*>(type)) {
            return by_type_[at];
        }
    }
    return nullptr;
}

}  // namespace kvsweep::ledger
