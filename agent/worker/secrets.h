// The secrets of a context: files of the operator, <folder>/<context>/<name>. A file counts if it is a regular one,
// owned by root or by us, with no right for group or others; a line end at its end is not part of the value. Any other
// is refused, once, with a line in the log that names the file and the remedy. Values are never logged.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "mycojobs/clock.h"
#include "mycojobs/executor.h"
#include "mycojobs/records.h"
#include "worker/redactor.h"

namespace mycojobs {

// Of one thread.
class Secrets {
 public:
  static constexpr std::uint64_t kLookMs = 2000;        // between looks at a folder
  static constexpr std::size_t kMostBytes = 16U << 10;  // of a value
  static constexpr std::size_t kMostBytesTogether = 128U
                                                    << 10;  // of a context: a redactor takes some 500 times as much

  // folder empty: no context has any.
  Secrets(std::string folder, const Clock& clock) : folder_(std::move(folder)), clock_(clock) {}

  // Finds the context's secrets as they are, or were kLookMs ago at most. Null: it has none. What was found stays in
  // force while the folder cannot be read.
  std::shared_ptr<const Redactor> redactor(Id context);
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

  std::string folder_;
  const Clock& clock_;
  std::map<Id, Context> contexts_;
};

}  // namespace mycojobs
