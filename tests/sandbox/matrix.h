// What each layer of the sandbox is worth: every attempt that must fail, tried with one layer left out at a time. The
// expected answers are tests/sandbox/matrix.txt, which says how to write it anew; docs/sandbox.md shows them.
#pragma once

#include <algorithm>
#include <map>
#include <ostream>
#include <string>
#include <vector>

#include "fixture.h"

namespace mycojobs::test {

// In the table: D denied; V the call ended the job; R reached: no layer refused the call, but it did nothing, for it
// asked for nothing or the kernel did not like its arguments; O open: the attempt did what it wanted; - not tried,
// since it could harm the host.
struct MatrixRow {
  std::string row, name;  // together the key in the table
  std::string lines;      // attempts, one a line; denied if all are
  std::vector<std::string> accepted;
  std::string before = {};  // attempts that prepare it, whatever comes of them
  bool exec = false;
  Limits limits = {};
};

struct MatrixColumn {
  std::string name;
  std::vector<std::string> leave_out;
};

inline std::ostream& operator<<(std::ostream& out, const MatrixColumn& column) { return out << column.name; }

const std::vector<MatrixColumn>& matrix_columns();

// What the rows about the host's own files and sockets look for, while this lives.
class HostThings {
 public:
  HostThings();
  ~HostThings();
  HostThings(const HostThings&) = delete;
  HostThings& operator=(const HostThings&) = delete;

  std::string file = "/tmp/mycojobs-matrix-XXXXXX", shared = "/dev/shm/mycojobs-matrix-XXXXXX";
  std::string folder = "/tmp/mycojobs-listen-XXXXXX", socket, abstract, port;

 private:
  std::vector<int> listeners_;
};

inline bool is_among(const std::vector<std::string>& list, const std::string& each) {
  return std::find(list.begin(), list.end(), each) != list.end();
}
std::vector<MatrixRow> matrix_rows(const HostThings&);
bool may_be_tried(const MatrixRow&, const MatrixColumn&);
char letter_of(const MatrixRow&, const MatrixColumn&, const Ran&);  // '?': the run went wrong

// tests/sandbox/matrix.txt.
struct MatrixTable {
  std::string kernel;  // "6.18"
  int landlock = 0;    // ABI
  std::vector<std::string> columns;
  std::vector<std::string> keys;  // "SF1: open_create /x", in order
  std::map<std::string, std::string> letters;

  char at(const std::string& key, const std::string& column) const;  // ' ': not there
  void set_column(const std::string& column, const std::vector<std::pair<std::string, char>>& letters);
  std::string text() const;
  std::string markdown() const;  // for the page: rows that are alike in one line
};
MatrixTable read_matrix(const std::string& path);
std::string key_of(const MatrixRow&);

}  // namespace mycojobs::test
