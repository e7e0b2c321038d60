// Measures a message between two tenants: messages per second through the whole pipeline, time from sending to the
// result, Redis commands, CPU time of the coordinators, and the cost of signatures. Each message starts one job, which
// a runner ends at once. Prints table rows. Options: the program of another build, and http only.
//   ninja -C build programs tenants_bench && build/bin/tenants_bench [PROGRAM [http]]
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "bench/store_bench.h"
#include "messaging/envelope.h"
#include "model/codec.h"
#include "security/signatures.h"
#include "store/redis/embedded_redis.h"
#include "store/redis/redis_stores.h"

using namespace mycojobs;

namespace {

constexpr Id kHere = 7, kThere = 9, kSender = 12, kSenderThere = 5, kRunner = 3;
constexpr int kMany = 2000, kSingle = 200, kPortHere = 17611, kPortThere = 17612;

std::string address(int port) { return "http://127.0.0.1:" + std::to_string(port); }

class Server {
 public:
  explicit Server(const std::string& folder) : folder_(folder), redis_(must(EmbeddedRedis::start(folder))) {
    RedisStoreConfig config;
    config.default_url = url();
    stores_ = make_redis_stores(config);
    store_ = must(stores_->open());
    plain_ = std::make_unique<RedisConnection>(must(connection_options(config, kHere)));
  }
  std::string url() const { return EmbeddedRedis::url(folder_); }
  const std::string& folder() const { return folder_; }
  Store& store() { return *store_; }
  StoreFactory& stores() { return *stores_; }
  // Number of client calls (one round trip each), and number of commands, including commands of scripts.
  double trips() { return info("total_reads_processed:"); }
  double commands() { return info("total_commands_processed:"); }

 private:
  double info(const std::string& name) {
    const std::string text(must(plain_->command({"INFO", "stats"})).text());
    const std::size_t found = text.find(name);
    return found == std::string::npos ? 0 : std::stod(text.substr(found + name.size()));
  }
  std::string folder_;
  std::unique_ptr<EmbeddedRedis> redis_;
  std::unique_ptr<StoreFactory> stores_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<RedisConnection> plain_;
};

Message message_of(Id id, const std::string& to, const std::string& its_key) {
  Message message;
  message.id = id;
  message.caller_id = kSender;
  message.context_id = kHere;
  message.target_context = kThere;
  message.target_address = to;
  message.target_key = its_key;
  message.created_at = static_cast<std::uint32_t>(::time(nullptr));
  Job job;
  job.id = id;
  job.caller_id = kSender;
  job.context_id = kHere;
  job.script = "pass";
  job.script_type = "bench";
  message.job.push_back(job);
  return message;
}

class Pair {
 public:
  // http: two servers and two coordinators; otherwise one of each.
  Pair(const std::string& folder, const std::string& program, bool http)
      : here_(folder + "/a"), own_(http ? std::make_unique<Server>(folder + "/b") : nullptr), http_(http) {
    const SigningKey of_here = SigningKey::make(), of_there = SigningKey::make();
    key_of_there_ = of_there.public_key();
    must(of_here.save(folder + "/here.key"));
    must(of_there.save(folder + "/there.key"));
    actor(here_, kSender, {});
    if (http_) {
      actor(there(), kSenderThere, address(kPortHere));
      runner(here_, kHere, address(kPortThere), of_there.public_key());
      runner(there(), kThere, address(kPortHere), of_here.public_key());
    }
    context(here_, kHere, kSender);
    context(there(), kThere, http_ ? kSenderThere : kSender);
    const auto start = [&](Server& server, const std::string& key, int port) {
      coordinators_.push_back(std::make_unique<BenchProgram>(std::vector<std::string>{
          program, "coordinator", "--redis", server.url(), "--state-dir", server.folder() + "/c", "--log-level",
          "error", "--coordinator-key", folder + "/" + key, "--api-listen", "127.0.0.1:" + std::to_string(port)}));
    };
    start(here_, "here.key", kPortHere);
    if (http_) start(there(), "there.key", kPortThere);
    runner_ = std::thread([this] { end_jobs(there().stores(), kThere, kRunner, stop_); });
    must_end(send(1));  // waits until both coordinators run
  }
  ~Pair() {
    stop_ = true;
    runner_.join();
  }

  void measure(const char* label) {
    std::vector<double> single;
    for (int i = 0; i < kSingle; ++i) {
      const std::string key = write();
      const auto begin = Moment::now();
      must(here_.store().push_to_msg_out(kHere, key));
      must_end(key);
      single.push_back(ms_since(begin));
    }
    std::vector<std::string> keys;
    for (int i = 0; i < kMany; ++i) keys.push_back(write());
    const auto sum = [&](auto what) { return what(here_) + (own_ ? what(*own_) : 0.0); };
    const auto trips = [](Server& server) { return server.trips(); };
    const auto commands = [](Server& server) { return server.commands(); };
    const double trips_before = sum(trips), commands_before = sum(commands), cpu_before = cpu_ms();
    const auto begin = Moment::now();
    for (const std::string& key : keys) must(here_.store().push_to_msg_out(kHere, key));
    for (const std::string& key : keys) must_end(key, 20);
    const double took = ms_since(begin);
    std::printf("| %s | %.0f | %.1f | %.1f | %.1f | %.0f | %.2f |\n", label, kMany / took * 1000, at(single, 0.5),
                at(single, 0.99), (sum(trips) - trips_before) / kMany, (sum(commands) - commands_before) / kMany,
                (cpu_ms() - cpu_before) / kMany);
    std::fflush(stdout);
  }
  // Adds unrelated records, as in a context that is in use.
  void fill(int count) {
    for (Id i = 1; i <= static_cast<Id>(count); ++i)
      must(
          here_.store().save(kHere, "job:1:" + std::to_string(i), {{"id", std::to_string(i)}, {"status", "finished"}}));
  }

