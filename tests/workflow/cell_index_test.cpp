// The index of cells: updates in any order give the index that is built at once, and change few pages.
#include "workflows/cell_index.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "base/sha256.h"
#include "workflow/model.h"
#include "workflows/siphash.h"

namespace mycojobs::workflow_tests {
namespace {

class WorkflowCellIndex : public testing::Test {
 protected:
  static InstanceState make_cell(const std::string& workflow, const std::string& key, int version) {
    InstanceState cell;
    cell.id = {workflow, key};
    cell.manifest = std::string(64, version % 3 == 0 ? 'a' : 'b');
    const std::string bytes = cbor("state " + std::to_string(version));
    cell.state = StateRef{sha256_hex(bytes), bytes.size(), bytes};
    cell.last_height = static_cast<std::uint64_t>(version);
    cell.failed = version % 7 == 0;
    return cell;
  }
  BlobsReader reader() {
    return [this](const std::vector<std::string>& hashes) -> Result<std::vector<std::string>> {
      std::vector<std::string> out;
      for (const std::string& hash : hashes) {
        if (!blobs_.contains(hash)) return fail(Code::not_found, hash + " is not there");
        out.push_back(blobs_.at(hash));
      }
      return out;
    };
  }
  // Applies changes to the index and the cells, and deletes replaced blobs. Returns the number of new blobs.
  std::size_t change(const std::map<InstanceId, std::optional<InstanceState>>& changed) {
    CellChanges changes;
    for (const auto& [id, cell] : changed) {
      changes[id] = cell ? std::optional(make_cell_row(*cell).value()) : std::nullopt;
      cells_.erase(id);
      if (cell) cells_[id] = *cell;
    }
    CellReader cells(reader());
    CellIndex::Update update = index_.update(cells, std::move(changes)).value();
    for (const WorkflowBlob& blob : update.blobs) blobs_[blob.hash] = blob.bytes;
    for (const std::string& hash : update.replaced) EXPECT_EQ(blobs_.erase(hash), 1U);
    index_ = CellIndex::decode(update.index.encode()).value();
    return update.blobs.size();
  }
  std::string build_at_once() {
    CellChanges changes;
    for (const auto& [id, cell] : cells_) changes[id] = make_cell_row(cell).value();
    CellReader cells;
    return CellIndex(index_.salt()).update(cells, std::move(changes))->index.encode();
  }
  std::vector<InstanceId> list(const std::optional<InstanceId>& after = std::nullopt) {
    CellReader cells(reader());
    std::vector<InstanceId> ids;
    const auto all = [](const std::string&, const CellRange&) { return true; };
    EXPECT_TRUE(index_.visit(cells, after, all, [&](const CellRow& row) -> Result<bool> {
      ids.push_back(row.id);
      EXPECT_EQ(decode_instance(row).value(), cells_.at(row.id));
      return true;
    }));
    return ids;
  }

