// The process that has the files of a job and sends them to other hosts: an agent, which stored them at the end of a
// run, or a coordinator, which received them with a message or as an upload. A coordinator has no runner, so it is
// identified by its folder of the context (artifacts/transfer/holder_name.h). Pure.
#pragma once

#include <string>
#include <string_view>

#include "model/records.h"

namespace mycojobs {

struct FileHolder {
  FileHolder() = default;
  FileHolder(Id runner_id) : runner(runner_id) {}  // NOLINT(google-explicit-constructor): an agent is its runner
  bool operator==(const FileHolder&) const = default;
  bool is_known() const { return runner != 0 || !coordinator.empty(); }

  Id runner = 0;            // 0: the holder is a coordinator, or unknown
  std::string coordinator;  // name of the folder of a coordinator; empty: the holder is an agent, or unknown
};

// Returns the name in channels and records: "7" for a runner, "3f0c6e2a9b15d84c7e21f0aa@atlas" for a coordinator, and
// "0" for an unknown holder.
std::string to_string(const FileHolder&);
// Returns the holder for a name in a record. Returns an unknown holder for a text with another form.
FileHolder parse_file_holder(std::string_view name);
// Returns the name for users: "runner 7" or "coordinator 3f0c6e2a9b15d84c7e21f0aa@atlas".
std::string describe(const FileHolder&);

// Returns the name for a new folder of a coordinator: 24 hex digits, "@", and the name of the host without characters
// that a channel cannot have.
std::string make_coordinator_name(std::string_view hex_digits, std::string_view host);
bool is_coordinator_name(std::string_view name);

}  // namespace mycojobs
