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
constexpr std::string_view kPrefix = "mj_";

std::string_view next_word(std::string_view& rest) {
  rest.remove_prefix(std::min(rest.find_first_not_of(" \t"), rest.size()));
  const auto end = std::min(rest.find_first_of(" \t"), rest.size());
  const std::string_view word = rest.substr(0, end);
  rest.remove_prefix(end);
  rest.remove_prefix(std::min(rest.find_first_not_of(" \t"), rest.size()));
  return word;
}

Result<TokenRow> read_row(std::string_view line) {
  TokenRow row;
  row.hash = next_word(line);
  if (!is_hex(row.hash, 64))
    return fail(Code::invalid,
                "the first word is not a SHA-256 hash (64 digits of 0-9, a-f): create a row with `mycojobs key token`");
  const std::string_view who = next_word(line);
  std::uint64_t actor = 0;
  if (who == "operator") {
    row.caller.operator_token = true;
  } else if (!parse_u64(who, actor) || actor == 0 || actor > UINT32_MAX) {
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
  struct stat facts {};
  if (!file || ::fstat(file.get(), &facts) != 0) return fail(Code::io, path + ": " + errno_text(errno));
  if (!S_ISREG(facts.st_mode)) return fail(Code::invalid, path + ": is not a regular file");
  if (facts.st_uid != ::geteuid() && facts.st_uid != 0)
    return fail(Code::denied, path + ": belongs to another user: chown it to the one that the server runs as");
  if ((facts.st_mode & (S_IWGRP | S_IWOTH)) != 0)
    return fail(Code::denied, path + ": other users can write to it: chmod 600 " + path);
  if (facts.st_size > static_cast<off_t>(kMaxFileBytes)) return fail(Code::too_large, path + ": is over 1 MiB");
  std::string text(kMaxFileBytes + 1, '\0');
  std::size_t size = 0;
  for (ssize_t got = 1; got != 0 && size < text.size();) {
    got = ::read(file.get(), text.data() + size, text.size() - size);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return fail(Code::io, path + ": " + errno_text(errno));
    size += static_cast<std::size_t>(got);
  }
  text.resize(size);
  return text;
}

}  // namespace

Result<std::vector<TokenRow>> read_tokens(std::string_view text) {
  std::vector<TokenRow> rows;
  for (std::size_t number = 1; !text.empty(); ++number) {
    const auto end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    const auto first = line.find_first_not_of(" \t");
    if (first == std::string_view::npos || line[first] == '#') continue;
    auto row = read_row(line);
    if (!row) return fail(row.error(), "line " + std::to_string(number));
    rows.push_back(std::move(*row));
  }
  return rows;
}

Result<void> Tokens::refresh() {
  if (file_.empty()) return {};
  struct stat facts {};
  std::string stamp = "absent";
  if (::stat(file_.c_str(), &facts) == 0) {
    stamp = std::to_string(facts.st_ino) + ' ' + std::to_string(facts.st_size) + ' ' +
            std::to_string(facts.st_mtim.tv_sec) + '.' + std::to_string(facts.st_mtim.tv_nsec) + ' ' +
            std::to_string(facts.st_mode) + ' ' + std::to_string(facts.st_uid);
  }
  const std::lock_guard lock(mutex_);
  if (stamp == stamp_) return {};
  rows_.clear();  // after an error no token is valid
  stamp_.clear();
  MJ_TRY(text, read_file(file_));
  if (text) {
    auto rows = read_tokens(*text);
    if (!rows) return fail(rows.error(), file_);
    rows_ = std::move(*rows);
  }
  stamp_ = stamp;
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
  std::optional<RpcCaller> found;
  for (const TokenRow& row : rows_) {
    if (::sodium_memcmp(row.hash.data(), hash.data(), hash.size()) == 0) found = row.caller;
  }
  return found;
}

NewToken make_token(const RpcCaller& caller, std::string_view note) {
  NewToken made;
  made.token = std::string(kPrefix) + random_hex(32);
  made.row = sha256_hex(made.token) + ' ' + (caller.operator_token ? "operator" : std::to_string(caller.actor));
  if (!note.empty()) made.row += ' ' + std::string(note);
  return made;
}

Result<std::string> add_token(const std::string& file, const RpcCaller& caller, std::string_view note) {
  if (note.find_first_of("\r\n") != std::string_view::npos) return fail(Code::invalid, "note: must be one line");
  MJ_TRY(before, read_file(file));
  if (before) {
    auto rows = read_tokens(*before);
    if (!rows) return fail(rows.error(), file);
  }
  const Fd out(::open(file.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600));
  if (!out) return fail(Code::io, file + ": " + errno_text(errno));
  const NewToken made = make_token(caller, note);
  const bool needs_newline = before && !before->empty() && !before->ends_with('\n');
  if (!write_all(out.get(), (needs_newline ? "\n" : "") + made.row + '\n') || ::fsync(out.get()) != 0)
    return fail(Code::io, file + ": " + errno_text(errno));
  return made.token;
}

}  // namespace mycojobs::api
