// Tests the contribution of each layer of the sandbox: every attempt that must fail is repeated in a sandbox without
// one layer. The expected results are in tests/sandbox/matrix.txt, which describes how to update the file.
// docs/sandbox-matrix.md shows the results.
#pragma once

#include <algorithm>
#include <map>
#include <ostream>
#include <string>
#include <vector>

#include "fixture.h"

namespace mycojobs::test {

// One row of the table. The entry for each column is a letter:
// - D: the attempt was denied.
// - V: the call ended the job.
// - R: the call reached the kernel without effect, because it requested nothing or its arguments were invalid.
// - O: open, the attempt succeeded.
// - "-": not tried, because the attempt could harm the host.
struct MatrixRow {
  std::string id, name;  // Id and name together are the key of the row.
  std::string attempts;  // One per line. The row is denied if all attempts are denied.
  std::vector<std::string> accepted_results;
  std::string preparation = {};  // Attempts that prepare the row. Their results are ignored.
  bool can_exec = false;
  Limits limits = {};
};

// One column of the table: a sandbox without the layers of the disabled set-up steps.
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

  std::string file_path = "/tmp/mycojobs-matrix-XXXXXX", shm_file_path = "/dev/shm/mycojobs-matrix-XXXXXX";
  std::string folder_path = "/tmp/mycojobs-listen-XXXXXX", socket_path, abstract_name, tcp_port;

 private:
  std::vector<int> listeners_;
};

inline bool is_among(const std::vector<std::string>& list, const std::string& text) {
  return std::find(list.begin(), list.end(), text) != list.end();
}
std::vector<MatrixRow> make_matrix_rows(const HostResources&);
bool is_safe_to_try(const MatrixRow&, const MatrixColumn&);
char get_outcome_letter(const MatrixRow&, const MatrixColumn&, const RunResult&);  // '?' if the run failed

// The contents of tests/sandbox/matrix.txt.
struct MatrixTable {
  std::string kernel;  // For example "6.18".
  int landlock = 0;    // ABI version
  std::vector<std::string> columns;
  std::vector<std::string> row_keys;  // In order, for example "SF1: open_create /x".
  std::map<std::string, std::string> letters;

  char get_letter(const std::string& key, const std::string& column) const;  // ' ' if there is no entry
  void set_column(const std::string& column, const std::vector<std::pair<std::string, char>>& letters);
  std::string to_text() const;
  // Returns the table for docs/sandbox-matrix.md. Rows with equal letters share a line.
  std::string to_markdown() const;

 private:
  // Lists the columns whose letter differs from that of the first column, for example "O: seccomp; D: landlock".
  std::string format_differences(const std::string& row_letters) const;
};
MatrixTable read_matrix(const std::string& path);
std::string make_row_key(const MatrixRow&);

}  // namespace mycojobs::test
