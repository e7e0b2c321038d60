// What actors and runners sign, and how a receiver checks it. Signed is the deterministic CBOR (domain/cbor.h) of what
// the signer decides, behind a line that says what it is, so that a signature of one kind is none of another. Pure; any
// thread.
//
//   message   all that its sender sets, its target too; not where it stands (status, transport_*, logs, error)
//   receipt, envelope   all of it but the signature
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/ed25519.h"
#include "base/sha256.h"
#include "mycojobs/records.h"
#include "mycojobs/result.h"

namespace mycojobs {

inline constexpr std::string_view kEd25519 = "ed25519";  // what `algorithm` says
inline constexpr std::uint32_t kSignatureWindowS = 900;  // how far created_at may be from the receiver's clock

// Sets signature, algorithm and signer. Fields that we do not know are not signed. Errors: invalid (a text that is not
// UTF-8, no created_at, no target), too_large.
Result<void> sign(Message&, const SigningKey&);
struct SignatureCheck {
  std::string pubkey;  // of the actor that the message names as caller, as its record here has it
  std::uint64_t now_s = 0;
  std::uint32_t window_s = kSignatureWindowS;
};
// Error denied: names what does not hold: no signature, another algorithm, another key, another content, too old or
// from the future.
Result<void> check_signature(const Message&, const SignatureCheck&);
// The same for both sides whatever has been added since: identifies a message by its content. Lower-case hex.
Result<std::string> content_hash(const Message&);

// What a receipt says of the log: the lines that the job wrote, in their order; not those of others (stream system).
class LogHash {
 public:
  void add(const Log&);
  std::uint64_t lines() const { return lines_; }
  std::string hex() { return hash_.hex(); }  // once

 private:
  Sha256 hash_;
  std::uint64_t lines_ = 0;
};
std::string result_hash(const TextMap& result, const std::vector<std::string>& result_json);

// A JSON object and what it is ("receipt", "envelope"). Adds signer, algorithm, signature.
Result<void> sign(nlohmann::json&, std::string_view kind, const SigningKey&);
// Error denied: as above; pubkey: of who should have signed it.
Result<void> check_signature(const nlohmann::json&, std::string_view kind, const std::string& pubkey);
// Error denied: further apart than against.window_s.
Result<void> check_moment(const char* field, std::uint64_t moment_s, const SignatureCheck& against);

}  // namespace mycojobs
