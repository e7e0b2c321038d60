#include "workflows/cell_index.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/parse.h"
#include "base/sha256.h"
#include "text/cbor_items.h"
#include "workflows/siphash.h"

namespace mycojobs {
namespace {

constexpr std::size_t kMaxReadBytes = 8U << 20;
constexpr std::size_t kMaxReadBlobs = 512;
constexpr std::size_t kMaxPagesBatch = 32;  // pages that are decoded together
// On average, one key of 16 ends a page and one of 64 pages ends a node.
constexpr std::uint64_t kPageMask = 15, kNodeMask = 63 * 16 + 15;

// Reads items of the kinds that the index has. After the first error all values are empty.
class IndexItems {
 public:
  explicit IndexItems(std::string_view input) : items_(input) {}
  std::uint64_t array() { return next(CborItem::Kind::array).argument; }
  std::uint64_t number() { return next(CborItem::Kind::natural).argument; }
  std::string text() { return std::string(next(CborItem::Kind::text).text); }
  std::string bytes() { return std::string(next(CborItem::Kind::bytes).text); }
  // Returns no value, and reads nothing, if the next item is not a byte string.
  std::optional<std::string> optional_bytes() {
    CborItems items = items_;
    const auto item = items.next();
    if (has_error_ || !item || item->kind != CborItem::Kind::bytes) return std::nullopt;
    items_ = items;
    return std::string(item->text);
  }
  bool has_error() const { return has_error_; }
  bool is_at_end() const { return !has_error_ && items_.check_end(); }

