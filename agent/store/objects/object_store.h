// The object store of a context, which scripts of the osis executor use through the agent. It stores typed JSON
// objects with an id, a version and times. Declared fields can be searched by value, declared texts by words. Redis
// holds the objects beside the context's jobs. Contract suite: tests/contract/objects_test.cpp.
//
// A write requires a live claim of a job. A context has one writer at a time: the first write of a job makes the job
// the writer, until release() or until its claim is no longer live. Readers never wait.
//
// Each write is one atomic step of scripts/objects.lua. The index entries of an object are computed here
// (store/objects/object_index.h) from the fields that its kind declares; the step checks the revision of the
// declaration, and the write is repeated with the new declaration if it has changed.
//
// Thread-safety: each thread uses its own instance. Errors: as in store/store.h; stale_claim: the job was claimed
// again, and nothing was written. Each call is one bounded step of the server, and may be repeated after `unavailable`.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/result.h"
#include "model/records.h"

namespace mycojobs {

class ContextLinks;
class Reply;
struct ClaimRef;

inline constexpr std::size_t kMaxObjectBytes = 256U << 10;  // maximum of an object's JSON text
inline constexpr std::size_t kMaxObjectIdBytes = 128;
inline constexpr std::size_t kMaxDeclaredFields = 64;  // fields and texts of a kind together
inline constexpr std::size_t kMaxFieldBytes = 128;     // length of a field's path
inline constexpr std::size_t kMaxObjectKinds = 1000;   // per context
inline constexpr std::size_t kMaxObjectOps = 100;      // operations of one write
inline constexpr std::size_t kMaxObjectPage = 1000;
inline constexpr std::size_t kMaxSearchWords = 16;

// Namespace and type of objects. Both names match [a-z][a-z0-9_-]{0,31}.
struct ObjectKind {
  std::string name_space = "default";
  std::string kind;

  auto operator<=>(const ObjectKind&) const = default;
};

struct StoredObject {
  std::string id, json;  // json: an object that includes its "id"
  std::uint64_t version = 0, created_ms = 0, updated_ms = 0;
};

struct ObjectPage {
  std::vector<StoredObject> objects;  // at most 4 MiB together
  // Argument for the next page, or empty if this is the last page. A page without objects is not always the last.
  std::string next_cursor;
  // If true, there is no result, because objects must be indexed first; call index_more().
  bool indexing = false;
};

// One operation of a write.
struct ObjectOp {
  enum class Verb { put, remove, check };
  Verb verb = Verb::put;
  ObjectKind kind;
  std::string id;                        // 1 to 128 bytes of UTF-8 without control characters
  std::optional<std::uint64_t> version;  // required current version; 0 requires that the object does not exist
  std::string json;                      // for put: the object
};

// Version and times of an object after a write.
struct ObjectStamp {
  std::string id;
  std::uint64_t version = 0, created_ms = 0, updated_ms = 0;  // the last values, if the object was removed
};

// Result of ObjectStore::write().
struct WriteReply {
  std::string busy;                 // job that is the present writer: nothing was written, and the caller retries
  std::vector<ObjectStamp> stamps;  // one for each operation
};

// Result of ObjectStore::declare().
struct DeclareReply {
  std::string busy;       // as in WriteReply
  bool indexing = false;  // objects must be indexed: call index_more()
};

using ObjectValue = std::variant<std::string, double, bool>;

// Condition on a declared field.
struct ObjectQuery {
  std::string field;                 // a declared field
  std::optional<ObjectValue> equal;  // if unset: a range of numbers, both bounds inclusive
  std::optional<double> min, max;
};

struct DeclaredFields {
  std::vector<std::string> index, text;
};

// Number of objects and declared fields of a kind.
struct KindInfo {
  ObjectKind kind;
  std::uint64_t count = 0;
  std::vector<std::string> index, text;  // declared fields, sorted
};

// A difference between an index and the objects.
struct ObjectsProblem {
  ObjectKind kind;
  std::string text;  // one line

  bool operator==(const ObjectsProblem&) const = default;
};
struct ObjectsVerdict {
  std::uint64_t objects = 0, entries = 0;
  std::vector<ObjectsProblem> problems;
};

class ObjectStore {
 public:
  explicit ObjectStore(std::unique_ptr<ContextLinks>);
  ~ObjectStore();

  // Executes all operations in order, or none. Two operations must not name the same object. call: a name for this
  // write, unique within the claim; a repeated call returns the first reply. Errors: conflict (version mismatch; the
  // message names the operation), not_found (for remove), too_large, invalid.
  Result<WriteReply> write(const ClaimRef&, const std::string& call, std::span<const ObjectOp>);
  // Adds declared fields and texts. If all are declared already, nothing is written and the call does not wait for the
  // writer. Error too_large: more than 64 fields.
  Result<DeclareReply> declare(const ClaimRef&, const ObjectKind&, const std::vector<std::string>& index,
                               const std::vector<std::string>& text);
  // Returns true if declare() would change nothing.
  Result<bool> is_declared(Id context, const ObjectKind&, const std::vector<std::string>& index,
                           const std::vector<std::string>& text);
  // Indexes some of the objects that existed before their fields were declared. Returns true if more remain. Needs no
  // claim.
  Result<bool> index_more(Id context, const ObjectKind&);
  // Ends the role of the claim's job as the writer.
  Result<void> release(const ClaimRef&);

  Result<StoredObject> get(Id context, const ObjectKind&, const std::string& id);  // not_found
  // Sorted by id. after: ObjectPage::next_cursor of the previous page; limit: 1 to 1000.
  Result<ObjectPage> list(Id context, const ObjectKind&, const std::string& after, std::size_t limit);
  // With `equal`, sorted by id; with a range, sorted by the field's value. Error invalid: the field is not declared.
  Result<ObjectPage> find(Id context, const ObjectKind&, const ObjectQuery&, const std::string& after,
                          std::size_t limit);
  // Returns objects whose declared texts contain all words, sorted by id.
  Result<ObjectPage> search(Id context, const ObjectKind&, const std::string& text, const std::string& after,
                            std::size_t limit);
  Result<std::uint64_t> count(Id context, const ObjectKind&);
  Result<std::vector<KindInfo>> kinds(Id context);  // sorted by namespace and kind

  // Compares the indexes with the objects in both directions, up to max_problems. REQUIRES: no concurrent writer.
  Result<ObjectsVerdict> verify(Id context, std::size_t max_problems);
  // Rebuilds the indexes of a kind from its objects. The caller must then call index_more() until it returns false.
  Result<void> reindex(Id context, const ObjectKind&);

 private:
  struct Schema {
    std::string revision = "0";
    DeclaredFields fields;
    bool is_indexing = false;
    std::string last_indexed_id;  // id of the last indexed object, while is_indexing is true
  };
  struct PageRequest {  // arguments of the script object_page: a sorted set and two bounds
    std::string field, key, low, high;
  };

  Result<Schema> load_schema(Id context, const ObjectKind&);
  Result<Schema> get_cached_schema(Id context, const ObjectKind&);  // may be outdated
  Result<Reply> write_once(const ClaimRef&, const std::string& call, std::span<const ObjectOp>);
  Result<ObjectPage> read_page(Id context, const ObjectKind&, const PageRequest&, std::size_t limit,
                               std::string& last_member);
  Result<std::vector<std::string>> scan_keys(Id context);
  Result<std::vector<std::string>> read_members(Id context, const std::string& key);  // of a sorted set

  std::unique_ptr<ContextLinks> links_;
  std::map<std::pair<Id, ObjectKind>, Schema> schemas_;
};

}  // namespace mycojobs
