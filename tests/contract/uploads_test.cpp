// Uploads of files for jobs, and coordinators as holders of files.
#include <gmock/gmock.h>

#include "model/file_holder.h"
#include "model/submitted_files.h"
#include "store/job_fields.h"
#include "store_contract.h"

namespace mycojobs {
namespace {

using testing::HasSubstr;

const std::string kHolder = std::string(24, 'a') + "@atlas";
const std::string kHash(64, 'b');

class Uploads : public StoreContract {
 protected:
  static UploadRecord make_upload(char digit = '1', Id caller = 12, std::uint64_t bytes = 2000000) {
    UploadRecord upload;
    upload.caller = caller;
    upload.reference = {make_upload_id(caller, std::string(32, digit)), bytes, kHash};
    upload.holder = kHolder;
    return upload;
  }
  UploadReference put(const UploadRecord& upload, std::uint64_t ttl_ms = 60000) {
    EXPECT_EQ(outcome(store_->begin_upload(1, upload, 60000, 1ULL << 30)), "ok");
    EXPECT_EQ(outcome(store_->complete_upload(1, upload.reference.id, ttl_ms)), "ok");
    return upload.reference;
  }
  static Job make_job(Id id, const UploadReference& reference) {
    Job with_file = job(id);
    SubmittedFiles files;
    files.uploads.emplace("big.bin", reference);
    EXPECT_TRUE(set_submitted_files(with_file, std::move(files)));
    return with_file;
  }
  bool exists(const std::string& id) { return store_->find_upload(1, id).value().has_value(); }
  void make_due(const std::string& id) { backend_->run_command(1, {"ZADD", "mj:uploads", "1", id}); }
  std::string counted_bytes() {
    return std::string(backend_->run_command(1, {"HGET", "mj:upload-bytes", "12"}).text());
  }
};

TEST_P(Uploads, JobNamesTheUploadAndItsHolder) {
  const UploadReference reference = put(make_upload());
  const Job submitted = make_job(1, reference);
  ASSERT_EQ(outcome(store_->submit(submitted)), "ok");
  EXPECT_EQ(field("mj:job-files:job:12:1", "upload:" + kHash), reference.id + " 2000000 " + kHolder);
  Job restored = submitted;
  restored.submitted_files = nullptr;
  ASSERT_EQ(outcome(load_submitted_files(*store_, 1, "job:12:1", restored)), "ok");
  ASSERT_NE(restored.submitted_files, nullptr);
  EXPECT_EQ(restored.submitted_files->uploads.at("big.bin"), reference);
  EXPECT_EQ(outcome(store_->submit(submitted)), "ok") << "a repeated submission";
}

TEST_P(Uploads, OnlyJobsOfTheCallerUseAnUpload) {
  const UploadReference reference = put(make_upload('1', 13));
  const auto refused = store_->submit(make_job(1, reference));
  ASSERT_EQ(outcome(refused), "denied");
  EXPECT_THAT(refused.error().message, HasSubstr("belongs to another caller"));
  EXPECT_EQ(backend_->run_command(1, {"EXISTS", "job:12:1"}).number(), 0U);
}

TEST_P(Uploads, IncompleteOrForgedUploadIsRefused) {
  const UploadRecord upload = make_upload();
  ASSERT_EQ(outcome(store_->begin_upload(1, upload, 60000, 1ULL << 30)), "ok");
  EXPECT_THAT(store_->submit(make_job(1, upload.reference)).error().message, HasSubstr("is not complete"));
  ASSERT_EQ(outcome(store_->complete_upload(1, upload.reference.id, 60000)), "ok");
  UploadReference forged = upload.reference;
  forged.sha256 = std::string(64, 'c');
  EXPECT_EQ(outcome(store_->submit(make_job(1, forged))), "not_found");
  forged = upload.reference;
  forged.bytes = 1;
  EXPECT_EQ(outcome(store_->submit(make_job(1, forged))), "not_found");
  forged = make_upload('2').reference;
  EXPECT_THAT(store_->submit(make_job(1, forged)).error().message, HasSubstr("does not exist or has expired: upload"));
  EXPECT_EQ(outcome(store_->submit(make_job(1, upload.reference))), "ok");
}

TEST_P(Uploads, QuotaOfACallerCountsAllUploads) {
  put(make_upload('1'));
  EXPECT_EQ(counted_bytes(), "2000000");
  const auto refused = store_->begin_upload(1, make_upload('2'), 60000, 3000000);
  ASSERT_EQ(outcome(refused), "too_large");
  EXPECT_THAT(refused.error().message, HasSubstr("uploads.caller_bytes allows 3000000"));
  EXPECT_EQ(outcome(store_->begin_upload(1, make_upload('3', 12, 1), 60000, 3000000)), "ok");
  EXPECT_EQ(counted_bytes(), "2065536") << "a small file counts 64 KiB";
  EXPECT_EQ(outcome(store_->begin_upload(1, make_upload('3', 12, 1), 60000, 3000000)), "ok");
  EXPECT_EQ(counted_bytes(), "2065536") << "a repeat has no effect";
}

TEST_P(Uploads, UnusedUploadExpires) {
  const UploadReference reference = put(make_upload());
  EXPECT_EQ(store_->expire_uploads(1).value(), false);
  EXPECT_TRUE(exists(reference.id));
  make_due(reference.id);
  ASSERT_EQ(outcome(store_->expire_uploads(1)), "ok");
  EXPECT_FALSE(exists(reference.id));
  EXPECT_EQ(counted_bytes(), "");
  EXPECT_EQ(outcome(store_->complete_upload(1, reference.id, 60000)), "not_found");
  EXPECT_EQ(outcome(store_->submit(make_job(1, reference))), "not_found");
}

TEST_P(Uploads, UsedUploadLivesAsLongAsItsJobs) {
  const UploadReference reference = put(make_upload());
  ASSERT_EQ(outcome(store_->submit(make_job(1, reference))), "ok");
  ASSERT_EQ(outcome(store_->submit(make_job(2, reference))), "ok");
  make_due(reference.id);
  ASSERT_EQ(outcome(store_->expire_uploads(1)), "ok");
  EXPECT_TRUE(exists(reference.id));
  backend_->erase(1, "job:12:1");
  make_due(reference.id);
  ASSERT_EQ(outcome(store_->expire_uploads(1)), "ok");
  EXPECT_TRUE(exists(reference.id));
  backend_->erase(1, "job:12:2");
  make_due(reference.id);
  ASSERT_EQ(outcome(store_->expire_uploads(1)), "ok");
  EXPECT_FALSE(exists(reference.id));
}

TEST_P(Uploads, FlowWithAnUnusableUploadIsInvalid) {
  const auto flows = backend_->stores().open_flows().value();
  const auto put_jobs = [&](const UploadReference& reference) {
    const FlowIds place = flows->create({1, 12, 1, "", ""}).value();
    return flows->put_jobs(1, place.flow, std::vector<Job>{make_job(place.first_job, reference)});
  };
  const auto foreign = put_jobs(put(make_upload('1', 13)));
  ASSERT_EQ(outcome(foreign), "invalid");
  EXPECT_THAT(foreign.error().message, HasSubstr("belongs to another caller"));
  const auto missing = put_jobs(make_upload('2').reference);
  ASSERT_EQ(outcome(missing), "invalid");
  EXPECT_THAT(missing.error().message, HasSubstr("does not exist or has expired"));
}

TEST_P(Uploads, UploadsOfAllCallersAreLimited) {
  constexpr std::uint64_t kQuota = 2000000;
  for (Id caller = 1; caller <= 16; ++caller)
    ASSERT_EQ(outcome(store_->begin_upload(1, make_upload('1', caller), 60000, kQuota)), "ok");
  const auto refused = store_->begin_upload(1, make_upload('1', 17), 60000, kQuota);
  ASSERT_EQ(outcome(refused), "too_large");
  EXPECT_THAT(refused.error().message, HasSubstr("16 times uploads.caller_bytes"));
  make_due(make_upload('1', 1).reference.id);
  ASSERT_EQ(outcome(store_->expire_uploads(1)), "ok");
  EXPECT_EQ(outcome(store_->begin_upload(1, make_upload('1', 17), 60000, kQuota)), "ok");
}

TEST_P(Uploads, NewJobsRemoveDeletedOnesFromTheSet) {
  const UploadReference reference = put(make_upload());
  for (Id id = 1; id <= 40; ++id) {
    ASSERT_EQ(outcome(store_->submit(make_job(id, reference))), "ok");
    backend_->erase(1, "job:12:" + std::to_string(id));
  }
  EXPECT_LE(backend_->run_command(1, {"SCARD", "mj:upload-jobs:" + reference.id}).number(), 4U);
}

TEST_P(Uploads, JobWaitsForACoordinatorThatIsAway) {
  ASSERT_EQ(outcome(store_->hold_files(1, kHolder, 60000)), "ok");
  EXPECT_TRUE(store_->is_holding_files(1, kHolder).value());
  submit(1);
  const auto await_inputs = [this] {
    return report(AwaitInputs{claim_one().ref, parse_file_holder(kHolder), 3600000, "not connected", {}});
  };
  ASSERT_EQ(outcome(await_inputs()), "ok");
  EXPECT_EQ(field("mj:claim:job:12:1", "coordinator"), kHolder);
  EXPECT_EQ(field("mj:claim:job:12:1", "holder"), "") << "a runner to scripts of earlier versions";
  ASSERT_EQ(outcome(store_->hold_files(1, kHolder, 0)), "ok");
  EXPECT_FALSE(store_->is_holding_files(1, kHolder).value());
  const auto tick = [this] {
    backend_->run_command(1, {"ZADD", "mj:delayed", "1", "job:12:1"});
    return store_->tick(1, {}).value().queued;
  };
  backend_->run_command(1, {"HSET", "mj:file-holders", kHolder, "1"});
  EXPECT_EQ(tick(), 0U);
  EXPECT_EQ(field("job:12:1", "detail"), "inputs") << "the coordinator is away, which is no loss";
  ASSERT_EQ(outcome(store_->hold_files(1, kHolder, 60000)), "ok");
  EXPECT_EQ(tick(), 1U);
  ASSERT_EQ(outcome(await_inputs()), "ok");
  backend_->run_command(1, {"HSET", "mj:file-holders", kHolder, "1"});
  backend_->run_command(1, {"HSET", "mj:claim:job:12:1", "holder_until", "1"});
  tick();
  EXPECT_EQ(field("job:12:1", "detail"), "artifact_lost");
  EXPECT_THAT(field("job:12:1", "error"), HasSubstr("coordinator " + kHolder + ", which did not send them for"));
}

MJ_BOTH_STORES(Uploads);

}  // namespace
}  // namespace mycojobs