 private:
  CborItem next(CborItem::Kind kind) {
    if (has_error_) return {};
    const auto item = items_.next();
    has_error_ = !item || item->kind != kind;
    return has_error_ ? CborItem() : *item;
  }
  CborItems items_;
  bool has_error_ = false;
};

void append_counts(std::string& out, const CellCounts& counts) {
  for (const std::uint64_t count : counts) append_cbor_head(out, CborMajor::natural, count);
}
void append_range(std::string& out, const CellRange& range) {
  append_cbor_head(out, CborMajor::array, 10);
  append_cbor_bytes(out, range.last_key);
  append_cbor_bytes(out, from_hex(range.hash));
  for (const std::uint64_t number : {range.cells, range.bytes, range.pending, range.spilled})
    append_cbor_head(out, CborMajor::natural, number);
  append_counts(out, range.counts);
}
CellRange read_range(IndexItems& in) {
  CellRange range;
  in.array();
  range.last_key = in.bytes();
  range.hash = to_hex(in.bytes());
  range.cells = in.number(), range.bytes = in.number(), range.pending = in.number(), range.spilled = in.number();
  for (std::uint64_t& count : range.counts) count = in.number();
  return range;
}
std::vector<CellRange> read_ranges(IndexItems& in) {
  std::vector<CellRange> ranges;
  for (std::uint64_t size = in.array(); size > 0 && !in.has_error(); --size) ranges.push_back(read_range(in));
  return ranges;
}
bool are_ordered(const std::vector<CellRange>& ranges) {
  return std::adjacent_find(ranges.begin(), ranges.end(), [](const CellRange& a, const CellRange& b) {
           return a.last_key >= b.last_key;
         }) == ranges.end();
}

tl::unexpected<Error> blob_error(const CellRange& range, const std::string& problem) {
  return fail(Code::invalid, "the blob " + range.hash + ' ' + problem);
}

void add(CellRange& sum, const CellRange& part) {
  sum.cells += part.cells, sum.bytes += part.bytes, sum.pending += part.pending, sum.spilled += part.spilled;
  for (std::size_t i = 0; i < sum.counts.size(); ++i) sum.counts[i] += part.counts[i];
}

// Returns a hash of a key. The lower bits of the hash select the ends of pages and nodes. Without a salt, the hash is
// FNV-1a with a final mix.
std::uint64_t hash_key(std::string_view salt, std::string_view key) {
  if (!salt.empty()) return siphash(salt, key);
  std::uint64_t hash = 0xcbf29ce484222325U;
  for (const char c : key) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3U;
  hash = (hash ^ (hash >> 33U)) * 0xff51afd7ed558ccdU;
  return hash ^ (hash >> 33U);
}

WorkflowBlob make_cell_blob(std::string bytes) {
  std::string hash = sha256_hex(bytes);
  return {std::move(hash), std::move(bytes)};
}

constexpr std::uint64_t kPendingFlag = 4, kSpilledFlag = 8;

std::string encode_page(const std::string& workflow, const std::vector<CellRow>& rows) {
  std::vector<std::string> manifests;
  for (const CellRow& row : rows)
    if (std::find(manifests.begin(), manifests.end(), row.manifest) == manifests.end())
      manifests.push_back(row.manifest);
  std::string out;
  append_cbor_head(out, CborMajor::array, 3);
  append_cbor_text(out, workflow);
  append_cbor_head(out, CborMajor::array, manifests.size());
  for (const std::string& manifest : manifests) append_cbor_text(out, manifest);
  append_cbor_head(out, CborMajor::array, rows.size());
  for (const CellRow& row : rows) {
    append_cbor_head(out, CborMajor::array, 4);
    append_cbor_bytes(out, row.id.key);
    append_cbor_head(out, CborMajor::natural,
                     static_cast<std::uint64_t>(row.status) | (row.has_pending_intents ? kPendingFlag : 0) |
                         (row.has_spilled_state ? kSpilledFlag : 0));
    const auto manifest = std::find(manifests.begin(), manifests.end(), row.manifest);
    append_cbor_head(out, CborMajor::natural, static_cast<std::uint64_t>(manifest - manifests.begin()));
    append_cbor_bytes(out, row.bytes);
  }
  return out;
}

Result<std::vector<CellRow>> decode_page(const std::string& workflow, const CellRange& range, std::string_view bytes) {
  IndexItems in(bytes);
  in.array();
  const bool is_of_workflow = in.text() == workflow;
  std::vector<std::string> manifests;
  for (std::uint64_t size = in.array(); size > 0 && !in.has_error(); --size) manifests.push_back(in.text());
  std::vector<CellRow> rows;
  for (std::uint64_t size = in.array(); size > 0 && !in.has_error(); --size) {
    in.array();
    CellRow row;
    row.id = {workflow, in.bytes()};
    const std::uint64_t flags = in.number(), manifest = in.number();
    row.status = static_cast<InstanceStatus>(flags & 3U);
    row.has_pending_intents = (flags & kPendingFlag) != 0, row.has_spilled_state = (flags & kSpilledFlag) != 0;
    row.bytes = in.bytes();
    if (manifest >= manifests.size() || (!rows.empty() && !(rows.back().id < row.id)))
      return blob_error(range, "is not a page of cells");
    row.manifest = manifests[manifest];
    rows.push_back(std::move(row));
  }
  if (!in.is_at_end() || !is_of_workflow || rows.empty() || rows.size() != range.cells ||
      rows.back().id.key != range.last_key)
    return blob_error(range, "is not the page of its cells");
  return rows;
}

std::string encode_node(const std::string& workflow, const std::vector<CellRange>& pages) {
  std::string out;
  append_cbor_head(out, CborMajor::array, 2);
  append_cbor_text(out, workflow);
  append_cbor_head(out, CborMajor::array, pages.size());
  for (const CellRange& page : pages) append_range(out, page);
  return out;
}
Result<CellNode> decode_node(const std::string& workflow, const CellRange& range, std::string_view bytes) {
  IndexItems in(bytes);
  in.array();
  const bool is_of_workflow = in.text() == workflow;
  CellNode node{read_ranges(in)};
  if (!in.is_at_end() || !is_of_workflow || node.pages.empty() || !are_ordered(node.pages) ||
      node.pages.back().last_key != range.last_key)
    return blob_error(range, "is not a node of cells");
  return node;
}

// Returns the approximate size of a node in memory.
std::size_t estimate_memory(const CellNode& node) {
  std::size_t bytes = 200;
  for (const CellRange& page : node.pages) bytes += sizeof(CellRange) + 80 + page.last_key.size();
  return bytes;
}

// Returns the range that contains the key or, if there is none, end().
std::vector<CellRange>::const_iterator find_range(const std::vector<CellRange>& ranges, std::string_view key) {
  return std::lower_bound(ranges.begin(), ranges.end(), key,
                          [](const CellRange& range, std::string_view wanted) { return range.last_key < wanted; });
}

// Builds the nodes and pages of one workflow from its cells in ascending order. Unchanged nodes and pages are passed
// through where a node or page of the new index begins at the same cell.
class WorkflowCellsBuilder {
 public:
  WorkflowCellsBuilder(const std::string& salt, const std::string& workflow, std::vector<WorkflowBlob>& blobs)
      : salt_(salt), workflow_(workflow), blobs_(blobs) {}

