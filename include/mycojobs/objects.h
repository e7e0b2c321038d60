// Port: the object store of a context, which scripts of the osis executor use through the agent. Typed JSON objects
// with an id, a version and times; declared fields can be found by value, declared texts by their words. It lies beside
// the context's jobs (agent/store/redis_objects.h); contract suite: tests/contract/objects_test.cpp.
//
// Every write belongs to a live claim of a job, and to one writer at a time of the context: the first write of a job
// makes it the writer, until release(), or until its claim is live no more. Readers never wait.
//
// Threads: one each. Errors: those of mycojobs/store.h; stale_claim: the job was overtaken, and nothing was written.
// Each call is one bounded step of the server, and may be repeated after `unavailable`.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "mycojobs/records.h"
#include "mycojobs/result.h"

namespace mycojobs {

struct ClaimRef;

inline constexpr std::size_t kMaxObjectBytes = 256U << 10;  // of its JSON
inline constexpr std::size_t kMaxObjectIdBytes = 128;
inline constexpr std::size_t kMaxDeclaredFields = 64;  // of a kind, both sorts together
inline constexpr std::size_t kMaxFieldBytes = 128;     // of a field's path
inline constexpr std::size_t kMaxObjectKinds = 1000;   // of a context
inline constexpr std::size_t kMaxObjectOps = 100;      // of one write
inline constexpr std::size_t kMaxObjectPage = 1000;
inline constexpr std::size_t kMaxSearchWords = 16;

// Where objects of one sort are. Both names: [a-z][a-z0-9_-]{0,31}.
struct ObjectKind {
  std::string space = "default";  // its namespace
  std::string kind;

  auto operator<=>(const ObjectKind&) const = default;
};

struct StoredObject {
  std::string id, json;  // json: an object, its "id" with it
  std::uint64_t version = 0, created_ms = 0, updated_ms = 0;
};

struct ObjectPage {
  std::vector<StoredObject> objects;  // bounded by 4 MiB, too
  std::string after;      // where the next page begins; empty: that was all. A page may be empty and not the last one.
  bool indexing = false;  // nothing was looked up: objects are still to be indexed, see index_more()
};

struct ObjectOp {
  enum class Verb { put, remove, check };
  Verb verb = Verb::put;
  ObjectKind of;
  std::string id;                        // 1 to 128 bytes of UTF-8 without control characters
  std::optional<std::uint64_t> version;  // the one that it must have now; 0: it must not exist
  std::string json;                      // of a put: an object
};

struct ObjectStamp {
  std::string id;
  std::uint64_t version = 0, created_ms = 0, updated_ms = 0;  // of a removed object: as it was last
};

struct WriteReply {
  std::string busy;                 // the job that is the writer now: nothing was written, ask again
  std::vector<ObjectStamp> stamps;  // one for each operation
};

struct DeclareReply {
  std::string busy;
  bool indexing = false;  // there are objects to be indexed: index_more()
};

using ObjectValue = std::variant<std::string, double, bool>;

struct ObjectQuery {
  std::string field;                 // a declared one
  std::optional<ObjectValue> equal;  // else a range of numbers, both ends with it
  std::optional<double> min, max;
};

struct KindInfo {
  ObjectKind of;
  std::uint64_t count = 0;
  std::vector<std::string> index, text;  // declared fields, sorted
};

// Where an index does not say what the objects say.
struct ObjectsProblem {
  ObjectKind of;
  std::string text;  // one line

  bool operator==(const ObjectsProblem&) const = default;
};
struct ObjectsVerdict {
  std::uint64_t objects = 0, entries = 0;
  std::vector<ObjectsProblem> problems;
};

class ObjectStore {
 public:
  virtual ~ObjectStore() = default;

  // All of it or nothing, in order; no two operations may name the same object. call: a name for this write, its own
  // among those of the claim: repeated, it is answered as it was the first time.
  // Errors: conflict (a version; the message names the operation), not_found (of a remove), too_large, invalid.
  virtual Result<WriteReply> write(const ClaimRef&, const std::string& call, std::span<const ObjectOp>) = 0;
  // Adds to what is declared. Nothing new: nothing is written, and nobody waits. too_large: more than 64 fields.
  virtual Result<DeclareReply> declare(const ClaimRef&, const ObjectKind&, const std::vector<std::string>& index,
                                       const std::vector<std::string>& text) = 0;
  // Whether declare() would change nothing.
  virtual Result<bool> is_declared(Id context, const ObjectKind&, const std::vector<std::string>& index,
                                   const std::vector<std::string>& text) = 0;
  // Indexes some of the objects that were there before their fields were declared. true: others are left. Anybody may.
  virtual Result<bool> index_more(Id context, const ObjectKind&) = 0;
  // The claim's job writes no more.
  virtual Result<void> release(const ClaimRef&) = 0;

  virtual Result<StoredObject> get(Id context, const ObjectKind&, const std::string& id) = 0;  // not_found
  // In the order of their ids. after: of the page before; limit: 1 to 1000.
  virtual Result<ObjectPage> list(Id context, const ObjectKind&, const std::string& after, std::size_t limit) = 0;
  // Equal: in the order of their ids; a range: by the field's value. invalid: the field is not declared.
  virtual Result<ObjectPage> find(Id context, const ObjectKind&, const ObjectQuery&, const std::string& after,
                                  std::size_t limit) = 0;
  // Objects whose declared texts have all these words, in the order of their ids.
  virtual Result<ObjectPage> search(Id context, const ObjectKind&, const std::string& text, const std::string& after,
                                    std::size_t limit) = 0;
  virtual Result<std::uint64_t> count(Id context, const ObjectKind&) = 0;
  virtual Result<std::vector<KindInfo>> kinds(Id context) = 0;  // by namespace and kind

  // Compares the indexes with the objects, both ways, and stops at max_problems. While nobody writes.
  virtual Result<ObjectsVerdict> verify(Id context, std::size_t max_problems) = 0;
  // Derives the indexes of a kind from its objects again: follow it with index_more() until that says false.
  virtual Result<void> reindex(Id context, const ObjectKind&) = 0;
};

}  // namespace mycojobs
