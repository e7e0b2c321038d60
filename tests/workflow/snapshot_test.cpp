// Snapshots: the same world is restored, and only from its own complete set of pages. Snapshots of version 2, which
// earlier versions of the program wrote, are read.
#include "workflows/workflow_snapshot.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/sha256.h"
#include "workflow/model.h"

namespace mycojobs::workflow_tests {
namespace {

using testing::HasSubstr;

// A snapshot of version 2 with pages of `cells_per_page` cells.
DeploymentSnapshot build_paged(const DeploymentState& deployment, std::size_t cells_per_page) {
  DeploymentSnapshot out;
  json pages = json::array();
  for (auto cell = deployment.instances.begin(); cell != deployment.instances.end();) {
    DeploymentState page;
    page.id = deployment.id;
    for (std::size_t i = 0; i < cells_per_page && cell != deployment.instances.end(); ++i, ++cell)
      page.instances.insert(*cell);
    const std::string bytes = encode(page).value();
    out.pages.push_back({sha256_hex(bytes), bytes});
    pages.push_back(out.pages.back().hash);
  }
  DeploymentState head = deployment;
  head.instances.clear();
  const std::string bytes = encode(head).value();
  const std::string root = cbor(json{
      {"version", 2}, {"head", json::binary(std::vector<std::uint8_t>(bytes.begin(), bytes.end()))}, {"pages", pages}});
  out.root = {sha256_hex(root), root};
  return out;
}

class WorkflowSnapshot : public testing::Test {
 protected:
  void SetUp() override {
    deployment_.id = "1/m@1";
    deployment_.manifest = std::string(64, 'a');
    deployment_.height = 70, deployment_.next_ticket = 9, deployment_.refused_receipts = 2;
    for (int i = 0; i < 50; ++i) {
      InstanceState cell;
      cell.id = {"m/w@1", cbor(i)};
      cell.manifest = deployment_.manifest;
      const std::string bytes = cbor(std::string(100, static_cast<char>('a' + i % 26)));
      cell.state = StateRef{sha256_hex(bytes), bytes.size(), bytes};
      cell.completed_intents.push_back("intent " + std::to_string(i));
      deployment_.completed_intents[cell.completed_intents.back()] = cell.id;
      deployment_.instances.emplace(cell.id, std::move(cell));
    }
    taken_ = build_paged(deployment_, 5);
    put(taken_.root);
    for (const WorkflowBlob& page : taken_.pages) put(page);
  }
  void put(const WorkflowBlob& blob) { blobs_[blob.hash] = blob.bytes; }
  Result<ParsedSnapshot> read(const std::string& root) {
    return read_snapshot(root, [this](const std::string& hash) -> Result<std::string> {
      const auto found = blobs_.find(hash);
      if (found == blobs_.end()) return fail(Code::not_found, "blob " + hash + " is not there");
      return found->second;
    });
  }
  // Returns the error after a change of the root's list of pages.
  std::string get_rejection(const std::function<void(json&)>& change) {
    json root = uncbor(taken_.root.bytes);
    change(root);
    const std::string bytes = cbor(root), hash = sha256_hex(bytes);
    blobs_[hash] = bytes;
    const auto again = read(hash);
    return again ? "" : again.error().message;
  }
  DeploymentState deployment_;
  DeploymentSnapshot taken_;
  std::map<std::string, std::string> blobs_;
};

TEST_F(WorkflowSnapshot, RoundTripsThroughItsPages) {
  const auto old = read(taken_.root.hash);
  ASSERT_TRUE(old) << old.error().message;
  EXPECT_EQ(old->deployment, deployment_) << "of version 2";
  EXPECT_EQ(old->pages.size(), taken_.pages.size());
  const DeploymentSnapshot now = build_snapshot(deployment_).value();
  put(now.root);
  for (const WorkflowBlob& page : now.pages) put(page);
  const auto again = read(now.root.hash);
  ASSERT_TRUE(again) << again.error().message;
  EXPECT_EQ(again->deployment, deployment_);
  EXPECT_EQ(again->pages.size(), now.pages.size());
  EXPECT_EQ(build_snapshot(again->deployment)->root, now.root) << "the same deployment has the same bytes";
  DeploymentState empty;
  empty.id = deployment_.id, empty.height = 3;
  put(build_snapshot(empty)->root);
  EXPECT_EQ(read(build_snapshot(empty)->root.hash)->deployment, empty);
}

TEST_F(WorkflowSnapshot, MissingOrForeignNodeIsNamed) {
  const DeploymentSnapshot now = build_snapshot(deployment_).value();
  put(now.root);
  for (const WorkflowBlob& page : now.pages) {
    for (const WorkflowBlob& other : now.pages) put(other);
    blobs_[page.hash] += 'x';
    EXPECT_THAT(read(now.root.hash).error().message, HasSubstr(page.hash + " does not match the hash in its name"));
    blobs_.erase(page.hash);
    EXPECT_THAT(read(now.root.hash).error().message, HasSubstr(page.hash + " is not there"));
  }
  for (const std::string& cells : {std::string(), now.root.bytes, std::string(100, '\x9b')}) {
    json root = uncbor(now.root.bytes);
    root["cells"] = json::binary(std::vector<std::uint8_t>(cells.begin(), cells.end()));
    put({sha256_hex(cbor(root)), cbor(root)});
    EXPECT_EQ(read(sha256_hex(cbor(root))).error().code, Code::invalid);
  }
}

TEST_F(WorkflowSnapshot, MissingOrForeignPageIsNamed) {
  const WorkflowBlob& page = taken_.pages[3];
  blobs_[page.hash] += 'x';
  EXPECT_THAT(read(taken_.root.hash).error().message, HasSubstr(page.hash + " does not match the hash in its name"));
  blobs_.erase(page.hash);
  EXPECT_THAT(read(taken_.root.hash).error().message, HasSubstr(page.hash + " is not there"));
  blobs_[taken_.root.hash] = "x";
  EXPECT_EQ(read(taken_.root.hash).error().code, Code::invalid);
}

TEST_F(WorkflowSnapshot, PagesAreUniqueAndInOrder) {
  EXPECT_EQ(get_rejection([](json&) {}), "");
  EXPECT_THAT(get_rejection([](json& root) { std::swap(root["pages"][0], root["pages"][1]); }),
              HasSubstr("does not follow"));
  EXPECT_THAT(get_rejection([](json& root) { root["pages"].push_back(root["pages"][0]); }),
              HasSubstr("does not follow"));
  EXPECT_NE(get_rejection([&](json& root) { root["pages"][0] = taken_.root.hash; }), "");
  EXPECT_THAT(get_rejection([](json& root) { root["pages"][0] = 7; }), HasSubstr("pages"));
  EXPECT_THAT(get_rejection([](json& root) { root["more"] = 7; }), HasSubstr("more"));
  EXPECT_THAT(get_rejection([](json& root) { root["version"] = 1; }), HasSubstr("version 1"));
  DeploymentState other = deployment_;
  other.id = "2/m@1";
  const DeploymentSnapshot theirs = build_paged(other, 5);
  for (const WorkflowBlob& page : theirs.pages) put(page);
  EXPECT_THAT(get_rejection([&](json& root) { root["pages"][0] = theirs.pages[0].hash; }),
              HasSubstr("is not a page of it"));
}

// The lookup of a receipt's instance would find only one of the instances. Found by ./dev fuzz workflow_snapshot.
TEST_F(WorkflowSnapshot, IntentBelongsToOneInstance) {
  std::next(deployment_.instances.begin())->second.completed_intents =
      deployment_.instances.begin()->second.completed_intents;
  // In separate pages, in one page, and in an index.
  for (const DeploymentSnapshot& twice :
       {build_paged(deployment_, 1), build_paged(deployment_, 5), build_snapshot(deployment_).value()}) {
    put(twice.root);
    for (const WorkflowBlob& page : twice.pages) put(page);
    EXPECT_THAT(read(twice.root.hash).error().message, HasSubstr("intent"));
  }
}

TEST_F(WorkflowSnapshot, NeedsAnIdleDeployment) {
  deployment_.ready_instances[1] = deployment_.instances.begin()->first;
  EXPECT_EQ(build_snapshot(deployment_).error().code, Code::conflict);
}

}  // namespace
}  // namespace mycojobs::workflow_tests