  bool is_at_page_begin() const { return rows_.empty(); }
  bool is_at_node_begin() const { return rows_.empty() && pages_.empty(); }
  void add_node(const CellRange& node) { nodes_.push_back(node); }  // REQUIRES: is_at_node_begin()
  void add_page(CellRange page) {                                   // REQUIRES: is_at_page_begin()
    pages_.push_back(std::move(page));
    if ((hash_key(salt_, pages_.back().last_key) & kNodeMask) == 0 || pages_.size() >= kMaxNodePages) end_node();
  }
  void add_row(CellRow row) {
    row_bytes_ += row.bytes.size() + row.id.key.size();
    rows_.push_back(std::move(row));
    const bool ends = (hash_key(salt_, rows_.back().id.key) & kPageMask) == 0;
    if (ends || rows_.size() >= kMaxPageCells || row_bytes_ >= kMaxPageBytes) end_page();
  }
  std::vector<CellRange> finish() {
    end_page();
    end_node();
    return std::move(nodes_);
  }

 private:
  void end_page() {
    if (rows_.empty()) return;
    CellRange range;
    range.last_key = rows_.back().id.key;
    range.cells = rows_.size();
    for (const CellRow& row : rows_) {
      ++range.counts[static_cast<std::size_t>(row.status)];
      range.pending += row.has_pending_intents ? 1 : 0;
      range.spilled += row.has_spilled_state ? 1 : 0;
    }
    WorkflowBlob blob = make_cell_blob(encode_page(workflow_, rows_));
    range.hash = blob.hash, range.bytes = blob.bytes.size();
    blobs_.push_back(std::move(blob));
    rows_.clear();
    row_bytes_ = 0;
    add_page(std::move(range));
  }
  void end_node() {
    if (pages_.empty()) return;
    CellRange range;
    for (const CellRange& page : pages_) add(range, page);
    range.last_key = pages_.back().last_key;
    WorkflowBlob blob = make_cell_blob(encode_node(workflow_, pages_));
    range.hash = blob.hash, range.bytes += blob.bytes.size();
    blobs_.push_back(std::move(blob));
    pages_.clear();
    nodes_.push_back(std::move(range));
  }

  const std::string &salt_, &workflow_;
  std::vector<WorkflowBlob>& blobs_;
  std::vector<CellRange> nodes_, pages_;
  std::vector<CellRow> rows_;
  std::size_t row_bytes_ = 0;
};

// Merges changes into the cells of one workflow.
class WorkflowCellsUpdate {
 public:
  using Change = CellChanges::iterator;
  WorkflowCellsUpdate(CellReader& reader, const std::string& workflow, WorkflowCells base, Change begin, Change end,
                      CellIndex::Update& out)
      : reader_(reader), workflow_(workflow), cells_(std::move(base)), next_(begin), end_(end), out_(out) {}

