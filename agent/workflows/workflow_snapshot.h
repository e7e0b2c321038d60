// A snapshot of an idle deployment: pages with the instances, and a root that names the pages. Root and pages are
// deterministic CBOR blobs that are named by their SHA-256, so a store can write them one after another. The snapshot
// is valid once a fact names the root and all pages exist. Pure and thread-safe.
//
//   root   {version: 2, head: byte string, pages: [hash, ...]}; `head` is the encoded state without its instances
//   page   the encoded state with only its id and a range of its instances, in their order
//   States are encoded by encode(const DeploymentState&).
#pragma once

#include <cstddef>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "base/result.h"
#include "workflows/workflow_decider.h"

namespace mycojobs {

inline constexpr std::size_t kSnapshotPageBytes = 1U << 20;  // approximate; a page with one instance may be larger

struct DeploymentSnapshot {
  WorkflowBlob root;
  std::vector<WorkflowBlob> pages;
  std::size_t bytes() const;  // size of root and pages
};
// Error conflict: an instance has events in its inbox.
Result<DeploymentSnapshot> build_snapshot(const DeploymentState&, std::size_t page_bytes = kSnapshotPageBytes);

struct ParsedSnapshot {
  DeploymentState deployment;
  std::set<std::string> pages;
};
using BlobReader = std::function<Result<std::string>(const std::string& hash)>;
// Errors: those of the reader; invalid: a blob does not match its hash, or the blobs are not a snapshot of one
// deployment.
Result<ParsedSnapshot> read_snapshot(const std::string& root_hash, const BlobReader&);

}  // namespace mycojobs
