// A snapshot of a world at rest: its instances in pages, and a root that names them. Each is deterministic CBOR and is
// called by its SHA-256, so that a store may take them one after the other: until the root is named by a fact, and all
// pages are there, there is no snapshot. Pure; any thread.
//
//   root   {version: 2, head: <world without instances>, pages: [hash, ...]}
//   page   <world with nothing but its id and a run of instances, in their order>
//   <...>  encode(WorldState), as a byte string where it stands in the root
#pragma once

#include <cstddef>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "domain/workflow_decide.h"
#include "mycojobs/result.h"

namespace mycojobs {

inline constexpr std::size_t kSnapshotPageBytes = 1U << 20;  // about; one instance may have more

struct WorldSnapshot {
  WorkflowBlob root;
  std::vector<WorkflowBlob> pages;
  std::size_t bytes() const;  // of all
};
// Of a world where nobody has mail.
Result<WorldSnapshot> snapshot_of(const WorldState&, std::size_t page_bytes = kSnapshotPageBytes);

struct SnapshotRead {
  WorldState world;
  std::set<std::string> pages;
};
using BlobReader = std::function<Result<std::string>(const std::string& hash)>;
// Errors: the reader's; invalid: a blob does not hold what its name says, or they are no snapshot of one world.
Result<SnapshotRead> read_snapshot(const std::string& root_hash, const BlobReader&);

}  // namespace mycojobs
