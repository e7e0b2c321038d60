// Signatures of actors and runners. The signed data is the deterministic CBOR (text/cbor.h) of the fields that the
// signer sets, after a line that names the kind of data, so that a signature of one kind is invalid for another. Pure
// and thread-safe.
//
//   message             all fields that its sender sets, including the target; without its state (status,
//                       transport_*, logs, error)
//   receipt, envelope   all fields except the signature
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/ed25519.h"
#include "base/result.h"
#include "base/sha256.h"
#include "model/records.h"

namespace mycojobs {

inline constexpr std::string_view kEd25519 = "ed25519";  // value of `algorithm`
// Maximum difference between created_at and the receiver's clock.
inline constexpr std::uint32_t kSignatureWindowS = 900;

// Sets signature, algorithm and signer. Unknown fields are not signed. Errors: invalid (a text that is not UTF-8, no
// created_at, no target), too_large.
Result<void> sign(Message&, const SigningKey&);
struct SignatureCheck {
  std::string pubkey;  // key of the actor that the message names as caller, from the local record of the actor
  std::uint64_t now_s = 0;
  std::uint32_t window_s = kSignatureWindowS;
};
// Error denied: names the failed check: no signature, another algorithm, another key, another content, too old, or
// created in the future.
Result<void> check_signature(const Message&, const SignatureCheck&);
// Identifies a message by its content, in lower-case hex. Sender and receiver compute the same value, regardless of
// fields that were added since.
Result<std::string> content_hash(const Message&);

// The hash of the log for a receipt: the lines that the job wrote, in their order, without lines of stream system.
class LogHash {
 public:
  void add(const Log&);
  std::uint64_t lines() const { return lines_; }
  std::string hex() { return hash_.hex(); }  // must be called only once, after the last add()

 private:
  Sha256 hash_;
  std::uint64_t lines_ = 0;
};
std::string compute_result_hash(const TextMap& result, const std::vector<std::string>& result_json);

// Signs a JSON object of the given kind ("receipt", "envelope"). Adds signer, algorithm and signature.
Result<void> sign(nlohmann::json&, std::string_view kind, const SigningKey&);
// Checks the signature. `pubkey` is the key of the expected signer. Error denied: as check_signature() of a message.
Result<void> check_signature(const nlohmann::json&, std::string_view kind, const std::string& pubkey);
// Checks the time of a signed field. Error denied: it differs from now_s by more than window_s.
Result<void> check_time_window(const char* field, std::uint64_t time_s, const SignatureCheck&);

}  // namespace mycojobs
