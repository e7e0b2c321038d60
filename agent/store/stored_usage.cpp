#include "store/stored_usage.h"

#include <array>
#include <string>
#include <string_view>

#include "base/parse.h"
#include "model/codec.h"
#include "store/keys.h"

namespace mycojobs {
namespace {

// Returns no fields if nothing was counted, or the key belongs to another client.
Result<Fields> or_empty(Result<Fields> fields) {
  if (fields) return fields;
  if (fields.error().code == Code::unavailable || fields.error().code == Code::denied) return fields;
  return Fields{};
}

}  // namespace

Result<StoredBytesUsage> stored_usage(RecordStore& store, Id context) {
  static constexpr std::array<std::string_view, 3> kNames{"all", "caller_max", "context_max"};
  MJ_TRY(fields, or_empty(store.load_fields(context, kStoredBytesKey, kNames)));
  return StoredBytesUsage{number_of(fields, "all"), number_of(fields, "caller_max"), number_of(fields, "context_max")};
}

Result<std::uint64_t> stored_by_caller(RecordStore& store, Id context, Id caller) {
  const std::string name = std::to_string(caller);
  const std::array<std::string_view, 1> names{name};
  MJ_TRY(fields, or_empty(store.load_fields(context, kStoredBytesKey, names)));
  return number_of(fields, name);
}

Result<std::pair<Id, std::uint64_t>> largest_storage_user(RecordStore& store, Id context) {
  MJ_TRY(fields, or_empty(store.load(context, kStoredBytesKey)));
  std::pair<Id, std::uint64_t> largest{0, 0};
  for (const auto& [name, value] : fields) {
    std::uint64_t caller = 0, bytes = 0;
    if (parse_u64(name, caller) && parse_u64(value, bytes) && bytes > largest.second)
      largest = {static_cast<Id>(caller), bytes};
  }
  return largest;
}

}  // namespace mycojobs
