#include "store/keys.h"

#include "base/parse.h"

namespace mycojobs {
namespace {

constexpr InternalKey kInternalKeys[] = {
#include "store/key_table.inc"
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
