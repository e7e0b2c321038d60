// Port: where worlds of workflows live (agent/store/redis_workflows.h). A world is one manifest's name in one context:
// a journal of facts in one order (domain/workflow_facts.h), which is the authority; blobs, manifests and an inbox
// beside it. A store keeps bytes; what they mean, and what follows, is decided elsewhere (domain/workflow_decide.h).
//
// A world changes only in commits that expect the height which the caller has read. What has come for a world (an
// event, the end of an effect) waits in its inbox, until a commit takes it away in the same step as the facts that it
// became.
//
// Threads: a WorkflowStore belongs to one thread. Errors: as in mycojobs/store.h; every call may be repeated, and
// post() without a key may then stand in the inbox twice. Time: the store's own clock.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "mycojobs/records.h"
#include "mycojobs/result.h"

namespace mycojobs {

inline constexpr std::uint64_t kMaxWorldMail = 100000;     // that wait for one world
inline constexpr std::uint64_t kMaxMailBytes = 16U << 20;  // that are read at once, unless one entry has more
inline constexpr std::uint64_t kMaxCellMail = 10000;       // that wait for one instance, before senders are refused

struct WorldRead {
  std::uint64_t height = 0;           // of the latest fact; 0: there is none
  std::vector<std::string> facts;     // those after the height that was asked for: at most as many as were, or 8 MiB
  std::uint64_t snapshot_height = 0;  // the latest snapshot was taken at; 0: there is none
  std::string snapshot;               // hash of its blob
  std::string manifest;               // hash of the one in force; empty: none was applied
};
// What waits for a world.
struct WorldMail {
  std::string id;    // of the entry
  std::string kind;  // event, job, flow, answer, remove, cancel
  Fields fields;     // event: schema, value (JSON), source, to (PostTarget::instance of each, with commas); job, flow:
                     // key; answer: intent, payload; remove, cancel: workflow, key (hex), by, reason
};
struct WorldCommit {
  Id context = 0;
  std::string world;
  std::uint64_t base = 0;                                  // the height that it was decided at
  std::vector<std::string> facts;                          // at base + 1, base + 2, ...
  std::vector<std::pair<std::string, std::string>> blobs;  // hash, bytes
  std::vector<std::string> done;                           // ids of mail
  std::string snapshot;                                    // hash of the blob of a snapshot, taken at the last fact
  std::string manifest;                                    // hash of the one that is in force from now on
  bool alone = false;                                      // only if nothing waits in the inbox
  std::optional<std::vector<std::string>> full;            // instances that get no more events; nothing: as before
  std::uint64_t due_ms = 0;                                // when it is to be looked at again; 0: when something comes
};

// Who gets what is posted.
struct PostTarget {
  std::string instance;  // as in WorldCommit::full
  std::string shown;     // for people
};
struct PostRules {
  std::string manifest = {};             // hash of the one that it was checked by; empty: any will do
  std::vector<PostTarget> targets = {};  // none of them may be full
  // Idempotency key, and the hash of what is sent with it: the same again is posted once. Remembered for
  // kWorldKeyMs, and of a world the newest kMaxWorldKeys.
  std::string key = {}, content = {};
};
inline constexpr std::uint64_t kWorldKeyMs = std::uint64_t{7} * 24 * 3600 * 1000;
inline constexpr std::uint64_t kMaxWorldKeys = 100000;
struct Posted {
  std::string id;         // of the entry in the inbox, never given twice in a world
  bool repeated = false;  // it was posted before with the same key
};

// Where a world stands beside its journal, seen in one step.
struct WorldPlaces {
  std::uint64_t height = 0, snapshot_height = 0, mail = 0, now_ms = 0;
  std::string snapshot, manifest;  // as in WorldRead
  bool listed = false;             // among the worlds of the context
  std::uint64_t due_ms = 0;        // when it is to be looked at; 0: nobody will
  std::vector<std::string> full;   // as in WorldCommit
};
// What a coordinator asks of a world once in a while, and hears: whether a notice was lost.
struct WorldGlanceAt {
  std::string world;
  std::vector<std::string> carriers;  // keys of jobs and flows that it waits for
};
struct WorldGlance {
  std::uint64_t mail = 0, now_ms = 0;
  std::uint64_t due_ms = 0;        // when it is to be looked at; 0: nobody will
  std::vector<std::string> ended;  // carriers that have ended, or are gone
};
// What mends a world; done in one step if it has not moved since it was looked at.
struct WorldFix {
  enum class Kind {
    list,      // it stands among the worlds
    due,       // it is looked at now
    head,      // `what`: hash of the manifest in force
    snapshot,  // there is none
    open,      // `what`: an instance that is not full
    notice,    // `what`: job or flow, `of`: the key of one that has ended, or is gone
    mark       // `of`: the record of a job or flow whose end the world is to hear of
  };
  Kind kind = Kind::due;
  std::string what = {}, of = {};
  bool operator==(const WorldFix&) const = default;
};

class WorkflowStore {
 public:
  virtual ~WorkflowStore() = default;

