// The services over an in-memory store, and their callers.
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
  RunCache runs_;

  // Callers in context 1, whose record names 12 (admin), 13 (reader) and 16, 17 (submitters).
  const RequestContext operator_{1, 1, EntryPoint::command, true};
  const RequestContext admin_ = by(12), reader_ = by(13), submitter_ = by(16), other_ = by(17), stranger_ = by(15);

  void SetUp() override {
    Context context;
    context.id = 1;
    context.admins = {12};
    context.readers = {13};
    context.submitters = {16, 17};
    ASSERT_TRUE(create_context(operator_, *store_, context));
  }
  static RequestContext by(Id actor, EntryPoint way = EntryPoint::rpc) { return {1, actor, way, false}; }
  // Returns this caller with a ceiling of 128 MiB in context 1.
  static RequestContext below_128_mib(RequestContext caller) {
    auto ceilings = std::make_shared<Ceilings>();
    ceilings->contexts[1] = ceilings->standard;
    ceilings->contexts[1].memory_bytes = 128U << 20;
    caller.ceilings = std::move(ceilings);
    return caller;
  }
  static constexpr std::string_view kOver128MiB = "policy.memory: 129 MiB is more than the ceiling of 128 MiB";
  FlowStores stores() { return {*store_, *flow_store_, runs_}; }
  // Makes the context's lists unreadable, as another client could.
  void spoil_context() { ASSERT_TRUE(store_->save(1, "context:1", {{"admins", "not a list"}})); }

  static Job new_job(Id id = 0) {
    Job job;
    job.id = id;
    job.script = "pass";
    job.script_type = "python";
    return job;
  }
  std::string field(const std::string& key, std::string_view name) {
    const std::string_view names[] = {name};
    const auto fields = store_->load_fields(1, key, names);
    return fields && !fields->empty() ? fields->front().second : "";
  }
};

// Returns "" for success, otherwise the code.
template <class T>
std::string outcome(const Result<T>& result) {
  return result ? "" : std::string(to_string(result.error().code));
}
template <class T>
std::string message(const Result<T>& result) {
  return result ? "" : result.error().message;
}

}  // namespace mycojobs::service