  Result<WorkflowCells> run() {
    MJ_CHECK(reader_.load_nodes(workflow_, find_changed(cells_.nodes, true)));
    const std::vector<CellRange> nodes = std::move(cells_.nodes);
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      const bool is_last = i + 1 == nodes.size();
      if (builder_.is_at_node_begin() && !has_change(nodes[i], is_last)) {
        builder_.add_node(nodes[i]);
        continue;
      }
      MJ_TRY(node, reader_.node(workflow_, nodes[i]));
      out_.replaced.insert(nodes[i].hash);
      MJ_CHECK(merge_node(*node, is_last));
    }
    while (next_ != end_) add_changed_row();
    cells_.nodes = builder_.finish();
    std::erase_if(cells_.counts, [](const auto& row) { return row.second == CellCounts{}; });
    return std::move(cells_);
  }

 private:
  // The last range also gets the cells after its last key, since no rule may have ended it.
  bool has_change(const CellRange& range, bool is_last) const {
    return next_ != end_ && (is_last || next_->first.key <= range.last_key);
  }
  // Returns the ranges with changed cells. is_end: the last range is the last one of the workflow.
  std::vector<const CellRange*> find_changed(const std::vector<CellRange>& ranges, bool is_end) const {
    std::vector<const CellRange*> changed;
    auto change = next_;
    for (std::size_t i = 0; i < ranges.size() && change != end_; ++i) {
      const bool is_last = is_end && i + 1 == ranges.size();
      if (!is_last && change->first.key > ranges[i].last_key) continue;
      changed.push_back(&ranges[i]);
      while (change != end_ && change->first.key <= ranges[i].last_key) ++change;
    }
    return changed;
  }
  Result<void> merge_node(const CellNode& node, bool is_last_node) {
    // Reads the changed pages together. A page that begins at another cell than before is read alone.
    const std::vector<const CellRange*> changed = find_changed(node.pages, is_last_node);
    MJ_TRY(rows, reader_.pages(workflow_, changed));
    for (std::size_t i = 0, read = 0; i < node.pages.size(); ++i) {
      const CellRange& page = node.pages[i];
      const bool is_read = read < changed.size() && changed[read] == &page;
      if (!is_read && builder_.is_at_page_begin()) {
        builder_.add_page(page);
        continue;
      }
      if (is_read) {
        merge_page(page, std::move(rows[read++]), is_last_node && i + 1 == node.pages.size());
      } else {
        MJ_TRY(alone, reader_.pages(workflow_, {&page}));
        merge_page(page, std::move(alone.front()), false);
      }
    }
    return {};
  }
  void merge_page(const CellRange& page, std::vector<CellRow> rows, bool is_last) {
    out_.replaced.insert(page.hash);
    for (CellRow& row : rows) {
      while (next_ != end_ && next_->first < row.id) add_changed_row();
      count(row, -1);
      if (next_ != end_ && next_->first == row.id) {
        add_changed_row();
      } else {
        count(row, 1);
        builder_.add_row(std::move(row));
      }
    }
    while (next_ != end_ && (is_last || next_->first.key <= page.last_key)) add_changed_row();
  }
  void add_changed_row() {
    auto& row = next_++->second;
    if (!row) return;
    count(*row, 1);
    builder_.add_row(std::move(*row));
  }
  void count(const CellRow& row, int sign) {
    std::uint64_t& value = cells_.counts[row.manifest][static_cast<std::size_t>(row.status)];
    value = sign < 0 ? value - std::min<std::uint64_t>(value, 1) : value + 1;
  }

  CellReader& reader_;
  const std::string& workflow_;
  WorkflowCells cells_;
  Change next_, end_;
  CellIndex::Update& out_;
  WorkflowCellsBuilder builder_{out_.index.salt(), workflow_, out_.blobs};
};

}  // namespace

