#include "store/keys.h"

#include <array>

#include "base/ids.h"

namespace mycojobs {
namespace {

constexpr std::array kOwnKeys{
    OwnKey{"mj:claim:<job key>", "hash",
           "state (live, released, expired, ended; none before the first claim), claim_id, token (its hash), epoch, "
           "attempt, deliveries, runner, queue, lease_ms, until_ms, log_base, reason, message, cancel (tombstone), "
           "leftover; once ended: status, end (digest), ended_ms",
           "journal"},
    OwnKey{"mj:leases", "zset", "live claims by the end of their lease, in ms", "until_ms of the live mj:claim:*"},
    OwnKey{"mj:missing", "zset", "\"<job key> <queue>\" by the time at which an entry without a record was met",
           "journal: the entries have left their queues"},
    OwnKey{"mj:dead", "stream", "entries that can never run: key, queue, reason; about the last 100000", "journal"},
    OwnKey{"mj:anomalies", "stream", "what should not have been: text; about the last 10000", "journal"},
    OwnKey{"mj:log:<job key>", "stream",
           "<seq>-0: ts, stream, text; numbers go on over deliveries; the last entry holds end, the status", "journal"},
    OwnKey{"mj:next:<caller>", "string", "the last job id that was allocated for a caller",
           "largest id of job:<caller>:*"},
    OwnKey{"mj:hold:runner:<id>", "hash", "who is this runner: instance, host, boot_id, pid, until_ms",
           "the next heartbeat"},
    OwnKey{"mj:topic:<topic>", "list", "messages that wait on a topic, oldest at the right", "journal"},
    OwnKey{"mj:message:<message key>", "hash",
           "a message that was taken or refused: state, left (jobs that have not ended), failed, taken_ms",
           "message in mj:claim:*"},
    OwnKey{"mj:queue:runner<id>", "list", "jobs that must run on this runner", "queue in mj:claim:*, else journal"},
    OwnKey{"mj:server", "string", "run_id of the server that granted leases last", "the next connection"},
};

bool is_id(std::string_view text) {
  std::uint64_t id = 0;
  return !text.empty() && text.size() <= 10 && text[0] != '0' && parse_u64(text, id) && id <= 0xffffffffULL;
}

}  // namespace

std::span<const OwnKey> own_keys() { return kOwnKeys; }

bool is_job_key(std::string_view key) {
  if (!key.starts_with("job:")) return false;
  key.remove_prefix(4);
  const auto colon = key.find(':');
  return colon != std::string_view::npos && is_id(key.substr(0, colon)) && is_id(key.substr(colon + 1));
}

}  // namespace mycojobs
