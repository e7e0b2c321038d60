// Bearer tokens: who calls. The file holds hashes, one a line, never a token:
//
//   # what, who, a note
//   <64 hex digits: SHA-256 of the token> 12 deploys from CI
//   <64 hex digits> operator the machine room
//
// It must belong to this user (or root) and be writable by nobody else. Threads: any.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "api/rpc.h"
#include "mycojobs/result.h"

namespace mycojobs::api {

struct TokenRow {
  std::string hash;  // 64 lower-case hex digits
  Caller caller;
  std::string note;
};
// Error invalid: names the line and what is wrong with it.
Result<std::vector<TokenRow>> read_tokens(std::string_view text);

class Tokens {
 public:
  explicit Tokens(std::string file) : file_(std::move(file)) {}
  // Reads the file if it has changed. A file that is not there holds no token; one that is wrong is an error, and then
  // nobody is let in.
  Result<void> refresh();
  bool any() const;
  // Takes as long for a wrong token as for a right one. Nothing: no such token.
  std::optional<Caller> find(std::string_view token) const;

 private:
  std::string file_;
  mutable std::mutex mutex_;
  std::string stamp_;  // of the file as it was read
  std::vector<TokenRow> rows_;
};

struct NewToken {
  std::string token, row;  // the row as it stands in the file
};
NewToken make_token(const Caller&, std::string_view note);
// Appends it to the file, which is made (0600) if it is not there. The token is in no file.
Result<std::string> add_token(const std::string& file, const Caller&, std::string_view note);

}  // namespace mycojobs::api
