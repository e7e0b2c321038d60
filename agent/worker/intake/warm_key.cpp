#include "worker/intake/warm_key.h"

#include <nlohmann/json.hpp>
#include <string_view>

#include "base/parse.h"
#include "base/sha256.h"
#include "model/codec.h"
#include "model/policy_json.h"
#include "text/json.h"

namespace mycojobs {
namespace {

// Each text is preceded by its length, so that different lists of texts have different encodings.
class WarmKeyParts {
 public:
  WarmKeyParts& add(std::string_view text) {
    bytes_ += std::to_string(text.size());
    bytes_ += ':';
    bytes_ += text;
    return *this;
  }
  WarmKeyParts& add(std::uint64_t number) { return add(std::to_string(number)); }
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

}  // namespace

void assign_warm_key(WarmReuse& warm, const JobFacts& facts, const std::string& secret) {
  const Job& job = facts.job;
  WarmKeyParts parts;
  parts.add(job.context_id).add(job.caller_id).add(job.script_type).add(sha256_hex(job.script));
  parts.add(dump_json(to_json(facts.granted_policy)));
  parts.add(job.env_vars.size());
  for (const auto& [name, value] : job.env_vars) parts.add(name).add(value);
  warm.family = to_hex(hmac_sha256(secret, parts.bytes()));
  parts.add(facts.secrets.size());
  for (const Secret& job_secret : facts.secrets) parts.add(job_secret.name).add(job_secret.value);
  warm.key = to_hex(hmac_sha256(secret, parts.bytes()));
}

}  // namespace mycojobs
