// A snapshot of an idle deployment: a root, and the nodes and pages of its index of cells (cell_index.h). All of them
// are blobs that are named by their SHA-256, so a store can write them one after another. The snapshot is valid once a
// fact names the root and all blobs exist. Pure and thread-safe.
//
//   root      {version: 3, head: byte string, cells: byte string}; `head` is the encoded state without its instances
//   version 2 {version: 2, head, pages: [hash, ...]}; a page is the encoded state with only its id and a range of its
//             instances. Earlier versions of the program wrote this form; it is read and never written.
#pragma once

#include <cstddef>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "base/result.h"
#include "workflows/cell_index.h"
#include "workflows/workflow_decider.h"

namespace mycojobs {

struct DeploymentSnapshot {
  WorkflowBlob root;
  std::vector<WorkflowBlob> pages;  // nodes and pages
  std::size_t bytes() const;        // size of root and pages
};
// Builds the snapshot of a state that has all instances. Error conflict: an instance has events in its inbox.
Result<DeploymentSnapshot> build_snapshot(const DeploymentState&);
// Returns the root of a snapshot with this index of cells.
Result<WorkflowBlob> make_snapshot_root(const DeploymentState& head, const CellIndex&);

// The root of a snapshot. `head` has no instances. A snapshot of version 2 has `pages` in place of `cells`.
struct SnapshotRoot {
  DeploymentState head;
  CellIndex cells;
  std::vector<std::string> pages;
  bool has_pages = false;
};
Result<SnapshotRoot> read_snapshot_root(const std::string& root_hash, const std::string& bytes);

struct ParsedSnapshot {
  DeploymentState deployment;
  std::set<std::string> pages;  // nodes and pages
};
using BlobReader = std::function<Result<std::string>(const std::string& hash)>;
// Reads a whole snapshot. Errors: those of the reader; invalid: a blob does not match its hash, or the blobs are not a
// snapshot of one deployment.
Result<ParsedSnapshot> read_snapshot(const std::string& root_hash, const BlobReader&);
Result<ParsedSnapshot> read_snapshot(SnapshotRoot, const BlobsReader&);

}  // namespace mycojobs
