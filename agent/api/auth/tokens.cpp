#include "api/auth/tokens.h"

#include <fcntl.h>
#include <sodium.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "base/errno_text.h"
#include "base/fd.h"
#include "base/parse.h"
#include "base/random.h"
#include "base/sha256.h"

namespace mycojobs::api {
namespace {

constexpr std::size_t kMaxFileBytes = 1U << 20, kMaxTokenBytes = 512;
constexpr std::string_view kTokenPrefix = "mj_";

std::string_view pop_word(std::string_view& text) {
  text.remove_prefix(std::min(text.find_first_not_of(" \t"), text.size()));
  const auto end = std::min(text.find_first_of(" \t"), text.size());
  const std::string_view word = text.substr(0, end);
  text.remove_prefix(end);
  text.remove_prefix(std::min(text.find_first_not_of(" \t"), text.size()));
  return word;
}

Result<TokenRow> parse_row(std::string_view line) {
  TokenRow row;
  row.hash = pop_word(line);
  if (!is_hex(row.hash, 64))
    return fail(Code::invalid,
                "the first word is not a SHA-256 hash (64 digits of 0-9, a-f): create a row with `mycojobs key token`");
  const std::string_view owner = pop_word(line);
  std::uint64_t actor = 0;
  if (owner == "operator") {
    row.caller.operator_token = true;
  } else if (!parse_u64(owner, actor) || actor == 0 || actor > UINT32_MAX) {
    return fail(Code::invalid, "the second word is neither an actor's id (1 to 4294967295) nor `operator`");
  }
  row.caller.actor = static_cast<Id>(actor);
  row.note = line;
  return row;
}

// Reads the tokens file and checks its owner and permissions. No value: the file does not exist.
Result<std::optional<std::string>> read_file(const std::string& path) {
  const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file && errno == ENOENT) return std::nullopt;
  struct stat status {};
  if (!file || ::fstat(file.get(), &status) != 0) return fail(Code::io, path + ": " + errno_text(errno));
  if (!S_ISREG(status.st_mode)) return fail(Code::invalid, path + ": is not a regular file");
  if (status.st_uid != ::geteuid() && status.st_uid != 0)
    return fail(Code::denied, path + ": belongs to another user: chown it to the one that the server runs as");
  if ((status.st_mode & (S_IWGRP | S_IWOTH)) != 0)
    return fail(Code::denied, path + ": other users can write to it: chmod 600 " + path);
  if (status.st_size > static_cast<off_t>(kMaxFileBytes)) return fail(Code::too_large, path + ": is over 1 MiB");
  std::string text(kMaxFileBytes + 1, '\0');
  std::size_t size = 0;
  for (ssize_t received = 1; received != 0 && size < text.size();) {
    received = ::read(file.get(), text.data() + size, text.size() - size);
    if (received < 0 && errno == EINTR) continue;
    if (received < 0) return fail(Code::io, path + ": " + errno_text(errno));
    size += static_cast<std::size_t>(received);
  }
  text.resize(size);
  return text;
}

}  // namespace

Result<std::vector<TokenRow>> parse_tokens(std::string_view text) {
  std::vector<TokenRow> rows;
  for (std::size_t number = 1; !text.empty(); ++number) {
    const auto end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    const auto first = line.find_first_not_of(" \t");
    if (first == std::string_view::npos || line[first] == '#') continue;
    auto row = parse_row(line);
    if (!row) return fail(row.error(), "line " + std::to_string(number));
    rows.push_back(std::move(*row));
  }
  return rows;
}

Result<void> Tokens::reload_if_changed() {
  if (file_.empty()) return {};
  struct stat status {};
  std::string identity = "absent";
  if (::stat(file_.c_str(), &status) == 0) {
    identity = std::to_string(status.st_ino) + ' ' + std::to_string(status.st_size) + ' ' +
               std::to_string(status.st_mtim.tv_sec) + '.' + std::to_string(status.st_mtim.tv_nsec) + ' ' +
               std::to_string(status.st_mode) + ' ' + std::to_string(status.st_uid);
  }
  const std::lock_guard lock(mutex_);
  if (identity == identity_) return {};
  rows_.clear();  // after an error no token is valid
  identity_.clear();
  MJ_TRY(text, read_file(file_));
  if (text) {
    auto rows = parse_tokens(*text);
    if (!rows) return fail(rows.error(), file_);
    rows_ = std::move(*rows);
  }
  identity_ = identity;
  return {};
}

bool Tokens::has_tokens() const {
  const std::lock_guard lock(mutex_);
  return !rows_.empty();
}

std::optional<RpcCaller> Tokens::find(std::string_view token) const {
  if (token.empty() || token.size() > kMaxTokenBytes) return std::nullopt;
  const std::string hash = sha256_hex(token);
  const std::lock_guard lock(mutex_);
  std::optional<RpcCaller> caller;
  for (const TokenRow& row : rows_) {
    if (::sodium_memcmp(row.hash.data(), hash.data(), hash.size()) == 0) caller = row.caller;
  }
  return caller;
}

NewToken make_token(const RpcCaller& caller, std::string_view note) {
  NewToken token;
  token.token = std::string(kTokenPrefix) + random_hex(32);
  token.row = sha256_hex(token.token) + ' ' + (caller.operator_token ? "operator" : std::to_string(caller.actor));
  if (!note.empty()) token.row += ' ' + std::string(note);
  return token;
}

Result<std::string> add_token(const std::string& file, const RpcCaller& caller, std::string_view note) {
  if (note.find_first_of("\r\n") != std::string_view::npos) return fail(Code::invalid, "note: must be one line");
  MJ_TRY(old_text, read_file(file));
  if (old_text) {
    auto rows = parse_tokens(*old_text);
    if (!rows) return fail(rows.error(), file);
  }
  const Fd output(::open(file.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600));
  if (!output) return fail(Code::io, file + ": " + errno_text(errno));
  const NewToken token = make_token(caller, note);
  const bool needs_newline = old_text && !old_text->empty() && !old_text->ends_with('\n');
  if (!write_all(output.get(), (needs_newline ? "\n" : "") + token.row + '\n') || ::fsync(output.get()) != 0)
    return fail(Code::io, file + ": " + errno_text(errno));
  return token.token;
}

}  // namespace mycojobs::api
