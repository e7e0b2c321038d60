// Fixture of the tests of services: an in-memory store, and callers with different roles in context 1.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "base/clock.h"
#include "model/enums.h"
#include "security/ceilings.h"
#include "service/flow_service.h"
#include "service/job_service.h"
#include "service/record_service.h"
#include "support/redis/memory_server.h"

namespace mycojobs::service {

class ServiceTest : public ::testing::Test {
 protected:
  SystemClock clock_;
  MemoryServer redis_{clock_};
  std::unique_ptr<Store> store_ = *redis_.open();
  std::unique_ptr<FlowStore> flow_store_ = *redis_.open_flows();
  RunCache run_cache_;

  // The record of context 1 lists 12 as admin, 13 as reader, and 16 and 17 as submitters. Actor 15 has no role.
  const RequestContext operator_caller_{1, 1, EntryPoint::command, /*is_operator=*/true};
  const RequestContext admin_ = make_caller(12), reader_ = make_caller(13), submitter_ = make_caller(16),
                       other_submitter_ = make_caller(17), unrelated_actor_ = make_caller(15);

  void SetUp() override {
    Context context;
    context.id = 1;
    context.admins = {12};
    context.readers = {13};
    context.submitters = {16, 17};
    ASSERT_TRUE(create_context(operator_caller_, *store_, context));
  }
  static RequestContext make_caller(Id actor, EntryPoint entry_point = EntryPoint::rpc) {
    return {1, actor, entry_point, /*is_operator=*/false};
  }
  // Returns a copy of the caller with a memory ceiling of 128 MiB in context 1.
  static RequestContext add_128_mib_ceiling(RequestContext caller) {
    auto ceilings = std::make_shared<Ceilings>();
    ceilings->contexts[1] = ceilings->standard;
    ceilings->contexts[1].memory_bytes = 128U << 20;
    caller.ceilings = std::move(ceilings);
    return caller;
  }
  static constexpr std::string_view kAboveCeilingText = "policy.memory: 129 MiB is more than the ceiling of 128 MiB";
  FlowStores make_flow_stores() { return {*store_, *flow_store_, run_cache_}; }
  // Replaces the list of admins in the record of context 1 by a value that cannot be parsed, as any Redis client can.
  void corrupt_admin_list() { ASSERT_TRUE(store_->save(1, "context:1", {{"admins", "not a list"}})); }

  static Job new_job(Id id = 0) {
    Job job;
    job.id = id;
    job.script = "pass";
    job.script_type = "python";
    return job;
  }
  std::string read_field(const std::string& key, std::string_view name) {
    const std::string_view names[] = {name};
    const auto fields = store_->load_fields(1, key, names);
    return fields && !fields->empty() ? fields->front().second : "";
  }
};

// Returns the name of the error code, or an empty text for success.
template <class T>
std::string error_code_of(const Result<T>& result) {
  return result ? "" : std::string(to_string(result.error().code));
}
template <class T>
std::string error_message_of(const Result<T>& result) {
  return result ? "" : result.error().message;
}

}  // namespace mycojobs::service
