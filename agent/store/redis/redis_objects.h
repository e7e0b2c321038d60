// The ObjectStore on Redis. Each write is one atomic step of store/scripts/objects.lua. The index entries of an object
// are computed here (store/object_index.h) from the fields that its kind declares; the step checks the revision of the
// declaration, and the write is repeated with the new declaration if it has changed. Contracts and errors:
// store/object_store.h. Used by one thread.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "store/object_index.h"
#include "store/object_store.h"
#include "store/redis/redis_store.h"
#include "store/store.h"

namespace mycojobs {

class RedisObjects final : public ObjectStore, private ContextLinks {
 public:
  explicit RedisObjects(OpenLink open, StoreInstrumentation instrumentation = {})
      : ContextLinks(std::move(open), std::move(instrumentation)) {}

  Result<WriteReply> write(const ClaimRef&, const std::string& call, std::span<const ObjectOp>) override;
  Result<DeclareReply> declare(const ClaimRef&, const ObjectKind&, const std::vector<std::string>& index,
                               const std::vector<std::string>& text) override;
  Result<bool> is_declared(Id context, const ObjectKind&, const std::vector<std::string>& index,
                           const std::vector<std::string>& text) override;
  Result<bool> index_more(Id context, const ObjectKind&) override;
  Result<void> release(const ClaimRef&) override;

  Result<StoredObject> get(Id context, const ObjectKind&, const std::string& id) override;
  Result<ObjectPage> list(Id context, const ObjectKind&, const std::string& after, std::size_t limit) override;
  Result<ObjectPage> find(Id context, const ObjectKind&, const ObjectQuery&, const std::string& after,
                          std::size_t limit) override;
  Result<ObjectPage> search(Id context, const ObjectKind&, const std::string& text, const std::string& after,
                            std::size_t limit) override;
  Result<std::uint64_t> count(Id context, const ObjectKind&) override;
  Result<std::vector<KindInfo>> kinds(Id context) override;

  Result<ObjectsVerdict> verify(Id context, std::size_t max_problems) override;
  Result<void> reindex(Id context, const ObjectKind&) override;

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

  std::map<std::pair<Id, ObjectKind>, Schema> schemas_;
};

// Names of keys; store/keys.toml describes the keys.
std::string kind_name(const ObjectKind&);  // for example "default:todo"
std::string object_key(const ObjectKind&, std::string_view id);
std::string object_ids_key(const ObjectKind&);
std::string object_kind_key(const ObjectKind&);
std::string object_index_key(const ObjectKind&, std::string_view field);  // an empty field names the index of words

// Checks the context and the names of a kind. Error invalid, which names the invalid part.
Result<void> check_kind(Id context, const ObjectKind&);

}  // namespace mycojobs
