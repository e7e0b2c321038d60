// The work of the agent's threads for each call of the store, without the socket: encoding of arguments and parsing of
// replies.
#include <hiredis/hiredis.h>

#include <memory>
#include <string>
#include <utility>

#include "instructions/examples.h"
#include "instructions/operation.h"
#include "model/codec.h"
#include "model/job_validation.h"
#include "store/redis/store_connection.h"
#include "store/store.h"

namespace mycojobs::instructions {
namespace {

// A link that gives the same reply to every script.
class CannedLink final : public Link {
 public:
  explicit CannedLink(Reply reply) : reply_(std::move(reply)) {}
  Result<Reply> command(const Arguments&, std::uint32_t) override { return reply_; }
  Result<Reply> run(const Script&, const Arguments&) override { return reply_; }
  const std::string& server_run_id() const override { return run_id_; }

 private:
  Reply reply_;
  std::string run_id_ = "0";
};

std::string bulk(std::string_view text) {
  return "$" + std::to_string(text.size()) + "\r\n" + std::string(text) + "\r\n";
}
std::string number(std::uint64_t value) { return ":" + std::to_string(value) + "\r\n"; }
std::string array(std::size_t size) { return "*" + std::to_string(size) + "\r\n"; }

Reply parsed(const std::string& bytes) {
  const std::unique_ptr<redisReader, void (*)(redisReader*)> reader(redisReaderCreate(), redisReaderFree);
  void* reply = nullptr;
  require(redisReaderFeed(reader.get(), bytes.data(), bytes.size()) == REDIS_OK &&
              redisReaderGetReply(reader.get(), &reply) == REDIS_OK && reply != nullptr,
          "the answer of the example is not the Redis protocol");
  return Reply(std::shared_ptr<const redisReply>(
      static_cast<redisReply*>(reply), [](const redisReply* each) { freeReplyObject(const_cast<redisReply*>(each)); }));
}

// The reply of the claim script: number of dropped entries, the jobs, paused queues, and whether more are waiting.
std::string claim_answer(std::size_t jobs) {
  const Fields record = encode(example_job());
  std::string out = array(4) + number(0) + array(jobs);
  for (std::size_t i = 0; i < jobs; ++i) {
    out += array(7) + bulk("queue:python") + bulk("job:12:" + std::to_string(2001 + i)) + number(i + 1) + number(77) +
           number(1) + number(1) + array(record.size() * 2);
    for (const auto& [name, value] : record) out += bulk(name) + bulk(value);
  }
  return out + array(0) + number(0);
}

std::shared_ptr<Store> store_that_answers(const std::string& bytes) {
  const Reply reply = parsed(bytes);
  return std::make_shared<Store>(std::make_unique<StoreConnection>([reply](Id) -> Result<std::unique_ptr<Link>> {
    return std::unique_ptr<Link>(std::make_unique<CannedLink>(reply));
  }));
}

ClaimRequest example_request() {
  ClaimRequest request;
  request.context = 1, request.runner = 20, request.instance = "0123456789abcdef0123456789abcdef";
  request.queues = {"queue:python", "queue:bash", "queue:sal", "queue:osis"};
  request.max_jobs = kMany;
  return request;
}

ClaimRef example_claim(std::size_t i) {
  return {1, "job:12:" + std::to_string(2001 + i), "0123456789abcdef", std::string(64, 'c')};
}

JobEnd example_end() {
  JobEnd end;
  end.status = JobStatus::finished, end.detail = "ok";
  end.result = {{"rows", "120000"}, {"seconds", "1.25"}};
  end.usage = R"({"wall_us":5300,"user_us":2100,"system_us":3900,"memory_peak_bytes":9437184,"pids_peak":1})";
  end.layers = "userns pidns mountns netns ipcns utsns cgroupns seccomp caps no_new_privs landlock:7 cgroup:memory";
  end.receipt = R"({"run":7000001,"host":"python","runner":20})";
  return end;
}

std::vector<Report> example_ends() {
  std::vector<Report> reports;
  for (std::size_t i = 0; i < kMany; ++i) reports.emplace_back(EndReport{example_claim(i), example_end()});
  return reports;
}

std::vector<Report> example_logs() {
  std::vector<Report> reports;
  for (std::size_t i = 0; i < kMany; ++i) {
    LogAppend append{example_claim(i), {}};
    for (std::uint64_t seq = 1; seq <= 4; ++seq)
      append.lines.push_back({1795000003000 + seq, seq, LogStream::out, "row " + std::to_string(seq) + " of 120000"});
    reports.emplace_back(std::move(append));
  }
  return reports;
}

std::string all_ok() {
  std::string out = array(kMany);
  for (std::size_t i = 0; i < kMany; ++i) out += array(2) + bulk("ok") + bulk("");
  return out;
}

std::string all_renewed() {
  std::string out = array(kMany);
  for (std::size_t i = 0; i < kMany; ++i) out += number(1);
  return out;
}

std::function<std::size_t()> claim_of(std::size_t jobs) {
  return [store = store_that_answers(claim_answer(jobs)), request = example_request(), jobs] {
    const auto reply = store->claim(request);
    require(reply && reply->jobs.size() == jobs, "a claim does not bring its jobs");
    return reply->jobs.size();
  };
}

std::function<std::size_t()> report_of(std::vector<Report> reports) {
  return [store = store_that_answers(all_ok()), reports = std::move(reports)] {
    const auto answers = store->report(1, reports);
    require(answers && answers->size() == kMany && answers->back(), "a report is not taken");
    return answers->size();
  };
}

}  // namespace

std::vector<Operation> store_operations() {
  std::vector<ClaimRef> claims;
  for (std::size_t i = 0; i < kMany; ++i) claims.push_back(example_claim(i));
  return {
      {"store.claim.arguments", claim_of(0)},
      {"store.claim.16_jobs", claim_of(kMany)},
      {"store.report.16_ends", report_of(example_ends())},
      {"store.report.16_logs", report_of(example_logs())},
      {"store.renew.16_claims",
       [store = store_that_answers(all_renewed()), claims] {
         const auto answers = store->renew(1, claims, 30000);
         require(answers && answers->size() == kMany, "a renewal is not answered");
         return answers->size();
       }},
      {"record.job.decode",
       [fields = encode(example_job())] {
         const auto decoded = decode<Job>(fields);
         require(decoded.ok() && decoded.record.epoch == 77, "a record is not read");
         return decoded.record.script.size();
       }},
      {"record.job.encode", [job = example_job()] { return encode(job).size(); }},
      {"record.job.validate",
       [job = example_job()] {
         const auto problems = validate(job);
         require(problems.empty(), "a record is not valid");
         return problems.size();
       }},
  };
}

}  // namespace mycojobs::instructions
