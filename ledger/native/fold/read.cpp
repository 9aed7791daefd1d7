#include "fact.hpp"
#include "wire.hpp"
#include "words.hpp"

namespace kvsweep::fold {
namespace {

// The fields of one event, front to back. A field that the event is too short for takes its default, if it has one.
class Fields {
  public:
    Fields(Cursor& in, Fact& fact, std::uint32_t left) : in_(in), fact_(fact), left_(left) {}

    // ---- what an event may have

    bool count(std::int64_t& value) { return more() && number(value); }
    bool text(std::string_view& value) { return more() && in_.text(value); }
    bool ids(Span& value) { return more() && in_.ids(value); }
    bool rows(RowsSpan& value) { return more() && in_.rows(value); }
    template <class Enum, std::size_t size>
    bool one_of(const std::string_view (&words)[size], Enum& value) {
        std::string_view word;
        return text(word) && meaning(words, word, value);
    }
    bool request() { return more() && key(fact_.request_id, fact_.request_epoch); }
    bool operation() {
        return more() && in_.array_of(4) && key(fact_.operation_request_id, fact_.operation_request_epoch) &&
               number(fact_.operation.id) && number(fact_.operation.pool_generation) &&
               number(fact_.operation.map_revision);
    }
    // (rank, process epoch) pairs, ranks ascending.
    bool ranks(RankEpochs& value) {
        std::uint32_t pairs = 0;
        value.clear();
        if (!more() || !in_.array(pairs)) {
            return false;
        }
        std::int64_t last = -1;
        for (; pairs != 0; --pairs) {
            Pair& pair = value.emplace_back();
            if (!in_.array_of(2) || !in_.count(pair.first) || !in_.count(pair.second) || pair.first <= last) {
                return false;
            }
            last = pair.first;
        }
        return true;
    }
    bool by_group(std::vector<Span>& value) {
        std::uint32_t groups = 0;
        value.clear();
        if (!more() || !in_.array(groups)) {
            return false;
        }
        for (; groups != 0; --groups) {
            if (!in_.ids(value.emplace_back())) {
                return false;
            }
        }
        return true;
    }

    // ---- with defaults

    bool count_or_0(std::int64_t& value) { return default_for(value) || count(value); }
    bool text_or_none(std::string_view& value) { return default_for(value) || text(value); }
    bool ids_or_none(Span& value) { return default_for(value) || ids(value); }

    // ---- read, and not needed

    bool counts_only(int fields) {
        std::int64_t value = 0;
        for (; fields != 0 && count(value); --fields) {
        }
        return fields == 0;
    }
    bool count_or_0_only() {
        std::int64_t value = 0;
        return count_or_0(value);
    }
    bool texts_only(int fields) {
        std::string_view value;
        for (; fields != 0 && text(value); --fields) {
        }
        return fields == 0;
    }
    bool rows_or_none_only() {
        RowsSpan value;
        return left_ == 0 || (more() && (in_.nil() || in_.rows(value)));
    }
    bool measured_only() {
        std::uint32_t items = 0;
        if (left_ == 0) {
            return true;
        }
        if (!more() || !in_.array(items) || items > 2) {
            return false;
        }
        for (; items != 0 && in_.seconds(); --items) {
        }
        return items == 0;
    }
    bool implementation_only() {
        std::uint32_t items = 0;
        std::string_view value;
        return left_ == 0 || (more() && in_.array(items) && items <= 1 && (items == 0 || in_.text(value)));
    }
    bool differences_only() {
        std::uint32_t items = 0;
        if (!more() || !in_.array(items)) {
            return false;
        }
        std::string_view value;
        for (; items != 0 && in_.array_of(3) && in_.text(value) && in_.text(value) && in_.text(value); --items) {
        }
        return items == 0;
    }

    bool end() const { return left_ == 0; }

