// Measures live workflows: events per second on one coordinator, and the time from an event to its committed step, with
// 10 and 10,000 instances, with an effect, with one busy instance, and with busy deployments of another owner; also the
// time of a replay. Uses a real Redis server and the real engine; a runner ends each job at once. Prints table rows.
//   ninja -C build programs workflows_bench && build/bin/workflows_bench [EVENTS [FACTS]]
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "bench/store_bench.h"
#include "inspect/verify/deployment_verify.h"
#include "service/workflow_service.h"
#include "store/redis/embedded_redis.h"
#include "store/redis/redis_stores.h"
#include "support/build_paths.h"
#include "text/cbor.h"
#include "workflows/deployment/pooled_deployment_loop.h"
#include "workflows/engine/engine_pool.h"

using namespace mycojobs;

namespace {

using nlohmann::json;
constexpr Id kContext = 1;
constexpr int kSingle = 300;

constexpr const char* kManifest = R"json({
  "schemas": {
    "bench/Hit@1": {"type": "object", "required": ["id"], "properties": {
      "id": {"type": "integer"}, "pay": {"type": "boolean"}}},
    "bench/Event@1": {"oneOf": [{"title": "Hit", "$ref": "bench/Hit@1"},
      {"title": "Receipt", "$ref": "sys/EffectReceiptEnvelope@1"}]}},
  "effects": [{"name": "bench/pay@1", "script_type": "bench", "script": "pass", "params": {"type": "object"},
               "receipt": {"type": "object", "additionalProperties": {}}}],
  "workflows": [{"name": "bench/count@1", "state": {"type": "object", "required": ["n"], "properties": {
    "n": {"type": "integer"}}}, "event": "bench/Event@1", "key_schema": {"type": "integer"},
    "effects_emitted": ["bench/pay@1"], "impl": {"module": "count.lua", "entrypoint": "step"}}],
  "routing": {"subscriptions": [{"event": "bench/Hit@1", "workflow": "bench/count@1", "key_field": "$value.id"}]}
})json";
constexpr const char* kCode = R"lua(
function step(state, event)
  state = state or {n = 0}
  state.n = state.n + 1
  if event.value['$tag'] == 'Hit' and event.value['$value'].pay then
    return state, nil, {{kind = 'bench/pay@1', params = {}}}
  end
  return state
end
)lua";

class Bench {
 public:
  explicit Bench(const std::string& folder) : redis_(must(EmbeddedRedis::start(folder))) {
    RedisStoreConfig config;
    config.default_url = EmbeddedRedis::url(folder);
    stores_ = make_redis_stores(config);
    store_ = must(stores_->open());
    worlds_ = must(stores_->open_workflows());
    workflow::EngineOptions options;
    options.program = mj::test::program_path("mycojobs-workflowhost");
    engines_ = std::make_unique<workflow::EnginePool>(std::move(options), kContext);
    take_ = [this](const WorkflowSpec& spec, const WorkflowManifest& manifest, const StepRequest& request) {
      return engines_->step(spec, manifest, request);
    };
    loop_ = must(PooledDeploymentLoop::start(*stores_, clock_, pool_, kContext, take_));
    loop_->set_leader(true);
    runner_ = std::thread([this] { end_jobs(*stores_, kContext, 3, stop_); });
  }
  ~Bench() {
    stop_ = true;
    runner_.join();
    loop_.reset();
  }

  // Applies a separate deployment for each table row.
  std::string apply(const std::string& name) {
    json manifest = json::parse(kManifest);
    manifest["name"] = "bench/" + name + "@1";
    service::ApplyWorkflow request;
    request.code = {{"count.lua", kCode}};
    return must(service::apply_workflow(by_, {*store_, *worlds_}, manifest, request)).deployment;
  }
  // Applies `count` deployments of actor 2 under different names.
  std::vector<std::string> apply_of_another_owner(int count) {
    std::string text = kManifest;
    for (std::size_t at = 0; (at = text.find("bench/", at)) != std::string::npos; at += 6)
      text.replace(at, 6, "other/");
    std::vector<std::string> worlds;
    for (int i = 0; i < count; ++i) {
      json manifest = json::parse(text);
      manifest["name"] = "other/w" + std::to_string(i) + "@1";
      service::ApplyWorkflow request;
      request.code = {{"count.lua", kCode}};
      request.owner = 2;
      worlds.push_back(must(service::apply_workflow(by_, {*store_, *worlds_}, manifest, request)).deployment);
    }
    return worlds;
  }
  void send(const std::string& world, int id, bool pay = false) {
    const Fields fields{{"schema", "bench/Hit@1"}, {"value", json{{"id", id}, {"pay", pay}}.dump()}};
    must(worlds_->post(kContext, world, "event", fields, rules_of(id)));
  }
  std::uint64_t height(const std::string& world) { return must(worlds_->read(kContext, world, 0, 0)).height; }
  void wait(const std::string& world, std::uint64_t wanted) {
    while (height(world) < wanted) std::this_thread::sleep_for(std::chrono::microseconds(300));
  }