  std::map<std::string, std::string> blobs_;
  std::map<InstanceId, InstanceState> cells_;
  CellIndex index_{std::string(kCellSaltBytes, 's')};
};

// Returns the hash that ends pages in an index without a salt.
std::uint64_t hash_without_salt(std::string_view key) {
  std::uint64_t hash = 0xcbf29ce484222325U;
  for (const char c : key) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3U;
  hash = (hash ^ (hash >> 33U)) * 0xff51afd7ed558ccdU;
  return hash ^ (hash >> 33U);
}

TEST(WorkflowSipHash, HasTheValuesOfItsAuthors) {
  std::string bytes;
  for (char c = 0; c < 16; ++c) bytes += c;
  EXPECT_EQ(siphash(bytes, ""), 0x726fdb47dd0e0e31U);
  EXPECT_EQ(siphash(bytes, std::string_view(bytes).substr(0, 8)), 0x93f5f5799a932462U);
  EXPECT_EQ(siphash(bytes, std::string_view(bytes).substr(0, 15)), 0xa129ca6149be45e5U);
}

TEST_F(WorkflowCellIndex, ChosenKeysDoNotChooseTheEndsOfPages) {
  std::map<InstanceId, std::optional<InstanceState>> cells;
  for (int i = 0; cells.size() < 2000; ++i) {
    // Each of these keys would end a page and a node.
    if (const std::string key = cbor(i); (hash_without_salt(key) & 1023U) == 0)
      cells[{"m/w@1", key}] = make_cell("m/w@1", key, 1);
  }
  change(cells);
  EXPECT_LT(blobs_.size(), 250U);
  EXPECT_LT(index_.workflows().at("m/w@1").nodes.size(), 20U);
  blobs_.clear();
  index_ = CellIndex();
  change(cells);
  EXPECT_EQ(blobs_.size(), 4000U) << "without a salt";
}

class WorkflowCellIndexWithSalt : public WorkflowCellIndex, public testing::WithParamInterface<const char*> {};
INSTANTIATE_TEST_SUITE_P(Of, WorkflowCellIndexWithSalt, testing::Values("", "0123456789abcdef"));

TEST_P(WorkflowCellIndexWithSalt, UpdatesInAnyOrderGiveTheSameIndex) {
  index_ = CellIndex(GetParam());
  std::mt19937 random(7);
  const auto number = [&](int bound) { return static_cast<int>(random() % static_cast<unsigned>(bound)); };
  for (int round = 0; round < 60; ++round) {
    std::map<InstanceId, std::optional<InstanceState>> changed;
    const int shift = number(4) == 0 ? 3000 : 0;  // also ranges without cells
    for (int i = number(round % 10 == 0 ? 1500 : 40); i >= 0; --i) {
      const std::string workflow = number(5) == 0 ? "m/other@1" : "m/w@1";
      const std::string key = cbor(number(2500) + shift);
      const bool is_deleted = number(round % 4 == 3 ? 2 : 5) == 0;
      changed[{workflow, key}] = is_deleted ? std::nullopt : std::optional(make_cell(workflow, key, number(1'000'000)));
    }
    change(changed);
    ASSERT_EQ(index_.encode(), build_at_once()) << round;
    CellReader cells(reader());
    EXPECT_EQ(index_.list_blobs(cells)->size(), blobs_.size()) << "replaced blobs are named";
  }
  std::vector<InstanceId> all;
  CellCounts counts{};
  for (const auto& [id, cell] : cells_) {
    all.push_back(id);
    ++counts[static_cast<std::size_t>(cell.status())];
  }
  EXPECT_EQ(list(), all);
  CellCounts sum{};
  for (const auto& [workflow, cells] : index_.workflows())
    for (const auto& [manifest, each] : cells.counts)
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += each[i];
  EXPECT_EQ(sum, counts);
  for (const std::size_t begin : {std::size_t{0}, all.size() / 2, all.size() - 1})
    EXPECT_EQ(list(all[begin]),
              std::vector<InstanceId>(all.begin() + static_cast<std::ptrdiff_t>(begin) + 1, all.end()));
  std::map<InstanceId, std::optional<InstanceState>> removed;
  for (const InstanceId& id : all) removed[id] = std::nullopt;
  change(removed);
  EXPECT_TRUE(blobs_.empty());
  EXPECT_EQ(index_.encode(), CellIndex(index_.salt()).encode());
}

TEST_F(WorkflowCellIndex, OneChangeWritesOnePageAndOneNode) {
  std::map<InstanceId, std::optional<InstanceState>> cells;
  for (int i = 0; i < 20'000; ++i) cells[{"m/w@1", cbor(i)}] = make_cell("m/w@1", cbor(i), 1);
  EXPECT_GT(change(cells), 500U);
  EXPECT_EQ(change({{{"m/w@1", cbor(777)}, make_cell("m/w@1", cbor(777), 2)}}), 2U);
  EXPECT_LE(change({{{"m/w@1", cbor(777)}, std::nullopt}}), 5U);
  CellReader reader_of_cells(reader());
  const auto found = index_.find(reader_of_cells, {{"m/w@1", cbor(776)}, {"m/w@1", cbor(777)}, {"m/w@2", cbor(1)}});
  ASSERT_EQ(found->size(), 1U);
  EXPECT_EQ(found->front().id.key, cbor(776));
}

TEST_F(WorkflowCellIndex, ReaderDropsReplacedNodes) {
  std::map<InstanceId, std::optional<InstanceState>> cells;
  for (int i = 0; i < 2000; ++i) cells[{"m/w@1", cbor(i)}] = make_cell("m/w@1", cbor(i), 1);
  change(cells);
  CellReader kept(reader());
  for (int i = 0; i < 40; ++i) {
    const InstanceId id{"m/w@1", cbor(i)};
    change({{id, make_cell("m/w@1", cbor(i), i + 2)}});
    EXPECT_EQ(index_.find(kept, {id})->size(), 1U);
  }
  EXPECT_LE(kept.cached_nodes(), index_.workflows().at("m/w@1").nodes.size() + 1);
}

TEST_F(WorkflowCellIndex, PagesAreBounded) {
  std::map<InstanceId, std::optional<InstanceState>> cells;
  for (int i = 0; i < 200; ++i) {
    InstanceState cell = make_cell("m/w@1", cbor(i), 1);
    cell.state->bytes = std::string(40'000, 'x');
    cells[cell.id] = std::move(cell);
  }
  change(cells);
  for (const auto& [hash, bytes] : blobs_) EXPECT_LE(bytes.size(), kMaxPageBytes + 41'000);
  EXPECT_EQ(index_.encode(), build_at_once());
}

}  // namespace
}  // namespace mycojobs::workflow_tests
