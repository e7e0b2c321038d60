// The secrets of a context: files of the operator, <folder>/<context>/<name>, and credentials of systemd,
// $CREDENTIALS_DIRECTORY/mycojobs.<context>.<name>; of two with one name the file counts. A file counts if it is a
// regular one, owned by root or by us, with no right for group or others; of a credential the service manager has seen
// to that. The line end behind a value of one line of text is not part of it; any other value is taken byte by byte.
// What is refused is logged once, with a line that names the file and the remedy. Values are never logged.
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

#include "domain/redactor.h"
#include "mycojobs/executor.h"
#include "mycojobs/records.h"
#include "mycojobs/result.h"

namespace mycojobs {

struct SecretPlaces {
  std::string folder;       // empty: there are no files
  std::string credentials;  // empty: there are none
  // CONTEXT/NAME: redacted in every job of the context, also without a grant (setting secrets_redacted).
  std::vector<std::string> always_redacted = {};
  bool empty() const { return folder.empty() && credentials.empty(); }
};

// A file where a secret may be.
struct SecretFile {
  std::string name, path;
  std::string problem;  // why it is refused, and the remedy; empty: it is a secret
  bool unread = false;  // the problem is one of this moment
  std::string value;    // if there is no problem
};
// Error invalid: names the first entry of the setting secrets_redacted that is not CONTEXT/NAME.
Result<void> check_always_redacted(const std::vector<std::string>& entries);
bool is_always_redacted(const SecretPlaces&, Id context, const std::string& name);

// All of a context's, by name. Error io: names the folder.
Result<std::vector<SecretFile>> find_secrets(const SecretPlaces&, Id context);

// The secrets of a context at one time. Immutable and thread-safe.
class FoundSecrets {
 public:
  FoundSecrets(SecretPlaces, Id context, std::vector<Secret>);
  const std::vector<Secret>& all() const { return all_; }
  // The redactor of a job that was granted these secrets: it redacts them and the always redacted ones of the context.
  // Null: nothing is redacted. Jobs with the same secrets share a redactor.
  std::shared_ptr<const Redactor> redactor(const std::vector<SecretValue>& granted) const;
  // Those with these names. Error denied: names the first that there is none of, and where it belongs.
  Result<std::vector<SecretValue>> values(const std::vector<std::string>& names) const;
  // Whether these are among them, with their values.
  bool has(const std::vector<SecretValue>& given) const;

 private:
  SecretPlaces places_;
  Id context_ = 0;
  std::vector<Secret> all_;

  static constexpr std::size_t kMaxRedactors = 16;
  using NamedRedactor = std::pair<std::vector<std::string>, std::shared_ptr<const Redactor>>;
  mutable std::mutex mutex_;                      // guards what follows
  mutable std::vector<NamedRedactor> redactors_;  // the last used ones, the latest first
};

// The secrets of one context. Of one thread, and it may have to wait for a disk: worker/secrets_watch.h is for those
// who must not.
class Secrets {
 public:
  static constexpr std::size_t kMostBytes = 16U << 10;  // of a value
  static constexpr std::size_t kMostBytesTogether = 128U
                                                    << 10;  // of a context: a redactor takes some 500 times as much

  Secrets(SecretPlaces, Id context);
  // As they are now; the same as before where nothing has changed. What was found stays in force while the folder
  // cannot be read; null: it could not yet, so nobody knows what is a secret.
  std::shared_ptr<const FoundSecrets> look();

 private:
  std::shared_ptr<const FoundSecrets> take(std::vector<Secret>);

  SecretPlaces places_;
  Id context_ = 0;
  // The folder and its files as they were read: names, sizes, times, owners, rights. None: they are read again.
  std::optional<std::string> seen_;
  std::vector<std::string> refused_;  // logged already, as is:
  std::string problem_;
  std::shared_ptr<const FoundSecrets> found_;
};

}  // namespace mycojobs
