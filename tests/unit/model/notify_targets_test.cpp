// The `notify` field of a record: its recipients, and the names, allow-list and signatures of webhooks.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "coordinator/notice_body.h"
#include "model/codec.h"
#include "model/job_validation.h"
#include "model/notify_targets.h"
#include "net/web_address.h"
#include "net/webhook.h"
#include "support/process.h"

namespace mycojobs::test {
namespace {

using nlohmann::json;
using Kind = NotifyTarget::Kind;

TEST(NotifyTargets, AreReadInEverySpelling) {
  const auto parsed =
      parse_notify(json::parse(R"(["https://a.example/x", {"webhook": "http://127.0.0.1:8/y?z=1", "on": "error"},
                      {"job": {"script": "pass", "script_type": "python", "retries": 2}, "on": "finished"},
                      {"topic": "ops.team-1"}])"),
                   "notify");
  ASSERT_TRUE(parsed.problems.empty()) << join(parsed.problems);
  ASSERT_EQ(parsed.targets.size(), 4U);
  EXPECT_EQ(parsed.targets[0].url_or_topic, "https://a.example/x");
  EXPECT_TRUE(parsed.targets[0].matches_end(true) && parsed.targets[0].matches_end(false));
  EXPECT_TRUE(parsed.targets[1].matches_end(false) && !parsed.targets[1].matches_end(true));
  EXPECT_TRUE(parsed.targets[2].kind == Kind::job && parsed.targets[2].matches_end(true) &&
              !parsed.targets[2].matches_end(false));
  EXPECT_EQ(parsed.targets[2].job.retries, 2);
  EXPECT_TRUE(parsed.targets[3].kind == Kind::topic);
  EXPECT_NE(parsed.targets[0].digest, parsed.targets[1].digest);
  EXPECT_EQ(parse_notify(std::string("https://a.example/x"), "notify").targets.at(0).digest, parsed.targets[0].digest);
  EXPECT_EQ(parse_notify(std::string(R"("https://a.example/x")"), "notify").targets.at(0).url_or_topic,
            "https://a.example/x");
  EXPECT_TRUE(parse_notify(std::string(), "notify").targets.empty());
}

TEST(NotifyTargets, RefusalsNameTheField) {
  const std::vector<std::pair<const char*, const char*>> rows{
      {"7", "notify: is neither"},
      {"{}", "notify: give one of webhook, job and topic"},
      {R"({"webhook": 7})", "notify: a webhook is the text"},
      {R"({"webhook": "https://a.example", "topic": "x"})", "give one of"},
      {R"([{"topic": "a b"}])", "notify[0]: a topic is"},
      {R"([{"topic": "mj:wake"}])", "notify[0]: a topic is"},
      {R"([{"topic": "x", "on": "started"}])", "notify[0]: on:"},
      {R"([{"topic": "x", "when": 1}])", "notify[0]: \"when\""},
      {R"([{"job": {"script_type": "python"}}])", "job.script: is missing"},
      {R"([{"job": {"script": "x", "script_type": "python", "caller_id": 7}}])", "caller_id"},
      {R"([{"job": {"script": "x", "script_type": "python", "notify": ["https://a.example"]}}])", "notify"},
      {R"([{"job": {"script": "x", "script_type": "python", "timeout": 0}}])", "job.timeout"},
      {"[1,2,3,4,5,6,7,8,9]", "9 are more than the 8"},
  };
  for (const auto& [text, words] : rows) {
    const auto parsed = parse_notify(json::parse(text), "notify");
    EXPECT_NE(join(parsed.problems).find(words), std::string::npos) << text << ": " << join(parsed.problems);
  }
  Job job;
  job.id = job.caller_id = job.context_id = 1;
  job.script = "pass", job.script_type = "python";
  for (const char* invalid : {"ftp://x", "[", "{\"topic\": \"\"}", "[[[[[[]]]]]]"}) {
    job.notify = invalid;
    EXPECT_FALSE(validate(job).empty()) << invalid;
  }
}

TEST(NotifyTargets, TypedTargetIsAddedToAList) {
  std::string notify;
  ASSERT_TRUE(add_notify_target("https://a.example/x", notify));
  ASSERT_TRUE(add_notify_target(R"({"topic": "t", "on": "error"})", notify));
  EXPECT_EQ(notify, R"(["https://a.example/x",{"on":"error","topic":"t"}])");
  EXPECT_FALSE(add_notify_target("{", notify));
  EXPECT_FALSE(add_notify_target("a.example", notify));
  EXPECT_EQ(json::parse(notify).size(), 2U);
}

TEST(NotifyTargets, BodyDescribesOnlyThisEnd) {
  Notice notice;
  notice.record_key = "job:12:7";
  notice.finished = true;
  notice.ended_us = 1732312312123456;
  Job job;
  job.id = 7, job.caller_id = 12;
  job.name = "na\xffme";
  job.detail = "ok";
  job.result = {{"n", "7"}, {"text", "7"}};
  job.result_json = {"n"};
  job.ended_ms = 1732312312123;
  const json body = json::parse(make_notice_body(3, notice, encode(job)));
  EXPECT_EQ(body["type"], "job.ended");
  EXPECT_EQ(body["timestamp"], "2024-11-22T21:51:52Z");
  EXPECT_EQ(body["data"]["key"], "job:12:7");
  EXPECT_EQ(body["data"]["result"], json::parse(R"({"n": 7, "text": "7"})"));
  EXPECT_EQ(make_notice_id(3, notice), "3/job:12:7@1732312312123456");
  job.ended_ms += 1;  // The job has ended again since the notice was created.
  EXPECT_FALSE(json::parse(make_notice_body(3, notice, encode(job)))["data"].contains("result"));
  job.ended_ms -= 1;
  job.result["large"] = std::string(20000, 'x');
  const json large_body = json::parse(make_notice_body(3, notice, encode(job)));
  EXPECT_FALSE(large_body["data"].contains("result"));
  EXPECT_EQ(large_body["data"]["result_omitted"], true);
}

TEST(Webhooks, AllowOnlyExtensionsOfAnEntry) {
  const auto webhooks =
      WebhookAllowList::parse({"https://hooks.example.com", "https://b.example/jobs", "http://127.0.0.1:*/in/"});
  ASSERT_TRUE(webhooks) << webhooks.error().message;
  for (const char* url : {"https://hooks.example.com", "https://hooks.example.com/",
                          "https://HOOKS.example.com:443/a?b", "https://hooks.example.com?x", "https://b.example/jobs",
                          "https://b.example/jobs/7", "https://b.example/jobs?x", "http://127.0.0.1:81/in/x"}) {
    EXPECT_TRUE(webhooks->check_allowed(url)) << url;
  }
  for (const char* url : {"http://hooks.example.com",
                          "https://hooks.example.com:444/",
                          "https://hooks.example.com.evil.example/",
                          "https://hooks.example.com@evil.example/",
                          "https://evil.example/https://hooks.example.com",
                          "https://b.example/",
                          "https://b.example/jobsx",
                          "https://b.example/jobs/../x",
                          "https://b.example/jobs/%2e%2E/x",
                          "https://b.example/jobs/.%2e",
                          "https://b.example/jobs/..?x",
                          "https://b.example/jobs/..%2fx",
                          "https://b.example/jobs/..;/x",
                          "https://b.example/jobs/%2e%2e;a/x",
                          "https://b.example/jobs/..%5Cx",
                          "https://b.example/jobs/x%00",
                          "http://127.0.0.1:81/out",
                          "http://127.1:81/in/x",
                          "http://2130706433:81/in/x",
                          "http://0x7f.0.0.1/in/x",
                          "http://127.0.0.1:81\\@evil.example/in/",
                          "http://127.0.0.1:81/in/x y",
                          "http://127.0.0.1:81/in/x#y",
                          "http://127.0.0.1:81/in/\r\nHost: x",
                          "http://127.0.0.1:0/in/",
                          "http://127.0.0.1:*/in/",
                          "file:///etc/passwd",
                          "gopher://127.0.0.1/in/",
                          ""}) {
    EXPECT_FALSE(webhooks->check_allowed(url)) << url;
  }
  EXPECT_FALSE(WebhookAllowList().check_allowed("https://hooks.example.com"))
      << "without a setting, no webhook is allowed";
  for (const char* entry : {"hooks.example.com", "https://", "https://a/../b", "any", ""})
    EXPECT_FALSE(WebhookAllowList::parse({entry})) << entry;
}

// The example from https://www.standardwebhooks.com.
TEST(Webhooks, AreSignedInTheCommonFormat) {
  TempDir folder;
  const std::string path = folder / "secrets";
  std::ofstream(path) << "# ours\n\nwhsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n";
  const auto secrets = read_webhook_secrets(path);
  ASSERT_TRUE(secrets) << secrets.error().message;
  const std::string signature =
      sign_webhook(*secrets, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, R"({"test": 2432232314})");
  EXPECT_EQ(signature, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
  std::ofstream(path) << "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\nan old secret of some length\n";
  const std::string two_signatures = sign_webhook(read_webhook_secrets(path).value(), "msg_p5jXN8AQM9LWM0D4loKWxJek",
                                                  1614265330, R"({"test": 2432232314})");
  EXPECT_TRUE(two_signatures.starts_with(signature + " v1,")) << two_signatures;
  for (const char* invalid : {"", "short", "whsec_!!!!", "whsec_MfKQ", "# only\n"}) {
    std::ofstream(path) << invalid;
    const auto rejected = read_webhook_secrets(path);
    ASSERT_FALSE(rejected) << invalid;
    EXPECT_NE(rejected.error().message.find(path), std::string::npos);
    EXPECT_EQ(rejected.error().message.find("MfKQ"), std::string::npos);
  }
  const auto missing = read_webhook_secrets(folder / "missing");
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, Code::not_found);
}

}  // namespace
}  // namespace mycojobs::test