Result<CellRow> make_cell_row(const InstanceState& instance) {
  CellRow row{instance.id,
              instance.manifest,
              instance.status(),
              !instance.pending_intents.empty(),
              instance.state && instance.state->is_spilled(),
              {}};
  MJ_TRY(bytes, encode_anonymous(instance));
  row.bytes = std::move(bytes);
  return row;
}

Result<InstanceState> decode_instance(const CellRow& row) {
  auto instance = decode_anonymous_instance(row.bytes, row.id, row.manifest);
  if (!instance) return fail(std::move(instance).error(), display_name(row.id));
  return instance;
}

// ---- reading ----

Result<std::vector<std::string>> CellReader::read_checked(const std::vector<const CellRange*>& ranges) {
  std::vector<std::string> blobs;
  for (std::size_t begin = 0; begin < ranges.size();) {
    std::vector<std::string> hashes;
    for (std::size_t bytes = 0;
         begin < ranges.size() && hashes.size() < kMaxReadBlobs && (hashes.empty() || bytes < kMaxReadBytes); ++begin) {
      hashes.push_back(ranges[begin]->hash);
      bytes += std::min<std::uint64_t>(ranges[begin]->bytes, kMaxReadBytes);
    }
    MJ_TRY(batch, read_(hashes));
    for (std::size_t i = 0; i < hashes.size(); ++i) {
      if (sha256_hex(batch.at(i)) != hashes[i])
        return fail(Code::invalid, "the blob " + hashes[i] + " does not match the hash in its name");
      blobs.push_back(std::move(batch[i]));
    }
  }
  return blobs;
}

Result<void> CellReader::load_nodes(const std::string& workflow, const std::vector<const CellRange*>& nodes) {
  if (cached_bytes_ > max_cached_bytes_) nodes_.clear(), cached_bytes_ = 0;
  std::vector<const CellRange*> missing;
  for (const CellRange* node : nodes)
    if (!nodes_.contains(node->hash)) missing.push_back(node);
  // The size of a range includes its pages, so the nodes are read in batches of a fixed number.
  for (std::size_t begin = 0; begin < missing.size(); begin += kMaxReadBlobs) {
    const auto first = missing.begin() + static_cast<std::ptrdiff_t>(begin);
    std::vector<CellRange> batch;
    for (auto node = first; node != missing.end() && batch.size() < kMaxReadBlobs; ++node)
      batch.push_back({(*node)->last_key, (*node)->hash});
    std::vector<const CellRange*> pointers;
    for (const CellRange& node : batch) pointers.push_back(&node);
    MJ_TRY(blobs, read_checked(pointers));
    for (std::size_t i = 0; i < batch.size(); ++i) {
      MJ_TRY(decoded, decode_node(workflow, batch[i], blobs[i]));
      const std::size_t bytes = estimate_memory(decoded);
      if (nodes_.emplace(batch[i].hash, std::make_shared<const CellNode>(std::move(decoded))).second)
        cached_bytes_ += bytes;
    }
  }
  return {};
}

Result<std::shared_ptr<const CellNode>> CellReader::node(const std::string& workflow, const CellRange& range) {
  if (const auto found = nodes_.find(range.hash); found != nodes_.end()) return found->second;
  MJ_CHECK(load_nodes(workflow, {&range}));
  return nodes_.at(range.hash);
}

void CellReader::drop_replaced_nodes(const CellIndex& index) {
  std::size_t count = 0;
  for (const auto& [workflow, cells] : index.workflows()) count += cells.nodes.size();
  if (nodes_.size() <= count) return;
  std::set<std::string_view> hashes;
  for (const auto& [workflow, cells] : index.workflows())
    for (const CellRange& node : cells.nodes) hashes.insert(node.hash);
  std::erase_if(nodes_, [&](const auto& row) {
    if (hashes.contains(row.first)) return false;
    cached_bytes_ -= estimate_memory(*row.second);
    return true;
  });
}

