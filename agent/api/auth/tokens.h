// Bearer tokens, which identify callers. Each line of the tokens file has the hash of a token:
//
//   # hash, actor id or `operator`, note
//   <64 hex digits: SHA-256 of the token> 12 deploys from CI
//   <64 hex digits> operator the machine room
//
// The file must belong to the user of this process or to root, and no other user may have write permission.
#pragma once

#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "api/rpc/json_rpc.h"
#include "base/result.h"

namespace mycojobs::api {

struct TokenRow {
  std::string hash;  // 64 lower-case hex digits
  RpcCaller caller;
  std::string note;
};
// Parses the text of a tokens file. Error `invalid` names the line.
Result<std::vector<TokenRow>> parse_tokens(std::string_view text);

// The tokens of a file. Thread-safe.
class Tokens {
 public:
  explicit Tokens(std::string file) : file_(std::move(file)) {}
  // Reads the file if it has changed. A missing file has no tokens. After an error no token is valid, so that a damaged
  // file does not keep removed tokens valid. Errors: invalid, denied (owner or permissions), too_large, io.
  Result<void> reload_if_changed();
  bool has_tokens() const;  // whether there is a valid token
  // Returns the caller of a token, or no value. The time does not depend on whether the token is valid.
  std::optional<RpcCaller> find(std::string_view token) const;

 private:
  std::string file_;
  mutable std::mutex mutex_;
  std::string identity_;  // identity and times of the file when it was read
  std::vector<TokenRow> rows_;
};

struct NewToken {
  std::string token, row;  // row: the line for the file
};
NewToken make_token(const RpcCaller&, std::string_view note);
// Creates a token, appends its row to the file, and returns the token. Creates a missing file with mode 0600. Errors:
// invalid, denied, too_large, io.
Result<std::string> add_token(const std::string& file, const RpcCaller&, std::string_view note);

}  // namespace mycojobs::api
