// Measures a workflow with many cells: the time of `show`, of a page of `cells` and of `list`, the time from the start
// of a coordinator to its first step, events per second over random cells, and the memory of the process. Uses a real
// Redis server and the real engine. Prints table rows.
//   ninja -C build programs cells_bench && build/bin/cells_bench [CELLS [EVENTS]]
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "bench/store_bench.h"
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
constexpr const char* kDeployment = "bench/cells@1";
constexpr const char* kWorkflow = "bench/cell@1";
constexpr int kPadBytes = 85;  // a state has about 100 bytes

constexpr const char* kManifest = R"json({
  "name": "bench/cells@1",
  "schemas": {"bench/Hit@1": {"type": "object", "required": ["id"], "properties": {"id": {"type": "integer"}}}},
  "workflows": [{"name": "bench/cell@1", "state": {"type": "object", "required": ["n", "pad"], "properties": {
    "n": {"type": "integer"}, "pad": {"type": "string"}}}, "event": "bench/Hit@1", "key_schema": {"type": "integer"},
    "effects_emitted": [], "impl": {"module": "cell.lua", "entrypoint": "step"}}],
  "routing": {"subscriptions": [{"event": "bench/Hit@1", "workflow": "bench/cell@1", "key_field": "id"}]}
})json";
constexpr const char* kCode = R"lua(
function step(state, event)
  state = state or {n = 0, pad = string.rep('x', 85)}
  state.n = state.n + 1
  return state
end
)lua";

std::string event_of(std::uint64_t id) { return json{{"id", id}}.dump(); }

double resident_mib() { return resident_mib_of("self"); }

