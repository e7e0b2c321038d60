// The secrets of a context. They are files of the operator, <folder>/<context>/<name>, and credentials of systemd,
// $CREDENTIALS_DIRECTORY/mycojobs.<context>.<name>. If both exist with the same name, the file is used. A file must be
// a regular file that is owned by root or by the user of the agent and that gives no permissions to group and others;
// the service manager is responsible for the permissions of credentials. If a value is one line of text, its line end
// is removed; all other values are used byte by byte. A refused file is logged once, with its name and the remedy.
// Values are never logged.
//
// A job's output is redacted of the values that were granted to this job, and of those only: the redactor holds text
// back, so a value that a job does not know must not influence when its text is shown.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "model/records.h"
#include "security/redactor.h"
#include "security/secret.h"

namespace mycojobs {

struct SecretSources {
  std::string folder;       // empty if no files are read
  std::string credentials;  // empty if there are no credentials
  // CONTEXT/NAME: redacted in every job of the context, also without a grant (setting secrets_redacted).
  std::vector<std::string> always_redacted = {};
  bool empty() const { return folder.empty() && credentials.empty(); }
};

// A file that may contain a secret.
struct SecretFile {
  std::string name, path;
  std::string problem;     // reason and remedy if the file is refused, empty if it is a secret
  bool is_unread = false;  // the file could not be read, which may be temporary
  std::string value;       // set if there is no problem
};
// Checks the setting secrets_redacted. Error invalid: names the first entry that is not CONTEXT/NAME.
Result<void> check_always_redacted(const std::vector<std::string>& entries);
bool is_always_redacted(const SecretSources&, Id context, const std::string& name);

// Returns the files of a context, sorted by name within each source. Error io: names the folder.
Result<std::vector<SecretFile>> find_secrets(const SecretSources&, Id context);

// The secrets of a context, as they were at one read. Immutable and thread-safe.
class SecretSet {
 public:
  SecretSet(SecretSources, Id context, std::vector<Secret>);
  const std::vector<Secret>& all() const { return all_; }
  // Returns the redactor of a job that was granted these secrets. It redacts the granted and the always redacted
  // secrets of the context. Returns null if there is nothing to redact. Jobs with the same secrets share a redactor.
  std::shared_ptr<const Redactor> get_redactor(const std::vector<Secret>& granted) const;
  // Returns the secrets with these names. Error denied: names the first missing secret, and where to put it.
  Result<std::vector<Secret>> get_secrets(const std::vector<std::string>& names) const;
  // Returns whether all of these secrets are present with these values.
  bool contains(const std::vector<Secret>& secrets) const;

 private:
  SecretSources sources_;
  Id context_ = 0;
  std::vector<Secret> all_;

  static constexpr std::size_t kMaxRedactors = 16;
  using NamedRedactor = std::pair<std::vector<std::string>, std::shared_ptr<const Redactor>>;
  mutable std::mutex mutex_;                      // guards redactors_
  mutable std::vector<NamedRedactor> redactors_;  // most recently used first
};

// Reads the secrets of one context. Not thread-safe. Can block on a disk; callers that must not block use
// security/secret_watcher.h.
class SecretReader {
 public:
  static constexpr std::size_t kMaxBytes = 16U << 10;  // maximum size of a value
  // Maximum size of all values of a context. A redactor needs about 500 times as much memory.
  static constexpr std::size_t kMaxTotalBytes = 128U << 10;

  SecretReader(SecretSources, Id context);
  // Reads the secrets. Returns the same object as before if nothing has changed, or if the folder cannot be read.
  // Returns null while the secrets are unknown, because the folder has never been readable.
  std::shared_ptr<const SecretSet> rescan();

 private:
  std::shared_ptr<const SecretSet> update_current(std::vector<Secret>);

  SecretSources sources_;
  Id context_ = 0;
  // State of the folder and its files when they were read: names, sizes, times, owners, permissions. Without a value,
  // the next rescan() reads the files again.
  std::optional<std::string> folder_state_;
  std::vector<std::string> logged_rejections_;
  std::string logged_problem_;
  std::shared_ptr<const SecretSet> current_;
};

}  // namespace mycojobs
