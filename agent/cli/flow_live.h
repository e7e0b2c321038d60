// A flow as it moves: redrawn in place on a terminal, else a line for each change.
#pragma once

#include <cstdio>
#include <map>
#include <string>
#include <utility>

#include "cli/flow_opened.h"

namespace mycojobs {

struct LiveStyle {
  bool to_stdout = false;   // the answer of `flow watch`; else talk, on stderr
  bool json = false;        // lines are JSON; nothing is redrawn
  bool with_agent = false;  // of the session, should it have to be opened again
};

struct Followed {
  FlowView view;   // the last one
  int signal = 0;  // a stop signal that came before the flow's end
};
// To the flow's end, or a stop signal: the flow goes on either way. Says why it waits, if it does. Outlives a store
// that is away for a while.
Result<Followed> follow_flow(const Invocation&, OpenedFlows&, Id flow, const LiveStyle&);

// Its result and how it ended, on stderr; or with --json the one document of its end, on stdout.
void print_flow_end(const Invocation&, const FlowView&);
// 0 finished; 1 failed; 124 timeout; 130 cancelled, as of a job.
int exit_code(const FlowView&);

// Columns and lines of the terminal behind this stream; 0 lines: it is none. Colours and more than ASCII, as far as the
// environment (NO_COLOR, LC_ALL, LC_CTYPE, LANG) says.
struct Terminal {
  std::size_t columns = 100, lines = 0;
  bool colour = false, ascii = false;
};
Terminal terminal_of(std::FILE*);

}  // namespace mycojobs