  // Sends events to `cells` instances, first all at once, then one after the other.
  void measure(const char* label, const std::string& world, int events, int cells, bool pay) {
    const std::uint64_t facts = pay ? 5 : 2;
    for (int id = 0; id < std::min(events, cells); ++id)
      send(world, id, pay);  // creates the instances before the measurement
    std::uint64_t sent = static_cast<std::uint64_t>(std::min(events, cells));
    settle(world);
    loop_->set_leader(false);  // measures the coordinator, not the sender
    for (int i = 0; i < events; ++i) send(world, i % cells, pay);
    const auto begin = Moment::now();
    loop_->set_leader(true);
    settle(world, sent += static_cast<std::uint64_t>(events), facts);
    const double took = ms_since(begin);
    std::vector<double> single;
    for (int i = 0; i < kSingle; ++i) {
      const std::uint64_t before = height(world);
      const auto one = Moment::now();
      send(world, i % cells, pay);
      wait(world, before + facts);
      single.push_back(ms_since(one));
      settle(world);
    }
    std::printf("| %s | %d | %.0f | %.1f | %.1f |\n", label, cells, events / took * 1000, at(single, 0.5),
                at(single, 0.99));
    std::fflush(stdout);
  }

  // Measures the latency of other instances while one instance always has `backlog` pending events (0: none).
  void measure_beside_a_busy_one(const std::string& world, int backlog, int others) {
    for (int id = 1; id <= others; ++id) send(world, id);
    settle(world);
    std::atomic<bool> stop{false};
    std::thread feeder;
    if (backlog > 0) {
      loop_->set_leader(false);
      for (int i = 0; i < backlog; ++i) send(world, 0);
      loop_->set_leader(true);
      feeder = std::thread([&] { feed(world, static_cast<std::uint64_t>(backlog), stop); });
    }
    const std::uint64_t hot_before = steps_of(world, 0);
    const auto began = Moment::now();
    std::vector<double> single;
    for (int i = 0; i < kSingle; ++i) {
      const int id = 1 + i % others;
      const std::uint64_t before = steps_of(world, id);
      const auto one = Moment::now();
      send(world, id);
      while (steps_of(world, id) == before) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      single.push_back(ms_since(one));
    }
    const double rate = static_cast<double>(steps_of(world, 0) - hot_before) / ms_since(began) * 1000;
    const std::uint64_t left = must(worlds_->poll(kContext, {{world, {}}})).at(0).inbox_entries;
    stop = true;
    if (feeder.joinable()) feeder.join();
    std::printf(
        "| in parallel with an instance that has %d events (%llu still in the inbox) | %d | %.0f of the busy one | "
        "%.1f | %.1f |\n",
        backlog, static_cast<unsigned long long>(left), others, rate, at(single, 0.5), at(single, 0.99));
    std::fflush(stdout);
    settle(world);
  }

