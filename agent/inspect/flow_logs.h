// What the nodes of a flow have written, read piece by piece: the log of each node's job, all attempts of it, and the
// lines of log nodes. Whole lines only: what a job has begun and not ended is told when it goes on, or at its end.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "inspect/flows.h"
#include "mycojobs/result.h"
#include "mycojobs/store.h"

namespace mycojobs {

struct FlowLogLine {
  std::string node, job_key;
  Log line;  // text without its line end; seq: of the piece that ended it
};

class FlowLogs {
 public:
  FlowLogs(RecordStore& store, Id context) : store_(store), context_(context) {}

  // What has come since the last call, node after node in the order in which they follow one another; at most about
  // `max` lines: an empty answer says that there is nothing more now.
  Result<std::vector<FlowLogLine>> next(const FlowView&, std::size_t max = 1000);

 private:
  struct Place {
    std::uint64_t after = 0;
    std::map<LogStream, Log> open;  // begun and not ended
    bool over = false;              // settled, and read to its end
  };
  Result<bool> read(const FlowView&, const NodeView&, Place&, std::vector<FlowLogLine>&);

  RecordStore& store_;
  Id context_;
  std::map<std::string, Place> places_;  // by the name of the node: what a flow gets later moves the others
};

}  // namespace mycojobs
