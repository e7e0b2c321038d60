// Fixture for tests of verify and rebuild: a store with jobs in all states and with all kinds of facts, and functions
// that damage the data.
#pragma once

#include <gmock/gmock.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "inspect/verify/job_verify.h"
#include "inspect/verify/rebuild.h"
#include "store_contract.h"

namespace mycojobs {

class VerifyContract : public StoreContract {
 protected:
  // Creates the jobs job:12:<n>: 1 queued, 2 live, 3 finished, 4 delayed, 5 waits for 4, 6 waits for
  // prerequisites, 7 live with the key "db", 8 held by that key, 9 waits for a retry, 10 expired and queued again, 11
  // released and queued again, 12 a dead letter (crash loop), 13 cancelled, 14 failed, 15 failed with 14, 16
  // prioritised, 17 pushed by a plain client, 18 failed and reopened, 19 of message:9:1, 20 live long enough for a
  // recorded heartbeat.
  void create_scenario();
  static std::string key(Id id) { return "job:12:" + std::to_string(id); }
  static std::string claim_key(Id id) { return "mj:claim:" + key(id); }
  Reply run_command(const std::vector<std::string>& words) { return backend_->run_command(1, words); }
  void set_claim(Id id, const std::string& name, const std::string& value) {
    run_command({"HSET", claim_key(id), name, value});
  }
  // Appends a fact to the journal as the server-side scripts do. Unless `listed` is set, the claim of the job does not
  // list the fact.
  void add_fact(Id id, const std::vector<std::string>& words, bool listed = true);
  std::uint64_t last_revision(Id id);

  VerifyReport run_verify();
  std::set<std::string> violated_rules();  // runs verify; returns the rules of all findings
  // Runs a rebuild and returns the differences that it repaired, or with `dry_run` would repair.
  std::vector<std::string> run_rebuild(bool dry_run = false);
  // Returns all keys of the context with their contents.
  std::map<std::string, std::string> snapshot();

  // Expects that verify finds violations of exactly this rule. With `repaired`, a rebuild must repair them; otherwise
  // the findings must remain.
  void expect_found(const std::string& rule, bool repaired);

  std::map<Id, ClaimedJob> claimed_;

 private:
  void submit_with(Id id, const std::function<void(Job&)>& change);
  void claim_all();
  static JobEnd failed();
};

}  // namespace mycojobs