Result<std::vector<std::vector<CellRow>>> CellReader::pages(const std::string& workflow,
                                                            const std::vector<const CellRange*>& pages) {
  MJ_TRY(blobs, read_checked(pages));
  std::vector<std::vector<CellRow>> out;
  for (std::size_t i = 0; i < pages.size(); ++i) {
    MJ_TRY(rows, decode_page(workflow, *pages[i], blobs[i]));
    out.push_back(std::move(rows));
  }
  return out;
}

// ---- the index ----

std::string CellIndex::encode() const {
  std::string out;
  append_cbor_head(out, CborMajor::array, workflows_.size() + (salt_.empty() ? 0 : 1));
  if (!salt_.empty()) append_cbor_bytes(out, salt_);
  for (const auto& [workflow, cells] : workflows_) {
    append_cbor_head(out, CborMajor::array, 3);
    append_cbor_text(out, workflow);
    append_cbor_head(out, CborMajor::array, cells.counts.size());
    for (const auto& [manifest, counts] : cells.counts) {
      append_cbor_head(out, CborMajor::array, 5);
      append_cbor_text(out, manifest);
      append_counts(out, counts);
    }
    append_cbor_head(out, CborMajor::array, cells.nodes.size());
    for (const CellRange& node : cells.nodes) append_range(out, node);
  }
  return out;
}

Result<CellIndex> CellIndex::decode(std::string_view bytes) {
  IndexItems in(bytes);
  CellIndex out;
  std::uint64_t size = in.array();
  if (auto salt = in.optional_bytes(); salt && size > 0) out.salt_ = std::move(*salt), --size;
  bool is_ordered = out.salt_.empty() || out.salt_.size() == kCellSaltBytes;
  for (; size > 0 && !in.has_error(); --size) {
    in.array();
    WorkflowCells& cells = out.workflows_[in.text()];
    for (std::uint64_t count = in.array(); count > 0 && !in.has_error(); --count) {
      in.array();
      CellCounts& counts = cells.counts[in.text()];
      for (std::uint64_t& number : counts) number = in.number();
    }
    cells.nodes = read_ranges(in);
    is_ordered = is_ordered && are_ordered(cells.nodes);
  }
  if (!in.is_at_end() || !is_ordered || out.encode() != bytes)
    return fail(Code::invalid, "it is not an index of cells");
  return out;
}

std::uint64_t CellIndex::bytes() const {
  std::uint64_t bytes = 0;
  for (const auto& [workflow, cells] : workflows_)
    for (const CellRange& node : cells.nodes) bytes += node.bytes;
  return bytes;
}

Result<std::vector<CellRow>> CellIndex::find(CellReader& reader, const std::set<InstanceId>& ids) const {
  reader.drop_replaced_nodes(*this);
  std::vector<CellRow> out;
  for (const auto& [workflow, cells] : workflows_) {
    std::vector<const CellRange*> nodes;
    std::vector<std::pair<const InstanceId*, const CellRange*>> wanted;  // with the node of the cell
    for (auto id = ids.lower_bound({workflow, ""}); id != ids.end() && id->workflow == workflow; ++id) {
      const auto node = find_range(cells.nodes, id->key);
      if (node == cells.nodes.end()) continue;
      if (nodes.empty() || nodes.back() != &*node) nodes.push_back(&*node);
      wanted.emplace_back(&*id, &*node);
    }
    MJ_CHECK(reader.load_nodes(workflow, nodes));
    std::vector<std::shared_ptr<const CellNode>> used;  // keeps the ranges alive
    std::vector<const CellRange*> pages;
    for (const auto& [id, range] : wanted) {
      MJ_TRY(node, reader.node(workflow, *range));
      const auto page = find_range(node->pages, id->key);
      if (pages.empty() || pages.back() != &*page) pages.push_back(&*page);
      used.push_back(std::move(node));
    }
    // A few pages at a time, since a page has many cells that are not searched.
    for (std::size_t begin = 0; begin < pages.size(); begin += kMaxPagesBatch) {
      const auto first = pages.begin() + static_cast<std::ptrdiff_t>(begin);
      const auto last = first + static_cast<std::ptrdiff_t>(std::min(kMaxPagesBatch, pages.size() - begin));
      MJ_TRY(rows, reader.pages(workflow, {first, last}));
      for (auto& page : rows)
        for (CellRow& row : page)
          if (ids.contains(row.id)) out.push_back(std::move(row));
    }
  }
  return out;
}

