#include <nlohmann/json.hpp>

#include "service_fixture.h"

namespace mycojobs::service {

using ::testing::HasSubstr;
using ::testing::StartsWith;
using Verb = FlowControl::Verb;

namespace {

class FlowService : public ServiceTest {
 protected:
  // Creates and starts a flow with one approval by actor 15.
  Id new_flow(const RequestContext& caller) {
    const auto definition = nlohmann::json::parse(R"({"name":"n","jobs":{"ok":{"approval":{"approvers":[15]}}}})");
    const auto flow = create_flow(caller, make_flow_stores(), definition, nullptr, {});
    EXPECT_TRUE(flow) << error_message_of(flow);
    if (!flow) return 0;
    const auto started = start_flow(caller, make_flow_stores(), {flow->id, "manual"});
    EXPECT_TRUE(started) << error_message_of(started);
    return flow->id;
  }
  std::string control(const RequestContext& caller, ControlFlow request) {
    return error_code_of(control_flow(caller, make_flow_stores(), request));
  }
  std::string wrong(ControlFlow request) {
    const auto done = control_flow(operator_caller_, make_flow_stores(), request);
    EXPECT_FALSE(done);
    return error_message_of(done);
  }
};

TEST_F(FlowService, LimitsApplyToEveryEntryPoint) {
  const Id flow = new_flow(submitter_);
  EXPECT_EQ(wrong({.flow = flow, .comment = std::string(4097, 'x')}), "comment: is over 4096 bytes: shorten it");
  EXPECT_THAT(wrong({.flow = flow, .verb = Verb::signal, .payload = std::string(65537, '1')}), StartsWith("payload: "));
  EXPECT_THAT(wrong({.flow = flow, .verb = Verb::signal, .payload = "{"}), StartsWith("payload: "));
  EXPECT_THAT(wrong({.flow = flow, .key = std::string(256, 'k')}), StartsWith("key: is over 255 bytes"));
  EXPECT_EQ(wrong({.flow = flow, .key = ""}), "key: is empty");
  EXPECT_EQ(read_field("flow:" + std::to_string(flow), "status"), "started");
  EXPECT_EQ(control(operator_caller_, {.flow = flow, .comment = std::string(4096, 'x'), .key = std::string(255, 'k')}),
            "");
  CreateFlow request;
  request.idempotency_key = "";
  EXPECT_THAT(error_message_of(create_flow(operator_caller_, make_flow_stores(), FlowPlan(), request)),
              StartsWith("idempotency_key: is empty"));
}

TEST_F(FlowService, ForeignAndMissingFlowsLookTheSame) {
  const Id flow = new_flow(other_submitter_);
  for (const RequestContext& caller : {submitter_, reader_, unrelated_actor_}) {
    for (const Id id : {flow, Id{777}}) {
      EXPECT_EQ(control(caller, {.flow = id}), "denied");
      EXPECT_EQ(error_code_of(start_flow(caller, make_flow_stores(), {id, "rpc"})), "denied");
      EXPECT_EQ(error_code_of(replay_flow(caller, make_flow_stores(), {id})), "denied");
      EXPECT_EQ(error_code_of(delete_flow(caller, make_flow_stores(), id)), "denied");
    }
  }
  for (const RequestContext& caller : {operator_caller_, admin_}) {
    EXPECT_EQ(control(caller, {.flow = 777}), "not_found");
    EXPECT_EQ(error_code_of(delete_flow(caller, make_flow_stores(), 777)), "not_found");
    EXPECT_THAT(error_message_of(start_flow(caller, make_flow_stores(), {777, "rpc"})),
                HasSubstr("does not exist in context 1"));
  }
  // The value at the key is not a flow record.
  redis_.run_command(1, {"SET", "flow:778", "x"});
  EXPECT_EQ(control(unrelated_actor_, {.flow = 778}), "denied");
  EXPECT_EQ(control(operator_caller_, {.flow = 778}), "not_found");
}

TEST_F(FlowService, ScriptsThatAgentsRejectAreRejected) {
  RequestContext creator = submitter_;
  creator.max_script_bytes = 100;
  const auto create = [&](std::size_t bytes, bool in_a_child) {
    const nlohmann::json job{{"script", std::string(bytes, 'x')}, {"type", "python"}};
    nlohmann::json definition{{"name", "f"}, {"jobs", {{"a", job}}}};
    if (in_a_child) definition = {{"name", "g"}, {"jobs", {{"c", {{"flow", definition}}}}}};
    return create_flow(creator, make_flow_stores(), definition, nullptr, {});
  };
  EXPECT_EQ(error_code_of(create(100, false)), "");
  EXPECT_EQ(error_code_of(create(101, false)), "too_large");
  EXPECT_EQ(error_message_of(create(101, false)),
            "definition: jobs.a: script: is 101 bytes, and job.max_script_bytes allows 100");
  EXPECT_EQ(error_code_of(create(100, true)), "");
  EXPECT_EQ(error_message_of(create(101, true)),
            "definition: jobs.c.flow: jobs.a: script: is 101 bytes, and job.max_script_bytes allows 100");
}

TEST_F(FlowService, LocalNodesAreCheckedAgainstTheCeiling) {
  const RequestContext creator = add_128_mib_ceiling(submitter_);
  const auto create = [&](const std::string& node, bool in_a_child) {
    auto job = nlohmann::json::parse(node);
    job.update({{"script", "pass"}, {"type", "python"}});
    nlohmann::json definition{{"name", "f"}, {"jobs", {{"a", job}}}};
    if (in_a_child) definition = {{"name", "g"}, {"jobs", {{"c", {{"flow", definition}}}}}};
    return error_message_of(create_flow(creator, make_flow_stores(), definition, nullptr, {}));
  };
  for (const bool in_a_child : {false, true}) {
    const std::string where = in_a_child ? "definition: jobs.c.flow: jobs.a: " : "definition: jobs.a: ";
    EXPECT_EQ(create(R"({"policy": {"memory": "128 MiB"}})", in_a_child), "");
    EXPECT_THAT(create(R"({"policy": {"memory": "129 MiB"}})", in_a_child),
                StartsWith(where + std::string(kAboveCeilingText)));
    EXPECT_THAT(create(R"({"policy": {"memory": "129 MiB"}, "each": [1, 2]})", in_a_child),
                StartsWith(where + std::string(kAboveCeilingText)));
  }
  EXPECT_EQ(create(R"({"policy": {"memory": "129 MiB"}, "supervisor_url": "http://there.example:9652"})", false), "")
      << "the ceiling there counts";
  Job greedy = new_job(8);
  greedy.policy = R"({"memory": "129 MiB"})";
  ASSERT_EQ(error_code_of(create_job(submitter_, *store_, std::nullopt, greedy)), "");
  EXPECT_THAT(error_message_of(create_flow_of_jobs(creator, make_flow_stores(), "f", nlohmann::json{8U}, nullptr, {})),
              StartsWith("jobs[0]: " + std::string(kAboveCeilingText)));
}

TEST_F(FlowService, FlowOfJobsIsCreatedOnceByItsKey) {
  ASSERT_EQ(error_code_of(create_job(submitter_, *store_, std::nullopt, new_job(8))), "");
  ASSERT_EQ(error_code_of(create_job(submitter_, *store_, std::nullopt, new_job(9))), "");
  CreateFlow request;
  request.idempotency_key = "once";
  const auto make = [&](const nlohmann::json& jobs) {
    return create_flow_of_jobs(submitter_, make_flow_stores(), "f", jobs, nullptr, request);
  };
  const auto first = make({8U});
  ASSERT_TRUE(first) << error_message_of(first);
  const auto again = make({8U});
  ASSERT_TRUE(again) << error_message_of(again);
  EXPECT_EQ(again->id, first->id);
  EXPECT_THAT(error_message_of(make({9U})), HasSubstr("once began flow " + std::to_string(first->id)));
  request.idempotency_key.reset();
  EXPECT_EQ(error_code_of(make({8U})), "conflict") << "the jobs are that flow's";
}

TEST_F(FlowService, FlowOfJobsIsInItsCreatorsTrace) {
  ASSERT_EQ(error_code_of(create_job(submitter_, *store_, std::nullopt, new_job(8))), "");
  CreateFlow request;
  request.traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
  const auto create = create_flow_of_jobs(submitter_, make_flow_stores(), "f", {8U}, nullptr, request);
  ASSERT_TRUE(create) << error_message_of(create);
  EXPECT_EQ(read_field("flow:" + std::to_string(create->id), "traceparent"), request.traceparent);
}

// The caller may be killed between any two steps.
TEST_F(FlowService, InterruptedCreationResumesWithTheSameCall) {
  for (const Fault how : {Fault::before, Fault::after}) {
    for (const char* step : {"flow_create", "flow_put_jobs", "flow_put"}) {
      const auto job = create_job(submitter_, *store_, std::nullopt, new_job());
      ASSERT_TRUE(job) << error_message_of(job);
      const nlohmann::json nodes{{std::to_string(job->id), {{"supervisor_url", "http://there.example:9652"}}}};
      const auto make = [&] { return create_flow_of_jobs(submitter_, make_flow_stores(), "f", {job->id}, nodes, {}); };
      redis_.set_faults([&](std::string_view call) { return call == step ? how : Fault::none; });
      const auto broken = make();
      redis_.set_faults([](std::string_view) { return Fault::none; });
      EXPECT_FALSE(broken) << step;
      const auto create = make();
      const bool was_made = how == Fault::after && std::string_view(step) == "flow_put";
      EXPECT_EQ(error_code_of(create), was_made ? "conflict" : "") << step << ": " << error_message_of(create);
      EXPECT_TRUE(was_made || (create && start_flow(submitter_, make_flow_stores(), {create->id, "rpc"})));
    }
  }
}

TEST_F(FlowService, ReplayIsInItsCallersTrace) {
  const std::string first = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
                    named = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
  CreateFlow request;
  request.traceparent = first;
  const auto create =
      create_flow(submitter_, make_flow_stores(), {{"name", "f"}, {"jobs", {{"a", {{"log", "x"}}}}}}, nullptr, request);
  ASSERT_TRUE(create) << error_message_of(create);
  const auto trace_of = [&](const RequestContext& by, const std::string& given) {
    const auto again = replay_flow(by, make_flow_stores(), {.flow = create->id, .traceparent = given});
    return again ? read_field("flow:" + std::to_string(again->id), "traceparent") : error_message_of(again);
  };
  EXPECT_EQ(trace_of(submitter_, ""), "") << "the first run's is over";
  EXPECT_EQ(trace_of(submitter_, named), named);
  RequestContext traced = submitter_;
  traced.traceparent = first;
  EXPECT_EQ(trace_of(traced, ""), first) << "of the request";
  EXPECT_EQ(trace_of(traced, named), named);
  EXPECT_THAT(trace_of(submitter_, "00-x"), StartsWith("traceparent: "));
}

// The ceiling may have been lowered since the flow was created, and the flow of a plain client was never checked.
TEST_F(FlowService, ReplayAndAdoptionUseTheCurrentCeiling) {
  const nlohmann::json greedy{{"script", "pass"}, {"type", "python"}, {"policy", {{"memory", "129 MiB"}}}};
  for (const bool in_a_child : {false, true}) {
    nlohmann::json definition{{"name", "f"}, {"jobs", {{"a", greedy}}}};
    if (in_a_child) definition = {{"name", "g"}, {"jobs", {{"c", {{"flow", definition}}}}}};
    const auto create = create_flow(submitter_, make_flow_stores(), definition, nullptr, {});
    ASSERT_TRUE(create) << error_message_of(create);
    const auto replayed = replay_flow(add_128_mib_ceiling(submitter_), make_flow_stores(), {create->id});
    EXPECT_EQ(error_code_of(replayed), "invalid");
    EXPECT_THAT(error_message_of(replayed),
                StartsWith("flow " + std::to_string(create->id) + ": " +
                           (in_a_child ? "jobs.c.flow: jobs.a: " : "jobs.a: ") + std::string(kAboveCeilingText)));
    EXPECT_EQ(error_code_of(replay_flow(submitter_, make_flow_stores(), {create->id})), "");
  }
  redis_.run_command(1, {"HSET", "job:16:2001", "id", "2001", "caller_id", "16", "context_id", "1", "script", "pass",
                         "script_type", "python", "status", "dispatched", "policy", R"({"memory": "129 MiB"})"});
  redis_.run_command(1, {"HSET", "flow:33", "id", "33", "caller_id", "16", "context_id", "1", "jobs", "[2001]",
                         "status", "dispatched"});
  const auto started = start_flow(add_128_mib_ceiling(submitter_), make_flow_stores(), {33, "rpc"});
  EXPECT_EQ(error_code_of(started), "invalid");
  EXPECT_THAT(error_message_of(started), StartsWith("job:16:2001: " + std::string(kAboveCeilingText)));
  EXPECT_EQ(read_field("flow:33", "status"), "dispatched");
  EXPECT_EQ(error_code_of(start_flow(submitter_, make_flow_stores(), {33, "rpc"})), "");
}

TEST_F(FlowService, UnreadableContextIsClosedToActors) {
  const Id flow = new_flow(submitter_);
  corrupt_admin_list();
  for (const EntryPoint way : {EntryPoint::rpc, EntryPoint::command}) {
    for (const Id actor : {12U, 16U, 15U}) {
      const RequestContext caller = make_caller(actor, way);
      EXPECT_EQ(control(caller, {.flow = flow}), "invalid");
      EXPECT_EQ(control(caller, {.flow = flow, .verb = Verb::approve, .target = "ok"}), "invalid");
      EXPECT_EQ(error_code_of(create_flow(caller, make_flow_stores(), FlowPlan(), {})), "invalid");
      EXPECT_EQ(error_code_of(list_flows(caller, make_flow_stores(), {})), "invalid");
      EXPECT_EQ(error_code_of(read_flow(caller, *store_, flow)), "invalid");
      EXPECT_EQ(error_code_of(delete_flow(caller, make_flow_stores(), flow)), "invalid");
    }
  }
  EXPECT_EQ(control(operator_caller_, {.flow = flow}), "");
  EXPECT_EQ(error_code_of(read_context(operator_caller_, *store_)), "invalid")
      << "and is not shown as one with empty lists";
}

// A step that names approvers is answered by an approver or an admin. An operator must name the actor.
TEST_F(FlowService, OperatorIsNotANamedApprover) {
  const Id flow = new_flow(submitter_);
  const ControlFlow approve{.flow = flow, .verb = Verb::approve, .target = "ok"};
  EXPECT_EQ(control(operator_caller_, approve), "denied");
  EXPECT_EQ(control(submitter_, approve), "denied");
  const auto named = impersonate(operator_caller_, 15, "actor_id");
  ASSERT_TRUE(named);
  EXPECT_EQ(control(*named, {.flow = flow}), "denied") << "it is asked for its own rights";
  EXPECT_EQ(control(*named, approve), "");
}

TEST_F(FlowService, ReplayNeedsSteeringAndCreationRights) {
  const Id flow = new_flow(submitter_);
  EXPECT_EQ(error_code_of(replay_flow(reader_, make_flow_stores(), {flow})), "denied");
  EXPECT_EQ(error_code_of(replay_flow(other_submitter_, make_flow_stores(), {flow})), "denied");
  const auto again = replay_flow(submitter_, make_flow_stores(), {flow});
  ASSERT_TRUE(again) << error_message_of(again);
  EXPECT_EQ(again->caller_id, 16U);
}

// The definition belongs to its caller: a replay by another caller must not grant it further rights.
TEST_F(FlowService, ReplayRunsAsTheOriginalCaller) {
  const Id flow = new_flow(submitter_);
  for (const RequestContext& caller : {admin_, operator_caller_}) {
    const auto again = replay_flow(caller, make_flow_stores(), {flow});
    ASSERT_TRUE(again) << error_message_of(again);
    EXPECT_EQ(again->caller_id, 16U);
    ASSERT_FALSE(again->jobs.empty());
    EXPECT_EQ(read_field("job:16:" + std::to_string(again->jobs.front()), "flow_id"), std::to_string(again->id));
  }
}

TEST_F(FlowService, OnlyOperatorsActAsAnotherActor) {
  EXPECT_EQ(impersonate(submitter_, std::nullopt, "actor_id")->actor, 16U);
  EXPECT_EQ(impersonate(submitter_, 16, "actor_id")->actor, 16U);
  EXPECT_EQ(error_message_of(impersonate(submitter_, 17, "actor_id")),
            "actor_id: this token is of actor 16 and cannot act as 17: leave actor_id out");
  const auto itself = impersonate(operator_caller_, 1, "actor_id");
  ASSERT_TRUE(itself);
  EXPECT_FALSE(itself->is_operator) << "who names an actor is asked for that actor's rights";
  EXPECT_EQ(*resolve_owner(operator_caller_, 17), 17U);
  EXPECT_EQ(error_code_of(resolve_owner(submitter_, 17)), "denied");
}

TEST_F(FlowService, ListShowsOnlyPermittedFlows) {
  new_flow(submitter_);
  new_flow(other_submitter_);
  EXPECT_EQ(list_flows(operator_caller_, make_flow_stores(), {})->size(), 2U);
  EXPECT_EQ(list_flows(reader_, make_flow_stores(), {})->size(), 2U);
  const auto own = list_flows(submitter_, make_flow_stores(), {});
  ASSERT_EQ(own->size(), 1U);
  EXPECT_EQ(own->front().flow.caller_id, 16U);
  EXPECT_EQ(error_code_of(list_flows(unrelated_actor_, make_flow_stores(), {})), "denied");
}

}  // namespace
}  // namespace mycojobs::service
