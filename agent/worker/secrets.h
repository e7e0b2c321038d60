// The secrets of a context: files of the operator, <folder>/<context>/<name>, and credentials of systemd,
// $CREDENTIALS_DIRECTORY/mycojobs.<context>.<name>; of two with one name the file counts. A file counts if it is a
// regular one, owned by root or by us, with no right for group or others; of a credential the service manager has seen
// to that. The line end behind a value of one line of text is not part of it; any other value is taken byte by byte.
// What is refused is told once, with a line in the log that names the file and the remedy. Values are never logged.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "domain/redactor.h"
#include "mycojobs/clock.h"
#include "mycojobs/executor.h"
#include "mycojobs/records.h"
#include "mycojobs/result.h"

namespace mycojobs {

struct SecretPlaces {
  std::string folder;       // empty: there are no files
  std::string credentials;  // empty: there are none
};

// A file where a secret may be.
struct SecretFile {
  std::string name, path;
  std::string problem;  // why it is refused, and the remedy; empty: it is a secret
  bool unread = false;  // the problem is one of this moment
  std::string value;    // if there is no problem
};
// All of a context's, by name. Error io: names the folder.
Result<std::vector<SecretFile>> find_secrets(const SecretPlaces&, Id context);

// Of one thread.
class Secrets {
 public:
  static constexpr std::uint64_t kLookMs = 2000;        // between looks at a folder
  static constexpr std::size_t kMostBytes = 16U << 10;  // of a value
  static constexpr std::size_t kMostBytesTogether = 128U
                                                    << 10;  // of a context: a redactor takes some 500 times as much

  Secrets(SecretPlaces places, const Clock& clock) : places_(std::move(places)), clock_(clock) {}

  // Finds the context's secrets as they are, or were kLookMs ago at most. Null: it has none. What was found stays in
  // force while the folder cannot be read.
  std::shared_ptr<const Redactor> redactor(Id context);
  // The one of the last look: it keeps out what values() gave just now, also where a file has changed since.
  std::shared_ptr<const Redactor> redactor_of_values(Id context) { return contexts_[context].redactor; }
  // Those with these names. Error denied: names the first that there is none of, and where it belongs.
  Result<std::vector<SecretValue>> values(Id context, const std::vector<std::string>& names);

 private:
  struct Context {
    bool looked = false;
    std::uint64_t looked_at_ms = 0;
    std::string seen;     // the folder and its files as they were read: names, sizes, times, owners, rights
    std::string problem;  // logged already
    std::vector<Secret> secrets;
    std::shared_ptr<const Redactor> redactor;
  };
  Context& looked_at(Id);
  void look(Id, Context&) const;

  SecretPlaces places_;
  const Clock& clock_;
  std::map<Id, Context> contexts_;
};

}  // namespace mycojobs
