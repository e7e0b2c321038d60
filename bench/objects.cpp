// Measures calls of the object store with 1,000, 10,000 and 100,000 objects in a real Redis. Prints a table of medians.
//   ninja -C build objects_bench && build/bin/objects_bench > bench/objects.md

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "bench/support.h"
#include "store/objects/object_store.h"
#include "store/redis/embedded_redis.h"
#include "store/redis/redis_stores.h"

using namespace mycojobs;

namespace {

const ObjectKind kItem{"default", "item"};
constexpr int kSamples = 1000;
constexpr const char* kWords[] = {"red", "green", "blue", "large", "small", "heavy", "light", "round", "flat", "old"};

std::string item(std::uint64_t n) {
  return "{\"n\":" + std::to_string(n) + ",\"owner\":\"owner-" + std::to_string(n / 10) + "\",\"title\":\"" +
         kWords[n % 10] + " " + kWords[n / 10 % 10] + " thing number " + std::to_string(n) + "\",\"pad\":\"" +
         std::string(200, 'x') + "\"}";
}
std::string id_of(std::uint64_t n) { return "item-" + std::to_string(n); }

class Run {
 public:
  explicit Run(const std::string& folder) : redis_(must(EmbeddedRedis::start(folder))) {
    RedisStoreConfig config;
    config.default_url = EmbeddedRedis::url(folder);
    stores_ = make_redis_stores(config);
    objects_ = must(stores_->open_objects());
    const auto store = must(stores_->open());
    Job job;
    job.caller_id = job.context_id = 1;
    job.script = "x";
    job.script_type = "osis";
    must(store->submit(job));
    ClaimRequest request;
    request.context = request.runner = 1;
    request.instance = "bench";
    request.queues = {"queue:osis"};
    request.lease_ms = 3600000;
    claim_ = must(store->claim(request)).jobs.at(0).ref;
    must(objects_->declare(claim_, kItem, {"n", "owner"}, {"title"}));
  }

  void grow_to(std::uint64_t count) {
    while (count_ < count) {
      std::vector<ObjectOp> ops;
      for (int i = 0; i < 100 && count_ < count; ++i, ++count_) ops.push_back(put(count_));
      must(objects_->write(claim_, call(), ops));
    }
  }
  void measure() {
    std::mt19937_64 random(count_);
    const auto any = [&] { return random() % count_; };
    const auto owner = [&] { return "owner-" + std::to_string(any() / 10); };
    std::printf("| %llu ", static_cast<unsigned long long>(count_));
    row([&] { must(objects_->write(claim_, call(), std::vector{put(any())})); });
    row([&] { must(objects_->get(1, kItem, id_of(any()))); });
    row([&] { must(objects_->find(1, kItem, {"owner", owner(), {}, {}}, "", 100)); });
    row([&] {
      const auto from = static_cast<double>(any());
      must(objects_->find(1, kItem, {"n", {}, from, from + 9}, "", 100));
    });
    row([&] { must(objects_->search(1, kItem, std::to_string(any()), "", 100)); });
    row([&] { must(objects_->search(1, kItem, "thing " + std::to_string(any()), "", 100)); });
    row([&] { must(objects_->search(1, kItem, "red", "", 10)); });
    row([&] { must(objects_->list(1, kItem, id_of(any()), 10)); });
    std::printf("|\n");
    std::fflush(stdout);
  }

 private:
  static ObjectOp put(std::uint64_t n) { return {ObjectOp::Verb::put, kItem, id_of(n), std::nullopt, item(n)}; }
  std::string call() { return std::to_string(++calls_); }
  template <class Call>
  static void row(const Call& call) {
    std::vector<double> times;
    for (int i = 0; i < kSamples; ++i) {
      const auto begin = std::chrono::steady_clock::now();
      call();
      times.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count());
    }
    std::nth_element(times.begin(), times.begin() + kSamples / 2, times.end());
    std::printf("| %.0f ", times[kSamples / 2]);
  }

  std::unique_ptr<EmbeddedRedis> redis_;
  std::unique_ptr<StoreFactory> stores_;
  std::unique_ptr<ObjectStore> objects_;
  ClaimRef claim_;
  std::uint64_t count_ = 0, calls_ = 0;
};

}  // namespace

int main() {
  const ScratchFolder folder("mj-objects");
  std::printf(
      "# Objects: microseconds for each call, medians of %d\n\n"
      "Measured by `objects_bench` (bench/objects.cpp) with one client and a private Redis with `appendfsync everysec` "
      "on a\nsocket. The objects have about 290 bytes, two indexed fields and one text of five words. Ten objects "
      "match the owner, and\nten match the range.\n\n"
      "| objects | put | get | find equal | find range | search, rare word | common and rare word | common word, 10 | "
      "list, 10 |\n"
      "|---|---|---|---|---|---|---|---|---|\n",
      kSamples);
  {
    Run run(folder.path());
    for (std::uint64_t count : {1000, 10000, 100000}) {
      run.grow_to(count);
      run.measure();
    }
  }
  return 0;
}