 private:
  Server& there() { return own_ ? *own_ : here_; }
  void actor(Server& server, Id id, const std::string& where) {
    Actor made;
    made.id = id;
    made.pubkey = key_.public_key();
    if (!where.empty()) made.address = {where};
    RedisStoreConfig config;
    config.default_url = server.url();
    RedisConnection::Options options = must(connection_options(config, kHere));
    options.database = 0;  // database of the actors
    RedisConnection all(std::move(options));
    const Fields fields = encode(made);
    Arguments set{"HSET", redis_key(made)};
    for (const auto& [name, value] : fields) set.add(name).add(value);
    must(all.command(set));
  }
  static void context(Server& server, Id id, Id submitter) {
    Context made;
    made.id = id;
    made.admins = {99};
    made.submitters = {submitter};
    must(server.store().save(id, redis_key(made), encode(made)));
  }
  static void runner(Server& server, Id context, const std::string& where, const std::string& pubkey) {
    Runner made;
    made.id = 50;
    made.address = where;
    made.pubkey = pubkey;
    must(server.store().save(context, redis_key(made), encode(made)));
  }
  // Stores a signed message without sending it.
  std::string write() {
    Message message = message_of(++last_, http_ ? address(kPortThere) : "", http_ ? key_of_there_ : "");
    must(sign(message, key_));
    const std::string key = redis_key(message);
    must(here_.store().save(kHere, key, encode(message)));
    return key;
  }
  std::string send(int) {
    const std::string key = write();
    must(here_.store().push_to_msg_out(kHere, key));
    return key;
  }
  void must_end(const std::string& key, int look_every_ms = 0) {
    constexpr std::string_view kAsked[] = {"status", "error"};
    while (true) {
      const Fields fields = must(here_.store().load_fields(kHere, key, kAsked));
      const std::string_view status = field_of(fields, "status");
      if (status == "processed") return;
      if (status == "error") {
        std::fprintf(stderr, "%s: %s\n", key.c_str(), std::string(field_of(fields, "error")).c_str());
        std::exit(1);
      }
      std::this_thread::sleep_for(look_every_ms > 0 ? std::chrono::microseconds(look_every_ms * 1000)
                                                    : std::chrono::microseconds(300));
    }
  }
  double cpu_ms() const {
    double all = 0;
    for (const auto& each : coordinators_) all += each->cpu_ms();
    return all;
  }

  Server here_;
  std::unique_ptr<Server> own_;
  bool http_;
  SigningKey key_ = SigningKey::make();
  std::string key_of_there_;
  std::vector<std::unique_ptr<BenchProgram>> coordinators_;
  std::atomic<bool> stop_{false};
  std::thread runner_;
  Id last_ = 0;
};

void signatures() {
  constexpr int kTimes = 5000;
  const SigningKey key = SigningKey::make();
  Message message = message_of(1, address(kPortThere), key.public_key());
  const auto row = [&](const char* what, const auto& work) {
    const auto begin = Moment::now();
    for (int i = 0; i < kTimes; ++i) work();
    std::printf("| %s | %.0f |\n", what, ms_since(begin) * 1000 / kTimes);
  };
  row("sign a message", [&] { must(sign(message, key)); });
  row("check the signature", [&] {
    must(check_signature(message, {key.public_key(), message.created_at, kSignatureWindowS}));
  });
  const nlohmann::json body{{"message", to_json(message)}};
  const Envelope envelope{EnvelopeKind::message, kThere, message.created_at, {}};
  nlohmann::json sealed;
  row("seal it in an envelope", [&] { sealed = must(seal(envelope, body, key)); });
  row("check the seal", [&] { must(check_seal(sealed, {key.public_key(), message.created_at, kSignatureWindowS})); });
}

}  // namespace

int main(int argc, char** argv) {
  const std::string program =
      argc > 1 ? argv[1] : (std::filesystem::read_symlink("/proc/self/exe").parent_path() / "mycojobs").string();
  std::printf(
      "| transport | messages/s | p50, ms | p99, ms | round trips to Redis a message | commands in Redis | CPU of the "
      "coordinators, ms a message |\n|---|---|---|---|---|---|---|\n");
  if (argc <= 2) {
    const ScratchFolder folder("mj-local");
    Pair(folder.path(), program, false).measure("local");
  }
  {
    const ScratchFolder folder("mj-http");
    Pair pair(folder.path(), program, true);
    pair.measure("http");
    pair.fill(50000);
    pair.measure("http, 50,000 more records in the context");
  }
  std::printf("\n| signatures | us |\n|---|---|\n");
  signatures();
  return 0;
}
