// Rows of the list of attempts that must fail, as tables: attempt -> what must come of it, and what comes of its twin.
#pragma once

#include <string>
#include <vector>

#include "fixture.h"

namespace mycojobs::test {

struct Row {
  const char* row;
  std::string attempt;
  std::vector<std::string> accepted;  // results, as attempt() gives them
  // The same attempt where nothing forbids it. Empty: this very line, which must then be "ok". "line => A|B": that line
  // and its results; "=> A|B": this very line. "~" in it is a folder of the twin's own. Rows that accept "ok" need
  // none.
  std::string twin = {};
};

// Each of these is run in one job, with exec where its name says so.
const std::vector<Row>& rows_on_files();
const std::vector<Row>& rows_on_network();
const std::vector<Row>& rows_on_kernel();
const std::vector<Row>& rows_on_rights();
const std::vector<Row>& rows_combined();
const std::vector<Row>& rows_with_exec();

// Without the sandbox, but in user, pid, mount, network, ipc and uts namespaces of its own in which every file is
// read-only but those of its own folder: so that it may succeed and harms nobody.
std::string attempt_outside(const std::string& line);

// What is not as the rows say, one text a row. In one job, since an attempt that is denied harms no other.
std::vector<std::string> broken_rows(Sandbox&, const std::vector<Row>&, bool exec = false);
std::vector<std::string> broken_twins(const std::vector<Row>&);
void expect_rows(const std::vector<Row>&, bool exec = false);  // both

}  // namespace mycojobs::test