Result<void> CellIndex::visit(CellReader& reader, const std::optional<InstanceId>& after,
                              const std::function<bool(const std::string& workflow, const CellRange&)>& wants,
                              const std::function<Result<bool>(CellRow)>& visit) const {
  for (const auto& row_of_workflow : workflows_) {
    const std::string& workflow = row_of_workflow.first;
    if (after && workflow < after->workflow) continue;
    const bool has_begin = after && workflow == after->workflow;
    const auto selects = [&](const CellRange& range) {
      return (!has_begin || range.last_key > after->key) && wants(workflow, range);
    };
    for (const CellRange& range : row_of_workflow.second.nodes) {
      if (!selects(range)) continue;
      MJ_TRY(node, reader.node(workflow, range));
      for (auto page = node->pages.begin(); page != node->pages.end();) {
        std::vector<const CellRange*> batch;
        for (; page != node->pages.end() && batch.size() < kMaxPagesBatch; ++page)
          if (selects(*page)) batch.push_back(&*page);
        MJ_TRY(rows, reader.pages(workflow, batch));
        for (auto& list : rows)
          for (CellRow& row : list) {
            if (has_begin && row.id.key <= after->key) continue;
            MJ_TRY(has_more, visit(std::move(row)));
            if (!has_more) return {};
          }
      }
    }
  }
  return {};
}

Result<std::set<std::string>> CellIndex::list_blobs(CellReader& reader) const {
  std::set<std::string> hashes;
  constexpr std::size_t kMaxNodesBatch = 64;
  for (const auto& [workflow, cells] : workflows_) {
    for (std::size_t i = 0; i < cells.nodes.size(); ++i) {
      const CellRange& range = cells.nodes[i];
      if (i % kMaxNodesBatch == 0) {
        std::vector<const CellRange*> batch;
        for (std::size_t j = i; j < std::min(i + kMaxNodesBatch, cells.nodes.size()); ++j)
          batch.push_back(&cells.nodes[j]);
        MJ_CHECK(reader.load_nodes(workflow, batch));
      }
      hashes.insert(range.hash);
      MJ_TRY(node, reader.node(workflow, range));
      for (const CellRange& page : node->pages) hashes.insert(page.hash);
    }
  }
  return hashes;
}

Result<CellIndex::Update> CellIndex::update(CellReader& reader, CellChanges changes) const {
  reader.drop_replaced_nodes(*this);
  Update out;
  out.index = *this;
  for (auto begin = changes.begin(); begin != changes.end();) {
    const std::string workflow = begin->first.workflow;
    const auto end =
        std::find_if(begin, changes.end(), [&](const auto& row) { return row.first.workflow != workflow; });
    WorkflowCells& cells = out.index.workflows_[workflow];
    MJ_TRY(updated, WorkflowCellsUpdate(reader, workflow, std::move(cells), begin, end, out).run());
    cells = std::move(updated);
    if (cells.nodes.empty()) out.index.workflows_.erase(workflow);
    begin = end;
  }
  for (const WorkflowBlob& blob : out.blobs) out.replaced.erase(blob.hash);
  return out;
}

}  // namespace mycojobs