  // Measures the latency of single events of actor 1 while deployments of actor 2 always have pending events.
  void measure_beside_another_owner(const std::string& world, const std::vector<std::string>& others) {
    settle(world);
    std::atomic<bool> stop{false};
    std::thread feeder;
    if (!others.empty()) feeder = std::thread([&] { feed_all(others, stop); });
    std::uint64_t before_others = 0, after_others = 0;
    for (const std::string& other : others) before_others += height(other);
    const auto began = Moment::now();
    std::vector<double> single;
    for (int i = 0; i < kSingle; ++i) {
      const std::uint64_t before = height(world);
      const auto one = Moment::now();
      send(world, i % 100);
      wait(world, before + 2);
      single.push_back(ms_since(one));
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    const double took = ms_since(began);
    for (const std::string& other : others) after_others += height(other);
    stop = true;
    if (feeder.joinable()) feeder.join();
    std::printf("| in parallel with %zu busy deployments of another owner | %.0f | %.1f | %.1f |\n", others.size(),
                static_cast<double>(after_others - before_others) / 2 / took * 1000, at(single, 0.5), at(single, 0.99));
    std::fflush(stdout);
    for (const std::string& other : others) settle(other);
  }

  // Measures the latency of send_event() for a caller of the service, with the other manifests in the context.
  void measure_sending(const char* label, bool cached) {
    service::ManifestCache cache;
    const service::WorkflowStores in{*store_, *worlds_, cached ? &cache : nullptr};
    service::SendEvent request{"bench/Hit", R"({"id": 1})", "bench/few@1"};
    std::vector<double> took;
    for (int i = 0; i < kSingle; ++i) {
      const auto one = Moment::now();
      must(service::send_event(by_, in, request));
      took.push_back(ms_since(one));
    }
    std::printf("| %s | %.2f | %.2f |\n", label, at(took, 0.5), at(took, 0.99));
    std::fflush(stdout);
  }

  // Writes a journal of `entries` facts, equal to the facts of real steps, with a snapshot at its end. Then measures
  // the loading of the journal and the latency of single events.
  void measure_long_journal(const std::string& world, std::uint64_t entries) {
    loop_->set_leader(false);
    auto loaded = must(LoadedDeployment::load(*worlds_, kContext, world));
    const Sample sampled{1, std::string(32, '\0')};
    auto begin = Moment::now();
    for (std::uint64_t i = 0; loaded.state().height < entries; ++i) {
      const std::uint64_t id = i % 100;
      must(loaded.decide({sampled, EventArrived{"bench/Hit@1", json{{"id", id}}.dump()}}));
      const InstanceId cell{"bench/count@1", must(encode_cbor(json(id)))};
      StepOutput output;
      output.state = must(encode_cbor(json{{"n", i}}));
      must(loaded.decide(
          {sampled, StepCompleted{cell, loaded.state().find_instance(cell)->inbox.front().id, std::move(output)}}));
      if (loaded.pending_facts() >= 500) must(loaded.commit(*worlds_, 0));
    }
    must(loaded.decide({sampled, TakeSnapshot{}}));
    must(loaded.commit(*worlds_, 0));
    std::printf("| a journal of %llu facts | written without an engine, 500 a commit, in %.1f s |\n",
                static_cast<unsigned long long>(loaded.state().height), ms_since(begin) / 1000);
    begin = Moment::now();
    must(LoadedDeployment::load(*worlds_, kContext, world));
    std::printf("| | loaded from its snapshot in %.1f ms |\n", ms_since(begin));
    begin = Moment::now();
    must(LoadedDeployment::load(*worlds_, kContext, world, {.from_beginning = true}));
    std::printf("| | folded from its first fact in %.1f s |\n", ms_since(begin) / 1000);
    begin = Moment::now();
    const auto found = must(verify_deployments(*worlds_, *store_, kContext));
    std::printf("| | verified, with the other deployments, in %.1f s: %zu findings |\n", ms_since(begin) / 1000,
                found.size());
    loop_->set_leader(true);
    settle(world);
    std::vector<double> single;
    for (int i = 0; i < kSingle; ++i) {
      const std::uint64_t before = height(world);
      const auto one = Moment::now();
      send(world, i % 100);
      wait(world, before + 2);
      single.push_back(ms_since(one));
      settle(world);
    }
    std::printf("| | a step of this deployment: p50 %.1f ms, p99 %.1f ms |\n", at(single, 0.5), at(single, 0.99));
    std::fflush(stdout);
  }

  void measure_replay(const std::string& world) {
    auto begin = Moment::now();
    const auto loaded = must(LoadedDeployment::load(*worlds_, kContext, world, {.from_beginning = true}));
    const double folded = ms_since(begin);
    begin = Moment::now();
    const auto replayed = must(service::verify_workflow(by_, {*store_, *worlds_}, world, take_));
    const double took = ms_since(begin);
    if (replayed.mismatch) std::printf("a replay differs\n");
    const double entries = static_cast<double>(loaded.state().height);
    std::printf(
        "| a journal of %llu facts | folded: %.0f facts/s | folded, with each step executed again: %.0f facts/s |\n",
        static_cast<unsigned long long>(loaded.state().height), entries / folded * 1000,
        static_cast<double>(replayed.entries) / took * 1000);
  }

 private:
  static PostRules rules_of(int id) {
    PostRules rules;
    rules.targets = {{store_name({"bench/count@1", must(encode_cbor(json(id)))}), "its instance"}};
    return rules;
  }
  // Keeps `wanted` events in the inbox of instance 0.
  void feed(const std::string& world, std::uint64_t wanted, const std::atomic<bool>& stop) {
    auto worlds = must(stores_->open_workflows());
    const Fields fields{{"schema", "bench/Hit@1"}, {"value", json{{"id", 0}}.dump()}};
    while (!stop) {
      const bool enough = must(worlds->poll(kContext, {{world, {}}})).at(0).inbox_entries >= wanted;
      const auto posted = enough ? Result<PostResult>() : worlds->post(kContext, world, "event", fields, rules_of(0));
      if (enough || !posted)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));  // the inbox is full, as intended
    }
  }
  void feed_all(const std::vector<std::string>& all, const std::atomic<bool>& stop) {
    constexpr std::uint64_t kWaiting = 50;
    auto worlds = must(stores_->open_workflows());
    PostRules rules;
    rules.targets = {{store_name({"other/count@1", must(encode_cbor(json(0)))}), "its instance"}};
    const Fields fields{{"schema", "other/Hit@1"}, {"value", json{{"id", 0}}.dump()}};
    while (!stop) {
      for (const std::string& world : all) {
        if (must(worlds->poll(kContext, {{world, {}}})).at(0).inbox_entries >= kWaiting) continue;
        for (std::uint64_t i = 0; i < kWaiting && !stop; ++i)
          if (!worlds->post(kContext, world, "event", fields, rules)) break;  // the inbox is full
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  std::uint64_t steps_of(const std::string& world, int id) {
    if (seen_of_ != world) {
      LoadOptions options;
      options.cache = {1'000'000, std::size_t{1} << 30};
      auto loaded = must(LoadedDeployment::load(*worlds_, kContext, seen_of_ = world, options));
      must(loaded.load_all_cells());
      seen_ = loaded.state();
    }
    const auto see = [this](const WorkflowFact& fact) -> Result<bool> {
      if (auto problem = fold(seen_, fact)) return fail(Code::invalid, problem->text);
      return true;
    };
    must(for_each_fact(*worlds_, kContext, world, seen_.height, see));
    const InstanceState* cell = seen_.find_instance({"bench/count@1", must(encode_cbor(json(id)))});
    return cell == nullptr ? 0 : cell->steps;
  }
  void settle(const std::string& world, std::uint64_t events = 0, std::uint64_t facts = 2) {
    if (events > 0) wait(world, 1 + events * facts);
    for (;;) {
      const std::uint64_t before = height(world);
      std::this_thread::sleep_for(std::chrono::milliseconds(events > 0 ? 0 : 5));
      if (must(worlds_->read_inbox(kContext, world, 1)).empty() && height(world) == before) return;
    }
  }
  SystemClock clock_;
  std::unique_ptr<EmbeddedRedis> redis_;
  std::unique_ptr<StoreFactory> stores_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<WorkflowStore> worlds_;
  std::unique_ptr<workflow::EnginePool> engines_;
  StepRunner take_;
  LoopPool pool_{"workflows"};
  std::unique_ptr<PooledDeploymentLoop> loop_;
  service::RequestContext by_{kContext, 1, EntryPoint::command, true};
  std::string seen_of_;  // name of a deployment
  DeploymentState seen_;
  std::atomic<bool> stop_{false};
  std::thread runner_;
};

}  // namespace

int main(int argc, char** argv) {
  const int events = argc > 1 ? std::atoi(argv[1]) : 10000;
  const std::uint64_t facts = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1000000;
  const ScratchFolder folder("mycojobs-workflows");
  Bench bench(folder.path());
  std::printf("| | instances | events/s | step p50 ms | step p99 ms |\n|---|---|---|---|---|\n");
  const std::string few = bench.apply("few"), many = bench.apply("many"), paid = bench.apply("paid"),
                    busy = bench.apply("busy");
  bench.measure("no effect", few, events, 10, false);
  bench.measure("no effect", many, events, 10000, false);
  bench.measure("one effect, until the step of its receipt", paid, events / 4, 10, true);
  const std::string crowd = bench.apply("crowd");
  for (const int backlog : {0, events}) {
    bench.measure_beside_a_busy_one(busy, backlog, 100);
    bench.measure_beside_a_busy_one(crowd, backlog, 10000);
  }
  const std::string quiet = bench.apply("quiet");
  std::printf("| | steps/s of the other owner | step p50 ms | step p99 ms |\n|---|---|---|---|\n");
  bench.measure_beside_another_owner(quiet, {});
  for (const int deployments : {1, 10, 100})
    bench.measure_beside_another_owner(quiet, bench.apply_of_another_owner(deployments));
  bench.measure_replay(few);
  for (int i = 0; i < 16; ++i) bench.apply("beside" + std::to_string(i));
  std::printf("| `workflow.send` in the server, 20 manifests in the context | p50 ms | p99 ms |\n|---|---|---|\n");
  bench.measure_sending("before: each manifest is parsed for each event", false);
  bench.measure_sending("after: manifests are identified by hash", true);
  bench.measure_long_journal(bench.apply("long"), facts);
}
