// Tables of the attempts that must fail. A row has an attempt, its accepted results and a twin with its expected
// results.
#pragma once

#include <string>
#include <vector>

#include "sandbox/fixture.h"

namespace mycojobs::test {

struct Row {
  const char* row;  // id in rows.txt, or a topic
  std::string attempt;
  std::vector<std::string> accepted;  // accepted results of attempt()
  // The twin is the same attempt in an environment that permits it. Empty: the attempt itself, which must return "ok".
  // "line => A|B": another line and its accepted results. "=> A|B": the attempt itself and its accepted results. "~" in
  // the line is a folder of the twin. Rows that accept "ok" need no twin.
  std::string twin = {};
};

// All rows of a table run in one job. The rows of rows_with_exec() run with the exec grant.
const std::vector<Row>& rows_on_files();
const std::vector<Row>& rows_on_network();
const std::vector<Row>& rows_on_kernel();
const std::vector<Row>& rows_on_rights();
const std::vector<Row>& rows_combined();
const std::vector<Row>& rows_with_exec();

// Runs an attempt without the sandbox, but in new user, pid, mount, network, ipc and uts namespaces. There, only files
// in the attempt's own folder are writable, so an attempt that succeeds does no harm.
std::string attempt_outside(const std::string& line);

// Returns one text for each row with an unexpected result. All rows run in one job, because a denied attempt does not
// affect the next attempt.
std::vector<std::string> find_broken_rows(Sandbox&, const std::vector<Row>&, bool exec = false);
// Returns one text for each twin with an unexpected result.
std::vector<std::string> find_broken_twins(const std::vector<Row>&);
void expect_rows(const std::vector<Row>&, bool exec = false);  // checks rows and twins

}  // namespace mycojobs::test
