// The contribution of each layer of the sandbox: every attempt that must fail is repeated with one layer left out. The
// expected results are in tests/sandbox/matrix.txt, which describes how to update it; docs/sandbox-matrix.md shows
// them.
#pragma once

#include <algorithm>
#include <map>
#include <ostream>
#include <string>
#include <vector>

#include "fixture.h"

namespace mycojobs::test {

// One row of the table. Its entry for each column is a letter:
// - D: the attempt was denied.
// - V: the call ended the job.
// - R: the call reached the kernel without effect, because it requested nothing or its arguments were invalid.
// - O: open, the attempt succeeded.
// - "-": not tried, because the attempt could harm the host.
struct MatrixRow {
  std::string row, name;  // together the key in the table
  std::string lines;      // attempts, one per line; the row is denied if all attempts are denied
  std::vector<std::string> accepted;
  std::string before = {};  // attempts that prepare the row; their results are ignored
  bool exec = false;
  Limits limits = {};
};

// A column is a sandbox without the layers of some set-up steps.
struct MatrixColumn {
  std::string name;
  std::vector<std::string> disabled_steps;
};

inline std::ostream& operator<<(std::ostream& out, const MatrixColumn& column) { return out << column.name; }

const std::vector<MatrixColumn>& matrix_columns();

// Creates the files and sockets of the host that some rows search for. The destructor removes them.
class HostResources {
 public:
  HostResources();
  ~HostResources();
  HostResources(const HostResources&) = delete;
  HostResources& operator=(const HostResources&) = delete;

  std::string file = "/tmp/mycojobs-matrix-XXXXXX", shared = "/dev/shm/mycojobs-matrix-XXXXXX";
  std::string folder = "/tmp/mycojobs-listen-XXXXXX", socket, abstract, port;

 private:
  std::vector<int> listeners_;
};

inline bool is_among(const std::vector<std::string>& list, const std::string& text) {
  return std::find(list.begin(), list.end(), text) != list.end();
}
std::vector<MatrixRow> matrix_rows(const HostResources&);
bool can_be_tried(const MatrixRow&, const MatrixColumn&);
char get_outcome_letter(const MatrixRow&, const MatrixColumn&, const RunResult&);  // '?' if the run failed

// The contents of tests/sandbox/matrix.txt.
struct MatrixTable {
  std::string kernel;  // for example "6.18"
  int landlock = 0;    // ABI version
  std::vector<std::string> columns;
  std::vector<std::string> keys;  // for example "SF1: open_create /x", in order
  std::map<std::string, std::string> letters;

  char at(const std::string& key, const std::string& column) const;  // ' ' if there is no entry
  void set_column(const std::string& column, const std::vector<std::pair<std::string, char>>& letters);
  std::string text() const;
  std::string markdown() const;  // the table for docs/sandbox-matrix.md; rows with equal letters share a line
};
MatrixTable read_matrix(const std::string& path);
std::string make_row_key(const MatrixRow&);

}  // namespace mycojobs::test