  private:
    bool more() { return left_ != 0 && left_-- != 0; }
    template <class Value>
    bool default_for(Value& value) {
        if (left_ == 0) {
            value = Value{};
            return true;
        }
        return false;
    }
    // What a peer said is recorded as it was said: any number that fits.
    bool number(std::int64_t& value) {
        const auto tag = static_cast<Tag>(fact_.tag);
        return in_.integer(value) && (value >= 0 || tag == Tag::ack_ignored || tag == Tag::ack_refused);
    }
    bool key(std::string_view& id, std::int64_t& epoch) { return in_.array_of(2) && in_.text(id) && number(epoch); }

    Cursor& in_;
    Fact& fact_;
    std::uint32_t left_;
};

constexpr std::string_view ignored_words[] = {"duplicate", "stale"};
constexpr std::string_view refused_words[] = {"future", "conflict"};

// Fields behind the key and the number, in the order of kvsweep.ledger.events.
bool read_fields(Fields& in, Fact& fact) {
    int unused = 0;
    switch (static_cast<Tag>(fact.tag)) {
        case Tag::request_opened:
            return in.count(fact.pool_generation) && in.count(fact.rows);
        case Tag::request_preempted:
        case Tag::request_resumed:
        case Tag::request_finished:
        case Tag::request_closed:
            return true;
        case Tag::blocks_selected:
            return in.count(fact.selection_revision) && in.text(fact.digest) && in.count(fact.whole_blocks) &&
                   in.count(fact.effective_budget_blocks) && in.text_or_none(fact.idempotency_key);
        case Tag::upload_planned:
            return in.operation() && in.count(fact.generation) && in.one_of(plan_words, fact.kind) &&
                   in.one_of(source_words, fact.source_kind) && in.rows(fact.logical) &&
                   in.count_or_0(fact.common_new_slots) && in.rows_or_none_only() && in.measured_only() &&
                   in.ids_or_none(fact.valid_tokens);
        case Tag::blocks_leased:
            return in.operation() && in.rows(fact.source) && in.rows(fact.destination) && in.rows(fact.adopted) &&
                   in.count(fact.row) && in.by_group(fact.reserved) && in.ids_or_none(fact.copies);
        case Tag::transfer_started:
            return in.operation() && in.ranks(fact.ranks) && in.count_or_0(fact.metadata_bytes);
        case Tag::rank_transferred:
            return in.operation() && in.count(fact.rank) && in.count(fact.process_epoch) && in.counts_only(3) &&
                   in.measured_only();
        case Tag::residency_committed:
        case Tag::owners_committed:
            return in.operation() && in.count(fact.generation);
        case Tag::keep_map_published:
            return in.operation() && in.count(fact.selection_revision) && in.rows(fact.keep) &&
                   in.count_or_0(fact.metadata_bytes);
        case Tag::upload_acknowledged:
            return in.operation() && in.count(fact.process_epoch) && in.count_or_0_only();
        case Tag::upload_aborted:
        case Tag::retain_aborted:
        case Tag::store_aborted:
            return in.operation() && in.text(fact.reason);
        case Tag::retain_planned:
            return in.operation() && in.count(fact.generation) && in.one_of(mode_words, fact.mode) &&
                   in.one_of(attention_words, fact.attention) && in.rows(fact.keep) && in.rows(fact.adopted) &&
                   in.rows(fact.moved_from) && in.rows(fact.moved_to) && in.count(fact.row) &&
                   in.by_group(fact.reserved) && in.count(fact.selection_revision) &&
                   in.text_or_none(fact.idempotency_key) && in.measured_only() && in.text_or_none(fact.digest);
        case Tag::readers_drained:
            return in.operation() && in.count(fact.row) && in.ranks(fact.ranks) && in.count_or_0(fact.metadata_bytes);
        case Tag::tables_applied:
            return in.operation() && in.count(fact.rank) && in.count(fact.process_epoch) && in.counts_only(2) &&
                   in.measured_only();
        case Tag::transfer_completed:
        case Tag::all_ranks_applied:
        case Tag::store_completed:
            return in.operation();
        case Tag::blocks_retired:
            return in.count(fact.generation) && in.one_of(cause_words, fact.cause) && in.by_group(fact.freed);
        case Tag::retain_acknowledged:
            return in.operation() && in.count(fact.process_epoch);
        case Tag::tail_opened:
            return in.count(fact.one_logical) && in.ids(fact.physical_by_group);
        case Tag::tail_sealed:
            return in.count(fact.one_logical);
        case Tag::store_started:
            return in.operation() && in.ids(fact.logical_list) && in.ids(fact.source_list) && in.ranks(fact.ranks);
        case Tag::rank_stored:
            return in.operation() && in.count(fact.rank) && in.count(fact.process_epoch) && in.counts_only(1) &&
                   in.measured_only();
        case Tag::block_lost:
            return in.count(fact.one_logical) && in.text(fact.reason);
        case Tag::tail_dropped:
            return in.count(fact.group) && in.ids(fact.logical_list) && in.count(fact.fence);
        case Tag::fence_opened:
            return in.count(fact.fence) && in.by_group(fact.freed);
        case Tag::sources_registered:
            return in.ids(fact.logical_list) && in.ids(fact.source_list);
        case Tag::transfer_settled:
            return in.operation() && in.count(fact.rank) && in.count(fact.process_epoch) &&
                   in.one_of(outcome_words, fact.outcome);
        case Tag::ack_ignored:
            return in.operation() && in.count(fact.rank) && in.count(fact.process_epoch) && in.texts_only(1) &&
                   in.one_of(ignored_words, unused) && in.texts_only(1);
        case Tag::ack_refused:
            return in.operation() && in.count(fact.rank) && in.count(fact.process_epoch) && in.texts_only(1) &&
                   in.one_of(refused_words, unused) && in.texts_only(3);
        case Tag::plan_refused:
            return in.one_of(lane_words, unused) && in.text(fact.reason) && in.counts_only(3) &&
                   in.count_or_0(fact.selection_revision);
        case Tag::command_refused:
            return in.texts_only(2) && in.text(fact.reason);
        case Tag::digest_recorded:
            return in.count(fact.position) && in.text(fact.digest);
        case Tag::prefix_published:
            return in.count(fact.one_logical) && in.count(fact.number) && in.text(fact.key);
        case Tag::prefix_attached:
            return in.count(fact.one_logical) && in.count(fact.number);
        case Tag::prefix_evicted:
            return in.count(fact.number) && in.by_group(fact.freed);
        case Tag::handshake_agreed:
            return in.texts_only(2);
        case Tag::handshake_refused:
            return in.texts_only(1) && in.differences_only();
        case Tag::coordinator_restarted:
            return in.texts_only(1) && in.implementation_only();
        case Tag::run_configured:
        case Tag::rank_lost:
        case Tag::rank_restarted:
        case Tag::producer_restarted:
            break;  // left to the reference: rare, and they change much
    }
    return false;
}

}  // namespace

std::size_t read_front(std::string_view bytes, Fact& fact) {
    Cursor cursor(bytes);
    std::uint32_t items = 0;
    std::int64_t tag = 0;
    if (!cursor.array(items) || items == 0 || !cursor.integer(tag) || tag < 0 || tag > 127) {
        return 0;
    }
    fact.tag = static_cast<int>(tag);
    Fields fields(cursor, fact, items - 1);
    if (!fields.request() || !fields.count(fact.seq) || !read_fields(fields, fact) || !fields.end()) {
        return 0;
    }
    const std::size_t size = bytes.size() - cursor.left();
    fact.body = bytes.substr(0, size);
    return size;
}

bool read_fact(std::string_view body, Fact& fact) {
    return !body.empty() && read_front(body, fact) == body.size();
}

}  // namespace kvsweep::fold