  virtual Result<std::vector<std::string>> worlds(Id context) = 0;  // by name
  // The world is listed from then on. Error conflict: the hash is there with other content.
  virtual Result<void> put_manifest(Id context, const std::string& world, const std::string& hash,
                                    const std::string& text) = 0;
  virtual Result<std::string> manifest(Id context, const std::string& world, const std::string& hash) = 0;  // not_found
  virtual Result<WorldRead> read(Id context, const std::string& world, std::uint64_t after, std::uint32_t most) = 0;
  virtual Result<std::string> blob(Id context, const std::string& world, const std::string& hash) = 0;  // not_found
  virtual Result<std::vector<std::string>> blobs(Id context, const std::string& world) = 0;             // hashes
  // Error conflict: the world is at another height than base; nothing went.
  virtual Result<void> drop_blobs(Id context, const std::string& world, std::uint64_t base,
                                  const std::vector<std::string>& hashes) = 0;
  // Error conflict: somebody else was faster, or it is not alone; read again. The blobs are there before the facts.
  virtual Result<void> commit(const WorldCommit&) = 0;
  // For the inbox of a world; it is due then. Errors: not_found (no such world); conflict (another manifest is in force
  // now; the key was used for other content); too_large (kMaxWorldMail wait for the world, or an instance is full:
  // names it).
  virtual Result<Posted> post(Id context, const std::string& world, const std::string& kind, const Fields&,
                              const PostRules& = {}) = 0;
  // The oldest of the inbox, after one of its ids or all: at most so many, and no more once they have so many bytes.
  virtual Result<std::vector<WorldMail>> mail(Id context, const std::string& world, std::uint32_t most,
                                              std::uint64_t most_bytes = kMaxMailBytes,
                                              const std::string& after = "") = 0;
  // Worlds that are to be looked at now, and how long until the next one is, ms (0: none).
  virtual Result<std::pair<std::vector<std::string>, std::uint64_t>> due(Id context, std::uint32_t most) = 0;
  // All of them in one trip, in their order.
  virtual Result<std::vector<WorldGlance>> glance(Id context, const std::vector<WorldGlanceAt>&) = 0;
  virtual Result<std::uint64_t> now_ms() = 0;
  // Errors: invalid (a key of it holds something else: names it).
  virtual Result<WorldPlaces> places(Id context, const std::string& world) = 0;
  // False: it is not at that height any more, and nothing was changed.
  virtual Result<bool> repair(Id context, const std::string& world, std::uint64_t height,
                              const std::vector<WorldFix>&) = 0;
};

// A channel: "<context> <world>" when something has come for a world, or it has moved.
inline constexpr const char* kWorldTopic = "mj:worlds";

}  // namespace mycojobs
