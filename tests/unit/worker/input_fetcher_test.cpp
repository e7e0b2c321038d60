// Fetching the inputs of jobs: files that several jobs need, failures, and jobs that do not wait any longer.
#include "worker/intake/input_fetcher.h"

#include <gmock/gmock.h>

namespace mycojobs::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class FakeSource final : public ArtifactSource {
 public:
  FetchNumber fetch(const RemoteArtifact& artifact, std::shared_ptr<FileTarget>, OnEnd on_end) override {
    fetches_[++last_number_] = {artifact, std::move(on_end)};
    return last_number_;
  }
  void cancel(FetchNumber number) override { fetches_.erase(number); }
  std::vector<std::string> list() const {
    std::vector<std::string> all;
    for (const auto& entry : fetches_) all.push_back(entry.second.first.content.sha256);
    return all;
  }
  OnEnd copy_first_end() const { return fetches_.begin()->second.second; }
  void end_first(FetchStatus status, const std::string& reason = "") {
    const auto on_end = fetches_.extract(fetches_.begin()).mapped().second;
    on_end({status, reason});
  }

 private:
  FetchNumber last_number_ = 0;
  std::map<FetchNumber, std::pair<RemoteArtifact, OnEnd>> fetches_;
};

class InputFetcherTest : public ::testing::Test {
 protected:
  FakeSource source_;
  InputFetcher fetcher_{source_, "/nowhere", {}};
  std::map<RunNumber, InputsEnd> ends_;

  static MissingInput make_file(const std::string& hash, Id holder = 20) {
    return {{1, holder, "job:12:7", {hash, 5}, "the artifact " + hash}, "store"};
  }
  void fetch(RunNumber run, std::vector<MissingInput> files) {
    fetcher_.fetch(run, std::move(files), [this, run](InputsEnd end) { ends_[run] = std::move(end); });
  }
};

TEST_F(InputFetcherTest, EndsAfterTheLastFile) {
  fetch(1, {make_file("a"), make_file("b")});
  source_.end_first(FetchStatus::received);
  EXPECT_THAT(ends_, IsEmpty());
  source_.end_first(FetchStatus::received);
  EXPECT_EQ(ends_.at(1).status, FetchStatus::received);
}

TEST_F(InputFetcherTest, FilesOfOneRunAreFetchedAFewAtATime) {
  std::vector<MissingInput> files;
  for (int i = 0; i < 20; ++i) files.push_back(make_file(std::to_string(i)));
  fetch(1, std::move(files));
  EXPECT_EQ(source_.list().size(), 4U);
  for (int i = 0; i < 20; ++i) source_.end_first(FetchStatus::received);
  EXPECT_EQ(ends_.at(1).status, FetchStatus::received);
}

TEST_F(InputFetcherTest, RunsShareTheFetchOfAFile) {
  fetch(1, {make_file("a")});
  fetch(2, {make_file("a"), make_file("b")});
  EXPECT_THAT(source_.list(), ElementsAre("a", "b"));
  source_.end_first(FetchStatus::received);
  EXPECT_EQ(ends_.at(1).status, FetchStatus::received);
  EXPECT_FALSE(ends_.contains(2));
  source_.end_first(FetchStatus::received);
  EXPECT_EQ(ends_.at(2).status, FetchStatus::received);
}

TEST_F(InputFetcherTest, FirstFailureEndsTheOtherFetches) {
  fetch(1, {make_file("a"), make_file("b", 21)});
  source_.end_first(FetchStatus::away, "runner 20 is not connected");
  EXPECT_EQ(ends_.at(1).status, FetchStatus::away);
  EXPECT_EQ(ends_.at(1).holder, 20U);
  EXPECT_THAT(ends_.at(1).reason, HasSubstr("the artifact a: runner 20 is not connected"));
  EXPECT_THAT(source_.list(), IsEmpty());
}

TEST_F(InputFetcherTest, CancelledRunDoesNotEndTheFetchOfAnother) {
  fetch(1, {make_file("a"), make_file("b")});
  fetch(2, {make_file("a")});
  fetcher_.cancel(1);
  EXPECT_THAT(source_.list(), ElementsAre("a"));
  source_.end_first(FetchStatus::received);
  EXPECT_FALSE(ends_.contains(1));
  EXPECT_EQ(ends_.at(2).status, FetchStatus::received);
}

TEST_F(InputFetcherTest, LateEndOfACancelledFetchIsNotThatOfTheNextFetch) {
  fetch(1, {make_file("a")});
  const auto late_end = source_.copy_first_end();
  fetcher_.cancel(1);
  fetch(2, {make_file("a")});
  late_end({FetchStatus::away, "late"});
  EXPECT_THAT(ends_, IsEmpty());
  source_.end_first(FetchStatus::received);
  EXPECT_EQ(ends_.at(2).status, FetchStatus::received);
}

TEST_F(InputFetcherTest, FileWithTwoNamesIsFetchedOnce) {
  fetch(1, {make_file("a"), make_file("a")});
  EXPECT_THAT(source_.list(), ElementsAre("a"));
  source_.end_first(FetchStatus::received);
  EXPECT_EQ(ends_.at(1).status, FetchStatus::received);
}

}  // namespace
}  // namespace mycojobs::test
