#include "store/keys.h"

#include <array>

#include "base/parse.h"

namespace mycojobs {
namespace {

constexpr std::string_view kAuthoritative = "journal";
constexpr std::string_view kFacts = "the facts of its job";
constexpr std::string_view kObjects = "the objects";
constexpr std::string_view kMarks = "mj:flow:*";

constexpr std::array kInternalKeys{
    InternalKey{"mj:journal:<queue>", "stream",
                "<revision>-0: f (kind of fact), j (job key), at (ms), and the data of the kind", kAuthoritative},
    InternalKey{
        "mj:claim:<job key>", "hash",
        "state (planned, queued, live, delayed, waiting, prerequisites, held, ended; absent: another client pushed the "
        "job), queue, revs (revisions of the job's facts), claim_id, token (hash), epoch, attempt, deliveries, runner, "
        "instance, lease_ms, until_ms, began (start of the claim), beat (time of the next heartbeat fact), log_base "
        "(last log number before the claim), reason (of the return to the queue), postponed (number of delays due to "
        "another client's key), unbegun (number of consecutive releases without a start), message, cancel "
        "(cancellation was requested), leftover (a stale queue entry exists), priority, deps, prerequisites (met), "
        "held (concurrency key of a held job), turn (its order), ckey (concurrency key of which the job occupies a "
        "slot), kept, kept_end, log_bytes (bytes that are counted in mj:kept for record, end and output), log_full (1: "
        "output is dropped; 0: output was dropped before), quota (the exceeded setting, while the job waits for free "
        "space), unplanted (reason why a flow's job has no record: foreign, quota), awaited (message that the job's "
        "end answers), approved:<name> (actor and comment of the approval), noticed (a notice of the end exists), idem "
        "(idempotency key), overdue (the job is in mj:overdue), waiting_since, flow (context, id), content (digest); "
        "of an ended job also: status, detail, end (digest), ended_ms, dead (id of the dead letter)",
        kFacts},
    InternalKey{"mj:queues", "set", "queues that have a journal", "the names of the journals"},
    InternalKey{"mj:leases", "zset", "jobs with a live claim, by the end of the lease in ms", kFacts},
    InternalKey{"mj:priority:<queue>", "zset",
                "jobs with a priority, which are not in the queue's list, by the order of their claims", kFacts},
    InternalKey{"mj:delayed", "zset", "delayed jobs by due time in ms", kFacts},
    InternalKey{"mj:waits:<job key>", "set", "unfinished jobs that a parked job depends on", kFacts},
    InternalKey{"mj:dependents:<job key>", "set", "parked jobs that depend on the job", kFacts},
    InternalKey{"mj:settling", "list", "ended jobs with dependents that are still parked", "the next rebuild"},
    InternalKey{"mj:prerequisites", "zset", "jobs with external prerequisites, by the time of the next check in ms",
                kFacts},
    InternalKey{"mj:looking", "hash",
                "at: time of the latest check of prerequisites by a coordinator, in ms; for 5 s after it agents do not "
                "check any",
                "the next check"},
    InternalKey{"mj:held:<concurrency key>", "zset", "jobs that wait for a slot, by their turn in us", kFacts},
    InternalKey{"mj:holding", "set", "concurrency keys with held jobs", "the next rebuild"},
    InternalKey{"mj:running:<concurrency key>", "set", "jobs that occupy a slot", kFacts},
    InternalKey{"mj:overdue", "zset", "jobs with a queue_timeout_ms, by the time at which it expires",
                "queue_timeout_ms of records"},
    InternalKey{
        "mj:pushed", "hash",
        "at: time of the latest search of lists for jobs of other clients with a queue_timeout_ms, in ms; cursor: "
        "position of that search",
        "the next search"},
    InternalKey{
        "mj:ended", "zset",
        "ended jobs by the time of their end in ms; a job that retention keeps, by the negated time of the next check",
        kFacts},
    InternalKey{"mj:jobs", "zset", "jobs by the time of their last change in us", kFacts},
    InternalKey{"mj:horizon", "hash",
                "queue: facts of jobs that ended before this time may have been deleted from its journal",
                kAuthoritative},
    InternalKey{"mj:idempotency:<caller>", "hash", "idempotency key: key of the job that was submitted with it",
                "idem of mj:claim:*"},
    InternalKey{"mj:paused", "set", "queues from which no jobs are claimed", kAuthoritative},
    InternalKey{
        "mj:notices", "zset",
        "notifications of ends by the time of the next attempt in ms: key, end (us), status, attempts, digests of "
        "the targets that were reached",
        kAuthoritative},
    InternalKey{"mj:missing", "zset",
                "\"<job key> <queue>\": queue entries without a record, by the time at which they were found",
                "journal: the entries were removed from their queues"},
    InternalKey{"mj:dead", "stream",
                "dead letters, entries that can never run: key, queue, reason; about the last 100000", kAuthoritative},
    InternalKey{"mj:anomalies", "stream", "unexpected observations: text; about the last 10000", kAuthoritative},
    InternalKey{"mj:refusals", "stream",
                "<number>-0: denied requests: at (ms), actor, action, thing, list; the newest 1000", kAuthoritative},
    InternalKey{"mj:artifacts", "hash",
                "names of this store in the artifact folders: fields of 24 hex digits; never removed",
                "the agents that know the names"},
    InternalKey{
        "mj:kept", "hash",
        "bytes that jobs keep in this database (records, output, ends). <caller>: sum of its jobs; all: sum of all "
        "jobs; changes: number of changes; caller_max, context_max: quotas; over: caller whose oldest ended jobs "
        "are retired next; began: start time, in ms, of the search of mj:ended for these jobs; at: end time that "
        "the search has reached, in ms; full: the quota of the context is the reason",
        "kept, kept_end and log_bytes of mj:claim:*"},
    InternalKey{"mj:kept-searched", "hash",
                "caller: start time of a search of mj:ended that found too few of its jobs, and the end time that the "
                "search has reached, in ms; for a minute after the start, later searches continue there",
                "the next search"},
    InternalKey{"mj:kept-created", "hash",
                "key of a job that was never queued, or of a message that was created here: bytes of its record",
                kAuthoritative},
    InternalKey{"mj:log:<job key>", "stream",
                "<seq>-0: ts, stream, text; seq increases over all deliveries; the last entry contains end, the status",
                kAuthoritative},
    InternalKey{"mj:next:<caller>", "string", "the last allocated job id of a caller", "largest id of job:<caller>:*"},
    InternalKey{
        "mj:actor-keys", "hash",
        "public key: id of the actor whose record has it; two ids: the key is ambiguous and identifies no actor. "
        "Database 0",
        "actor:*"},
    InternalKey{"mj:actor-looks", "hash",
                "scans of all records of actors for public keys, in ms: started (latest scan); began, ended (latest "
                "complete scan). Database 0",
                "the next scan"},
    InternalKey{"mj:next:actor", "string", "the last allocated actor id", "largest id of actor:*"},
    InternalKey{"mj:next:runner", "string", "the last allocated runner id", "largest id of runner:*"},
    InternalKey{"mj:next:message:<caller>", "string", "the last allocated message id of a caller",
                "largest id of message:<caller>:*"},
    InternalKey{"mj:hold:runner:<id>", "hash",
                "process that holds the runner id: instance, host, boot_id, pid, until_ms", "the next heartbeat"},
    InternalKey{
        "mj:runners", "zset",
        "ids of runners with a record; \"*\" has the time of the latest scan of all keys for such records, in ms",
        "runner:*"},
    InternalKey{"mj:topic:<topic>", "list", "messages that wait on a topic, oldest at the right", kAuthoritative},
    InternalKey{"mj:topic-missing:<topic>", "zset",
                "messages of a topic without a record, by the time at which they were found; dropped after 2 s",
                kAuthoritative},
    InternalKey{
        "mj:message:<message key>", "hash",
        "state of a message (taken, refused, arrived, away, over), left (number of jobs that have not ended), "
        "failed, taken_ms, flow, flow_ended; of a message between contexts also content (hash), jobs, origins (job "
        "keys of the sender), origin (caller and id at the sender), signer, context (target), stream (log lines are "
        "requested), answer, own (sent within this context), address (of the peer), from (context of the sender), "
        "carried (contains a router's job), carried_answer, came_ms (time of arrival), fresh_until, delivered_ms, "
        "deliver_until, limit (detail after deliver_until), result_ms, tries, why (reason of the latest failure), "
        "told (number of jobs in the answer so far), want (a requested file), asked (number of file requests), bare "
        "(files are named, not sent), whole (contains a flow), log_bytes, log:<job>, stored (hash of the record as "
        "stored), due_ms",
        "message in mj:claim:*"},
    InternalKey{"mj:worlds", "set", "names of the workflow deployments", "mj:world-manifests:*"},
    InternalKey{"mj:world-applies", "hash",
                "count: number of applied manifests, which detects manifests that are applied at the same time",
                "the next manifest"},
    InternalKey{"mj:worlds:due", "zset", "deployments by the time of their next processing in ms", "mj:world:*"},
    InternalKey{"mj:world:<world>", "stream", "<height>-0: f, a fact of the deployment (deterministic CBOR)",
                kAuthoritative},
    InternalKey{"mj:world-in:<world>", "stream",
                "inbox of a deployment: events, receipts and requests that were not processed yet", kAuthoritative},
    InternalKey{"mj:world-blobs:<world>", "hash", "hash: bytes of a long state, or of a snapshot", kAuthoritative},
    InternalKey{"mj:world-manifests:<world>", "hash", "hash: a manifest with its code", kAuthoritative},
    InternalKey{"mj:world-keys:<world>", "hash",
                "\"<actor> <idempotency key>\" of an event: id of its entry in the inbox, hash of its content",
                kAuthoritative},
    InternalKey{"mj:world-key-ages:<world>", "zset", "fields of mj:world-keys by the time of their use in ms",
                "mj:world-keys:*"},
    InternalKey{"mj:world-full:<world>", "set",
                "instances with the maximum number of waiting events: \"<workflow> <key, hex>\"", "mj:world:*"},
    InternalKey{
        "mj:world-head:<world>", "hash",
        "current manifest; height and hash of the latest snapshot; in_bytes: upper bound of the size of the inbox; "
        "measured_ms: time of its measurement",
        "mj:world:*"},
    InternalKey{"mj:outbox", "zset",
                "actions for messages between contexts, by the time of the next attempt in ms: send, expire, cancel, "
                "answer, logs",
                "mj:message:*"},
    InternalKey{"mj:inbox", "zset",
                "received messages that are not accepted yet, by the time of the next attempt in ms", "mj:message:*"},
    InternalKey{
        "mj:inbox-turns", "hash",
        "caller: time at which its next message is accepted, in ms; many messages of one caller do not delay those "
        "of other callers",
        "mj:inbox"},
    InternalKey{"mj:came", "hash", "content (hash) of a message that was received from another context: its key",
                "mj:message:*"},
    InternalKey{"mj:messages", "zset", "messages by the time of their end, for retention", "mj:message:*"},
    InternalKey{"mj:queue:runner<id>", "list", "jobs that must run on this runner", kFacts},
    InternalKey{"mj:queue:router:<host>", "list", "jobs of flows for a supervisor at this host and port", kFacts},
    InternalKey{"mj:queue:router", "list", "jobs of flows for a supervisor whose address contains no host", kFacts},
    InternalKey{"mj:osis:object:<namespace>:<kind>:<id>", "hash",
                "an object: json, version, created_ms, updated_ms, entries (its index entries)", kAuthoritative},
    InternalKey{"mj:osis:ids:<namespace>:<kind>", "zset", "ids of a kind's objects", kObjects},
    InternalKey{"mj:osis:index:<namespace>:<kind>:<field>", "zset", "\"<value> \\1 <id>\" for a declared field",
                kObjects},
    InternalKey{"mj:osis:words:<namespace>:<kind>", "zset", "\"<word> \\1 <id>\" for the words of declared texts",
                kObjects},
    InternalKey{
        "mj:osis:kind:<namespace>:<kind>", "hash",
        "declared fields of a kind: \"i <field>\" (index), \"t <field>\" (words); rev; backfill (id of the last "
        "indexed object, while objects are being indexed)",
        kAuthoritative},
    InternalKey{"mj:osis:kinds", "zset", "\"<namespace>:<kind>\" of all kinds", kObjects},
    InternalKey{"mj:osis:writer", "hash",
                "job that may write objects: job, claim_id, epoch, since_ms; call and answer of its latest write",
                "the next write"},
    InternalKey{"mj:osis:waiting", "zset", "\"<job key> <claim id>\" of jobs that wait to be the writer, by arrival",
                "the next write"},
    InternalKey{
        "mj:flow:<flow>", "hash",
        "state of a flow (creating, new, active, ended), caller, first_job, jobs, key, print (digest of the "
        "request), created_ms, ended_ms, definition (hash), name, ids (of its jobs), parent, row, index_row (of the "
        "catalogs), taken (number of applied events), raised (revision at which an evaluation was requested), swept "
        "(number of job ids that the retirement has processed), adopted (the record was written by another client), "
        "message (from which the flow was created), noticed (a notice of the end exists)",
        "its run and flow:<id>"},
    InternalKey{"mj:run:<flow>", "stream",
                "the journal of a flow. <revision>-0: f (kind of fact), at (ms), n (index of the node), m (JSON)",
                kAuthoritative},
    InternalKey{"mj:checkpoint:<flow>", "hash", "the state of a run (text) at a revision (at)", "mj:run:<flow>"},
    InternalKey{"mj:events:<flow>", "list",
                "events that the run has not applied yet: \"job <job key>\", \"flow flow:<id>\"",
                "the claims of its jobs, the marks of flows"},
    InternalKey{"mj:flows:active", "zset", "started flows that have not ended, by id", kMarks},
    InternalKey{"mj:flows:due", "zset", "active flows by the time of their next evaluation in ms", kMarks},
    InternalKey{"mj:flows:ended", "zset",
                "ended flows by the time of their end, flows in creation by the time of their creation; for retention",
                kMarks},
    InternalKey{"mj:flow-waits:<flow>", "set", "flows that get an event at the end of this flow",
                "the runs of the waiting flows"},
    InternalKey{"mj:flow-keys:<caller>", "hash", "idempotency key: flow, digest of the request", kMarks},
    InternalKey{"mj:next:flow", "string", "the last allocated flow id", "largest id of flow:*"},
    InternalKey{"mj:catalog", "stream", "<row>-0: flow, at (ms), name of its definition; all flows", kAuthoritative},
    InternalKey{"mj:catalog:<name>", "stream", "as mj:catalog, for the flows of one definition", "mj:catalog"},
    InternalKey{"mj:definition:<hash>", "hash", "a definition: text; caller and kept: account and bytes in mj:kept",
                kAuthoritative},
    InternalKey{"mj:definition-uses:<hash>", "set",
                "users of the definition: flow:<id>, schedule:<name>; an unused definition is deleted",
                "mj:flow:*, mj:schedule:*"},
    InternalKey{"mj:schedules", "set", "names of the schedules", "mj:schedule:*"},
    InternalKey{
        "mj:schedule:<name>", "hash",
        "name, revision, content (digest), caller, cron, zone, overlap, missed, definition_hash, next_ms, last_ms, "
        "last_flow, paused, note; kept and kept_of: bytes and account in mj:kept",
        kAuthoritative},
    InternalKey{"mj:coordinator", "hash", "coordinator that leads the context: instance, where, until_ms, ttl_ms",
                "the next heartbeat"},
    InternalKey{"mj:format", "hash", "version of the formats of these keys (absent: 1), program that wrote the version",
                "the next connection"},
    InternalKey{"mj:server", "string", "run_id of the server that granted leases last", "the next connection"},
    InternalKey{"mj:health", "hash", "written_ms: time of the latest write test by /health or doctor", "the next test"},
    InternalKey{"mj:heads", "hash", "queue: revision of its journal at the start of the server",
                "the next start of the server"},
};

bool is_id_text(std::string_view text) {
  std::uint64_t id = 0;
  return !text.empty() && text.size() <= 10 && text[0] != '0' && parse_u64(text, id) && id <= 0xffffffffULL;
}

}  // namespace

std::span<const InternalKey> internal_keys() { return kInternalKeys; }

bool is_job_key(std::string_view key) {
  if (!key.starts_with("job:")) return false;
  key.remove_prefix(4);
  const auto colon = key.find(':');
  return colon != std::string_view::npos && is_id_text(key.substr(0, colon)) && is_id_text(key.substr(colon + 1));
}

Id parse_job_caller(std::string_view job_key) {
  std::uint64_t caller = 0;
  (void)parse_u64(job_key.substr(4, job_key.find(':', 4) - 4), caller);
  return static_cast<Id>(caller);
}

bool is_flow_key(std::string_view key) { return key.starts_with("flow:") && is_id_text(key.substr(5)); }

Error record_not_found(Id context, const std::string& key) {
  const std::string where = context == 0 ? "" : " in context " + std::to_string(context);
  return {Code::not_found, key + " does not exist" + where};
}

}  // namespace mycojobs