class Bench {
 public:
  Bench(const std::string& folder, std::uint64_t cells) : cells_(cells), redis_(must(EmbeddedRedis::start(folder))) {
    config_.default_url = EmbeddedRedis::url(folder);
    // A process of its own writes the cells, so that its memory does not count.
    const pid_t child = fork();
    if (child == 0) {
      write_cells();
      _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    if (status != 0) std::exit(1);
    stores_ = make_redis_stores(config_);
    store_ = must(stores_->open());
    worlds_ = must(stores_->open_workflows());
    workflow::EngineOptions options;
    options.program = mj::test::program_path("mycojobs-workflowhost");
    engines_ = std::make_unique<workflow::EnginePool>(std::move(options), kContext);
  }
  ~Bench() { loop_.reset(); }

  void measure(std::uint64_t events) {
    print("resident memory of the process without the deployment, MiB", resident_mib());
    measure_start();
    measure_rate(events);
    print("resident memory of the coordinator, MiB", resident_mib());
    measure_reads();
    print("resident memory of the coordinator after the reads, MiB", resident_mib());
  }

 private:
  void write_cells() {
    auto stores = make_redis_stores(config_);
    auto store = must(stores->open());
    auto worlds = must(stores->open_workflows());
    service::ApplyWorkflow request;
    request.code = {{"cell.lua", kCode}};
    must(service::apply_workflow({kContext, 1, EntryPoint::command, true}, {*store, *worlds}, json::parse(kManifest),
                                 request));
    auto deployment = must(LoadedDeployment::load(*worlds, kContext, kDeployment));
    const std::string state = must(encode_cbor(json{{"n", 1}, {"pad", std::string(kPadBytes, 'x')}}));
    const Sample sample{1, std::string(32, 's')};
    const auto begin = Moment::now();
    for (std::uint64_t id = 0; id < cells_; ++id) {
      must(deployment.decide({sample, EventArrived{"bench/Hit@1", event_of(id)}}));
      const InstanceId instance{kWorkflow, must(encode_cbor(json(id)))};
      StepOutput output;
      output.state = state;
      const InboxEventId event = deployment.state().find_instance(instance)->inbox.front().id;
      must(deployment.decide({sample, StepCompleted{instance, event, std::move(output)}}));
      if (deployment.pending_facts() < 1000) continue;
      if (deployment.facts_since_snapshot() >= 20'000) must(deployment.decide({sample, TakeSnapshot{}}));
      must(deployment.commit(*worlds, 0));
    }
    must(deployment.decide({sample, TakeSnapshot{}}));
    must(deployment.commit(*worlds, 0));
    std::fprintf(stderr, "%llu cells written in %.1f s, %llu MiB resident\n", static_cast<unsigned long long>(cells_),
                 ms_since(begin) / 1000, static_cast<unsigned long long>(resident_mib()));
  }

  static void print(const char* label, double value) {
    std::printf("| %s | %.1f |\n", label, value);
    std::fflush(stdout);
  }
  std::uint64_t random_id() { return random_() % cells_; }
  void send(std::uint64_t id) {
    PostRules rules;
    rules.targets = {{store_name({kWorkflow, must(encode_cbor(json(id)))}), "a cell"}};
    const Fields fields{{"schema", "bench/Hit@1"}, {"value", event_of(id)}, {"source", "bench"}};
    must(worlds_->post(kContext, kDeployment, "event", fields, rules));
  }
  // Returns the number of steps of a cell.
  std::uint64_t steps(std::uint64_t id) {
    return must(service::show_instance(by_, {*store_, *worlds_}, {kWorkflow, std::to_string(id)})).at("steps");
  }
  std::uint64_t inbox() { return must(worlds_->poll(kContext, {{kDeployment, {}}})).at(0).inbox_entries; }
  void start_loop() {
    loop_ = must(PooledDeploymentLoop::start(
        *stores_, clock_, pool_, kContext,
        [this](const WorkflowSpec& spec, const WorkflowManifest& manifest, const StepRequest& request) {
          return engines_->step(spec, manifest, request);
        }));
    loop_->set_leader(true);
  }

  void measure_start() {
    std::vector<double> starts;
    for (int i = 0; i < 5; ++i) {
      const std::uint64_t id = random_id(), before = steps(id);
      send(id);
      const auto begin = Moment::now();
      start_loop();
      while (steps(id) == before) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      starts.push_back(ms_since(begin));
      loop_.reset();
    }
    print("from the start of a coordinator to its first step, ms", at(starts, 0.5));
    print("the slowest of 5 starts, ms", *std::max_element(starts.begin(), starts.end()));
  }
  void measure_rate(std::uint64_t events) {
    for (std::uint64_t i = 0; i < events; ++i) send(random_id());
    const auto begin = Moment::now();
    start_loop();
    while (inbox() > 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    print("events per second over random cells", static_cast<double>(events) / ms_since(begin) * 1000);
  }
  void measure_reads() {
    std::vector<double> shows, pages, lists;
    for (int i = 0; i < 300; ++i) {
      const auto begin = Moment::now();
      steps(random_id());
      shows.push_back(ms_since(begin));
    }
    print("show, ms: median", at(shows, 0.5));
    print("show, ms: 99 %", at(shows, 0.99));
    for (int i = 0; i < 20; ++i) {
      service::ListInstances request{kWorkflow, "", 100};
      request.after = store_name({kWorkflow, must(encode_cbor(json(random_id())))});
      auto begin = Moment::now();
      must(service::list_instances(by_, {*store_, *worlds_}, request));
      pages.push_back(ms_since(begin));
      begin = Moment::now();
      must(service::list_workflows(by_, {*store_, *worlds_}));
      lists.push_back(ms_since(begin));
    }
    print("a page of 100 cells, ms: median", at(pages, 0.5));
    print("list, ms: median", at(lists, 0.5));
    measure_parallel_shows();
  }
  void measure_parallel_shows() {
    std::vector<std::thread> threads;
    std::vector<double> worst(8);
    for (std::size_t i = 0; i < worst.size(); ++i)
      threads.emplace_back([this, &slowest = worst[i], seed = static_cast<unsigned>(i)] {
        auto store = must(stores_->open());
        auto worlds = must(stores_->open_workflows());
        std::mt19937_64 random(seed);
        for (int n = 0; n < 50; ++n) {
          const auto begin = Moment::now();
          must(service::show_instance(by_, {*store, *worlds}, {kWorkflow, std::to_string(random() % cells_)}));
          slowest = std::max(slowest, ms_since(begin));
        }
      });
    for (std::thread& thread : threads) thread.join();
    print("show, ms: the slowest of 8 x 50 in parallel", *std::max_element(worst.begin(), worst.end()));
  }

  std::uint64_t cells_;
  std::mt19937_64 random_{1};
  SystemClock clock_;
  std::unique_ptr<EmbeddedRedis> redis_;
  RedisStoreConfig config_;
  std::unique_ptr<StoreFactory> stores_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<WorkflowStore> worlds_;
  std::unique_ptr<workflow::EnginePool> engines_;
  LoopPool pool_{"workflows"};
  std::unique_ptr<PooledDeploymentLoop> loop_;
  service::RequestContext by_{kContext, 1, EntryPoint::command, true};
};

}  // namespace

int main(int argc, char** argv) {
  const std::uint64_t cells = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 1'000'000;
  const std::uint64_t events = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 20'000;
  const ScratchFolder folder("mycojobs-cells");
  std::printf("| %llu cells of 100 bytes, %llu events | |\n|---|---|\n", static_cast<unsigned long long>(cells),
              static_cast<unsigned long long>(events));
  Bench(folder.path(), cells).measure(events);
}
