#include "store/keys.h"

#include <array>

#include "base/ids.h"

namespace mycojobs {
namespace {

constexpr std::string_view kItself = "journal";
constexpr std::string_view kFacts = "the facts of its job";
constexpr std::string_view kObjects = "the objects";
constexpr std::string_view kMarks = "mj:flow:*";

constexpr std::array kOwnKeys{
    OwnKey{"mj:journal:<queue>", "stream",
           "<revision>-0: f (kind of fact), j (job key), at (ms), and what the kind carries", kItself},
    OwnKey{
        "mj:claim:<job key>", "hash",
        "state (planned, queued, live, delayed, waiting, prerequisites, held, ended; none: another client pushed it), "
        "queue, "
        "revs "
        "(of its facts), claim_id, token (its hash), epoch, attempt, deliveries, runner, instance, lease_ms, until_ms, "
        "began, beat, log_base, reason, postponed, unbegun, message, cancel (tombstone), leftover, priority, deps, "
        "prerequisites, held, turn, "
        "ckey, kept, kept_end, log_bytes (what was counted of the job in mj:kept), log_full (1: output "
        "is dropped; 0: output was dropped before), quota (the setting that the caller exceeds, while the job waits "
        "for it), unplanted (why the job has no record of its flow: foreign, quota), "
        "awaited (the message that its end answers), "
        "approved:<name> (who gave it, and why), noticed (its end has a notice), idem, overdue, waiting_since, flow "
        "(context, id), content (digest); "
        "once ended: status, detail, end (digest), "
        "ended_ms, dead",
        kFacts},
    OwnKey{"mj:queues", "set", "queues that have a journal", "the names of the journals"},
    OwnKey{"mj:leases", "zset", "live claims by the end of their lease, in ms", kFacts},
    OwnKey{"mj:priority:<queue>", "zset", "jobs with a priority, beside the queue's list, the next one first", kFacts},
    OwnKey{"mj:delayed", "zset", "jobs by the moment when they are due, in ms", kFacts},
    OwnKey{"mj:waits:<job key>", "set", "unfinished jobs that a parked job depends on", kFacts},
    OwnKey{"mj:dependents:<job key>", "set", "parked jobs that depend on it", kFacts},
    OwnKey{"mj:settling", "list", "ended jobs some of whose dependents are still parked", "the next rebuild"},
    OwnKey{"mj:prerequisites", "zset", "jobs that wait for something outside, by the next look at it", kFacts},
    OwnKey{"mj:looking", "hash", "at: when a coordinator last looked at them, ms; for 5 s agents leave them to it",
           "the next look"},
    OwnKey{"mj:held:<concurrency key>", "zset", "jobs for which no slot is free, by their turn, in us", kFacts},
    OwnKey{"mj:holding", "set", "concurrency keys that hold jobs", "the next rebuild"},
    OwnKey{"mj:running:<concurrency key>", "set", "jobs that take a slot", kFacts},
    OwnKey{"mj:overdue", "zset", "jobs by the moment when their queue_timeout_ms is over",
           "queue_timeout_ms of records"},
    OwnKey{"mj:pushed", "hash",
           "at: when lists were last searched for jobs of plain clients with a queue_timeout_ms, ms; cursor of that "
           "search",
           "the next search"},
    OwnKey{"mj:ended", "zset",
           "ended jobs by the moment of their end, in ms; kept ones by the negated moment of the next look", kFacts},
    OwnKey{"mj:jobs", "zset", "jobs by the moment when something happened to them last, in us", kFacts},
    OwnKey{"mj:horizon", "hash", "queue: jobs that ended before this moment may have left its journal", kItself},
    OwnKey{"mj:idempotency:<caller>", "hash", "idempotency key: the job that was submitted with it",
           "idem of mj:claim:*"},
    OwnKey{"mj:paused", "set", "queues that nothing is taken from", kItself},
    OwnKey{"mj:notices", "zset",
           "ends of which somebody wants to hear, by the next try in ms: key, end (us), status, tries, who has heard",
           kItself},
    OwnKey{"mj:missing", "zset", "\"<job key> <queue>\" by the time at which an entry without a record was met",
           "journal: the entries have left their queues"},
    OwnKey{"mj:dead", "stream", "entries that can never run: key, queue, reason; about the last 100000", kItself},
    OwnKey{"mj:anomalies", "stream", "what should not have been: text; about the last 10000", kItself},
    OwnKey{"mj:refusals", "stream",
           "<number>-0: who asked in vain: at (ms), actor, action, thing, list; the newest 1000", kItself},
    OwnKey{"mj:artifacts", "hash",
           "names of this store in the folders of artifacts: fields of 24 hex digits; never removed",
           "the agents that know them"},
    OwnKey{
        "mj:kept", "hash",
        "bytes that jobs keep here (records, output, ends): caller: those of its jobs; all; over: the caller whose "
        "oldest ended jobs are retired next; at: the end time, in ms, that the search of mj:ended has reached; began: "
        "its begin; full: the quota of the context is the reason",
        "kept, kept_end and log_bytes of mj:claim:*"},
    OwnKey{"mj:kept-searched", "hash",
           "caller: begin and last end time, in ms, of a search of mj:ended that found too few of its jobs; for a "
           "minute later searches begin there",
           "the next search"},
    OwnKey{"mj:kept-created", "hash",
           "key of a job that was never queued, or of a message that was created here: bytes of its record", kItself},
    OwnKey{"mj:log:<job key>", "stream",
           "<seq>-0: ts, stream, text; numbers go on over deliveries; the last entry holds end, the status", kItself},
    OwnKey{"mj:next:<caller>", "string", "the last job id that was allocated for a caller",
           "largest id of job:<caller>:*"},
    OwnKey{"mj:actor-keys", "hash",
           "public key: the id of the actor whose record names it; two ids: nobody's. Database 0", "actor:*"},
    OwnKey{"mj:actor-looks", "hash",
           "when all records of actors were last looked through for their keys, ms: started; began, ended. Database 0",
           "the next look"},
    OwnKey{"mj:next:actor", "string", "the last actor id that was allocated", "largest id of actor:*"},
    OwnKey{"mj:next:runner", "string", "the last runner id that was allocated", "largest id of runner:*"},
    OwnKey{"mj:next:message:<caller>", "string", "the last message id that was allocated for a caller",
           "largest id of message:<caller>:*"},
    OwnKey{"mj:hold:runner:<id>", "hash", "who is this runner: instance, host, boot_id, pid, until_ms",
           "the next heartbeat"},
    OwnKey{"mj:runners", "zset",
           "ids of the runners that have a record; \"*\" by the moment when all keys were last looked through for them",
           "runner:*"},
    OwnKey{"mj:topic:<topic>", "list", "messages that wait on a topic, oldest at the right", kItself},
    OwnKey{"mj:topic-missing:<topic>", "zset",
           "messages of a topic without a record, by the time at which they were met; forgotten after 2 s", kItself},
    OwnKey{
        "mj:message:<message key>", "hash",
        "where a message is: state (taken, refused, arrived, away, over), left (jobs that have not ended), failed, "
        "taken_ms, flow, flow_ended; of one between contexts also content (hash), jobs, origins, stream, answer, own, "
        "address, carried, carried_answer, from, came_ms, fresh_until, delivered_ms, deliver_until, limit, result_ms, "
        "tries, why, "
        "told, want (a file that is asked for), bare, whole (it carries a flow), "
        "log_bytes, log:<job>, stored (hash of the record as it was stored), due_ms",
        "message in mj:claim:*"},
    OwnKey{"mj:worlds", "set", "names of the worlds of workflows", "mj:world-manifests:*"},
    OwnKey{"mj:world-applies", "hash", "count: how many manifests came in force, so that their names are compared",
           "the next manifest"},
    OwnKey{"mj:worlds:due", "zset", "worlds that are to be looked at, by the moment in ms", "mj:world:*"},
    OwnKey{"mj:world:<world>", "stream", "<height>-0: f, a fact of the world (deterministic CBOR)", kItself},
    OwnKey{"mj:world-in:<world>", "stream", "what has come for a world and was not worked off", kItself},
    OwnKey{"mj:world-blobs:<world>", "hash", "hash: bytes of a long state, or of a snapshot", kItself},
    OwnKey{"mj:world-manifests:<world>", "hash", "hash: a manifest with its code", kItself},
    OwnKey{"mj:world-keys:<world>", "hash",
           "\"<actor> <idempotency key>\" of an event: the id of its entry in the inbox, hash of what was sent",
           kItself},
    OwnKey{"mj:world-key-ages:<world>", "zset", "the same keys by the moment when they were used, in ms",
           "mj:world-keys:*"},
    OwnKey{"mj:world-full:<world>", "set",
           "instances that have all the events waiting that they may: \"<workflow> <key, hex>\"", "mj:world:*"},
    OwnKey{"mj:world-head:<world>", "hash",
           "manifest in force; height and hash of the latest snapshot; in_bytes, measured_ms: of the inbox",
           "mj:world:*"},
    OwnKey{"mj:outbox", "zset",
           "what is to be sent elsewhere, by the next try in ms: send, expire, cancel, answer, logs", "mj:message:*"},
    OwnKey{"mj:inbox", "zset", "messages that came and are to be taken, by the next look in ms", "mj:message:*"},
    OwnKey{"mj:inbox-turns", "hash",
           "caller: when a further message of it is to be taken, in ms, so that who sends many is in nobody's way",
           "mj:inbox"},
    OwnKey{"mj:came", "hash", "content (hash) of a message that came from elsewhere: its key", "mj:message:*"},
    OwnKey{"mj:messages", "zset", "messages by the moment of their end, for retention", "mj:message:*"},
    OwnKey{"mj:queue:runner<id>", "list", "jobs that must run on this runner", kFacts},
    OwnKey{"mj:queue:router:<host>", "list", "jobs of flows that go to a supervisor at this host and port", kFacts},
    OwnKey{"mj:queue:router", "list", "the same where the address names no host", kFacts},
    OwnKey{"mj:osis:object:<namespace>:<kind>:<id>", "hash",
           "an object: json, version, created_ms, updated_ms, entries (what the indexes hold of it)", kItself},
    OwnKey{"mj:osis:ids:<namespace>:<kind>", "zset", "the ids of a kind's objects", kObjects},
    OwnKey{"mj:osis:index:<namespace>:<kind>:<field>", "zset", "\"<value> \\1 <id>\" of a declared field", kObjects},
    OwnKey{"mj:osis:words:<namespace>:<kind>", "zset", "\"<word> \\1 <id>\" of the declared texts", kObjects},
    OwnKey{
        "mj:osis:kind:<namespace>:<kind>", "hash",
        "what a kind declares: \"i <field>\", \"t <field>\" (words), rev, backfill (the last object that was indexed, "
        "while some are not)",
        kItself},
    OwnKey{"mj:osis:kinds", "zset", "\"<namespace>:<kind>\" of all kinds", kObjects},
    OwnKey{"mj:osis:writer", "hash",
           "who may write objects: job, claim_id, epoch, since_ms; call and answer of its last write",
           "the next write"},
    OwnKey{"mj:osis:waiting", "zset", "\"<job key> <claim id>\" of who waits to be the writer, by arrival",
           "the next write"},
    OwnKey{"mj:flow:<flow>", "hash",
           "where a flow is: state (creating, new, active, ended), caller, first_job, jobs, key, print (digest of what "
           "was "
           "asked for), created_ms, ended_ms, "
           "definition (hash), name, ids (of its jobs), parent, row, index_row (of the catalogs), taken (events that "
           "were applied), raised "
           "(revision at which somebody wanted a look), swept",
           "its run and flow:<id>"},
    OwnKey{"mj:run:<flow>", "stream",
           "the journal of a flow. <revision>-0: f (kind of fact), at (ms), n (index of the node), m (JSON)", kItself},
    OwnKey{"mj:checkpoint:<flow>", "hash", "the state of a run (text) at a revision (at)", "mj:run:<flow>"},
    OwnKey{"mj:events:<flow>", "list", "what its run has not applied yet: \"job <job key>\", \"flow flow:<id>\"",
           "the claims of its jobs, the marks of flows"},
    OwnKey{"mj:flows:active", "zset", "flows that have begun and not ended, by id", kMarks},
    OwnKey{"mj:flows:due", "zset", "active flows by the moment when they should be looked at, in ms", kMarks},
    OwnKey{"mj:flows:ended", "zset", "ended flows by their end, unfinished ones by their creation, for retention",
           kMarks},
    OwnKey{"mj:flow-waits:<flow>", "set", "flows that hear of its end", "the runs of those that wait"},
    OwnKey{"mj:flow-keys:<caller>", "hash", "idempotency key: flow, digest of what was asked for", kMarks},
    OwnKey{"mj:next:flow", "string", "the last flow id that was allocated", "largest id of flow:*"},
    OwnKey{"mj:catalog", "stream", "<row>-0: flow, at (ms), name of its definition; of all flows", kItself},
    OwnKey{"mj:catalog:<name>", "stream", "the same of one definition's flows", "mj:catalog"},
    OwnKey{"mj:definition:<hash>", "hash", "a definition: text; caller, kept: whose it is counted as in mj:kept",
           kItself},
    OwnKey{"mj:definition-uses:<hash>", "set", "who uses it: flow:<id>, schedule:<name>; unused ones go",
           "mj:flow:*, mj:schedule:*"},
    OwnKey{"mj:schedules", "set", "names of the schedules", "mj:schedule:*"},
    OwnKey{"mj:schedule:<name>", "hash",
           "name, revision, content (digest), caller, cron, zone, overlap, missed, definition_hash, next_ms, last_ms, "
           "last_flow, paused, note; kept, kept_of: what is counted of it in mj:kept, and for whom",
           kItself},
    OwnKey{"mj:coordinator", "hash", "who moves flows on: instance, where, until_ms, ttl_ms", "the next heartbeat"},
    OwnKey{"mj:format", "hash", "version of the formats of these keys, absent: 1; program that wrote it",
           "the next connection"},
    OwnKey{"mj:server", "string", "run_id of the server that granted leases last", "the next connection"},
    OwnKey{"mj:health", "hash", "written_ms: when /health or doctor last tried whether the server takes writes",
           "the next try"},
    OwnKey{"mj:heads", "hash", "queue: the revision at which its journal stood when that server was started",
           "the next start of the server"},
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

Id caller_of_job(std::string_view job_key) {
  std::uint64_t caller = 0;
  (void)parse_u64(job_key.substr(4, job_key.find(':', 4) - 4), caller);
  return static_cast<Id>(caller);
}

bool is_flow_key(std::string_view key) { return key.starts_with("flow:") && is_id(key.substr(5)); }

Error not_there(Id context, const std::string& key) {
  const std::string where = context == 0 ? "" : " in context " + std::to_string(context);
  return {Code::not_found, key + " does not exist" + where};
}

}  // namespace mycojobs
