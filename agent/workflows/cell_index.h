// The index of the instances ("cells") of a deployment in a snapshot: a tree of immutable blobs that are named by their
// SHA-256. A reader of one cell reads one node and one page; a snapshot writes only the nodes and pages that changed.
//
//   index   for each workflow: the numbers of its cells by manifest and status, and the ranges of its nodes
//   node    the ranges of consecutive pages
//   page    consecutive cells of one workflow, by key: status, manifest and the encoded instance, which has the hash
//   and
//           size of its state and the height of its last fact
//
// A page ends after a key with certain bits in its hash, or at a limit of cells and bytes; a node likewise. Equal sets
// of cells therefore have equal blobs, independent of the order of changes. The hash depends on a secret salt of the
// index, so that a client that selects keys does not control the ends of pages. No side effects but the calls of the
// reader; thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "workflows/workflow_decider.h"

namespace mycojobs {

inline constexpr std::size_t kMaxPageCells = 64;
inline constexpr std::size_t kMaxPageBytes = 64U << 10;  // a page with one cell may be larger
inline constexpr std::size_t kMaxNodePages = 256;
inline constexpr std::size_t kCellSaltBytes = 16;

using CellCounts = std::array<std::uint64_t, 4>;  // numbers of cells, by InstanceStatus

// A cell as stored in a page.
struct CellRow {
  InstanceId id;
  std::string manifest;
  InstanceStatus status = InstanceStatus::waiting;
  bool has_pending_intents = false, has_spilled_state = false;
  std::string bytes;  // the instance without id and manifest
};
Result<CellRow> make_cell_row(const InstanceState&);
Result<InstanceState> decode_instance(const CellRow&);

// The cells of a page, or of all pages of a node. The range begins after the last key of the range before it.
struct CellRange {
  std::string last_key, hash;
  std::uint64_t cells = 0, bytes = 0;
  CellCounts counts{};
  std::uint64_t pending = 0, spilled = 0;  // numbers of cells with pending intents, and with a spilled state
};
struct CellNode {
  std::vector<CellRange> pages;
};
struct WorkflowCells {
  std::map<std::string, CellCounts> counts;  // by manifest
  std::vector<CellRange> nodes;
};

// Returns the blobs in the order of their hashes. Error not_found: one of them does not exist.
using BlobsReader = std::function<Result<std::vector<std::string>>(const std::vector<std::string>& hashes)>;

class CellIndex;

// Reads the blobs of an index and of its later versions, and caches decoded nodes. Nodes that a later version does not
// have are removed. Not thread-safe.
class CellReader {
 public:
  // Nodes of about a million cells. One call of load_nodes() may exceed the limit until the next call.
  static constexpr std::size_t kMaxCachedBytes = 16U << 20;
  explicit CellReader(BlobsReader read = nullptr, std::size_t max_cached_bytes = kMaxCachedBytes)
      : read_(std::move(read)), max_cached_bytes_(max_cached_bytes) {}

  // Reads nodes that are not cached, in batches.
  Result<void> load_nodes(const std::string& workflow, const std::vector<const CellRange*>& nodes);
  Result<std::shared_ptr<const CellNode>> node(const std::string& workflow, const CellRange&);
  // Returns the cells of pages, in their order. REQUIRES: few pages, since all of them are in memory.
  Result<std::vector<std::vector<CellRow>>> pages(const std::string& workflow,
                                                  const std::vector<const CellRange*>& pages);
  // Removes cached nodes that the index does not have, if there are any. Called by the functions of CellIndex.
  void drop_replaced_nodes(const CellIndex&);
  std::size_t cached_nodes() const { return nodes_.size(); }

 private:
  // Reads blobs and checks their hashes.
  Result<std::vector<std::string>> read_checked(const std::vector<const CellRange*>& ranges);
  BlobsReader read_;
  std::map<std::string, std::shared_ptr<const CellNode>> nodes_;
  std::size_t max_cached_bytes_ = kMaxCachedBytes;
  std::size_t cached_bytes_ = 0;  // approximate size of nodes_ in memory
};

using CellChanges = std::map<InstanceId, std::optional<CellRow>>;  // no value: the cell was deleted

class CellIndex {
 public:
  // An index without cells. `salt` has kCellSaltBytes bytes, or is empty, as in the indexes of earlier versions.
  explicit CellIndex(std::string salt = "") : salt_(std::move(salt)) {}

  // Encodes the index without its nodes. decode() is the inverse.
  std::string encode() const;
  static Result<CellIndex> decode(std::string_view bytes);

  const std::string& salt() const { return salt_; }
  const std::map<std::string, WorkflowCells>& workflows() const { return workflows_; }
  std::uint64_t bytes() const;  // size of all nodes and pages

  // Returns the rows of cells that exist.
  Result<std::vector<CellRow>> find(CellReader&, const std::set<InstanceId>&) const;
  // Calls visit() for the cells after `after` (if it has a value) in pages that `wants` selects, in the order of
  // InstanceId, until visit() returns false or an error.
  Result<void> visit(CellReader&, const std::optional<InstanceId>& after,
                     const std::function<bool(const std::string& workflow, const CellRange&)>& wants,
                     const std::function<Result<bool>(CellRow)>& visit) const;
  // Returns the hashes of all nodes and pages.
  Result<std::set<std::string>> list_blobs(CellReader&) const;

  struct Update;
  // Applies changes. Reads and writes only the nodes and pages with changed cells.
  Result<Update> update(CellReader&, CellChanges) const;

 private:
  std::string salt_;
  std::map<std::string, WorkflowCells> workflows_;
};
struct CellIndex::Update {
  CellIndex index;
  std::vector<WorkflowBlob> blobs;  // new nodes and pages
  std::set<std::string> replaced;   // nodes and pages of the old index that the new index does not have
};

}  // namespace mycojobs
