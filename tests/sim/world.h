// A deterministic world on one thread: simulated time, an in-process server, and programs that act step by step. The
// same seed gives the same history, except for the ids that the store generates.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <iosfwd>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "store/flow_store.h"
#include "store/redis/redis_link.h"
#include "support/redis/memory_server.h"

namespace mycojobs::sim {

using Ms = std::uint64_t;  // milliseconds since the start of the world; no program can read this time
inline constexpr Ms kNever = UINT64_MAX;
inline constexpr Ms kStartUnixMs = 1700000000000;  // Unix time at the start of the world, on a correct clock
inline constexpr Id kContext = 1;

// An operating system process: the unit of kills and stops.
class Program {
 public:
  explicit Program(std::string name) : name_(std::move(name)) {}
  virtual ~Program() = default;
  const std::string& name() const { return name_; }
  bool is_killed() const { return is_killed_; }

 protected:
  virtual void on_killed() {}

 private:
  friend class World;
  std::string name_;
  bool is_killed_ = false;
  Ms stopped_until_ = 0;
};

// A thread of a program. A thread is not stepped again while its step is active.
class Actor {
 public:
  explicit Actor(Program* program) : program_(program) {}  // nullptr: the thread cannot be stopped
  virtual ~Actor() = default;
  virtual Ms due() const = 0;
  virtual void step() = 0;
  virtual std::string thread_name() const { return "thread"; }

 private:
  friend class World;
  Program* program_;
  bool is_stepping_ = false;
};

// The fault that is injected into a call. reply_lost: the call was executed. killed_before and killed_after: the caller
// is killed before or after the call is executed.
enum class CallFault { none, request_lost, reply_lost, killed_before, killed_after };

// The probability of faults of each call: 1 in n; 0: never.
struct FaultRates {
  std::uint32_t cut = 0;   // the connection is lost before or after the call is executed; the next call reconnects
  std::uint32_t late = 0;  // executed up to late_ms after the caller has abandoned the call
  // Takes up to slow_ms, before or after the call is executed; other programs act in the meantime.
  std::uint32_t slow = 0;
  std::uint32_t stop = 0;  // the caller is stopped for up to stop_ms, before or after the call is executed
  Ms late_ms = 3000, slow_ms = 0, stop_ms = 0;
};

// Numbers of the injected faults. overtaken: calls that were delayed while later calls of other programs were executed.
struct FaultCounts {
  std::size_t requests_lost = 0, replies_lost = 0, cut = 0, abandoned = 0, slow = 0, overtaken = 0, killed = 0,
              stopped = 0;
  FaultCounts& operator+=(const FaultCounts&);
};
std::string to_text(const FaultCounts&);

// A bug planted to check that the simulation finds it: either a replacement in every script that contains `original`,
// or a wrong behaviour of the agent.
struct PlantedBug {
  const char* name;
  std::string_view original = {}, replacement = {};
  enum class AgentBug { none, fences_late, fences_never, forgets_reports } agent = AgentBug::none;
  std::uint64_t first_seed = 0;  // No earlier seed shows the bug.
};

// The clock of a host or of the server: the time of the world, with an offset that simulates a wrong Unix time.
class ShiftedClock final : public Clock {
 public:
  ShiftedClock(const Ms& now, Ms boot) : now_(now), boot_(boot) {}
  std::uint64_t unix_ms() const override { return kStartUnixMs + now_ + static_cast<std::uint64_t>(shift_ms); }
  std::uint64_t boot_ms() const override { return boot_ + now_; }
  Ms world_time(std::uint64_t boot) const { return boot > boot_ ? boot - boot_ : 0; }
  std::int64_t shift_ms = 0;

 private:
  const Ms& now_;
  Ms boot_;
};

// A random number generator that depends only on its seed.
class RandomGenerator {
 public:
  explicit RandomGenerator(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() {  // Source: S. Vigna, splitmix64
    std::uint64_t z = state_ += 0x9e3779b97f4a7c15U;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
    return z ^ (z >> 31);
  }

 private:
  std::uint64_t state_;
};

class World {
 public:
  explicit World(std::uint64_t seed);
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  Ms now() const { return now_; }
  const Ms& time() const { return now_; }
  std::uint64_t random_below(std::uint64_t bound) { return bound == 0 ? 0 : random_.next() % bound; }
  bool random_one_in(std::uint32_t bound) { return bound > 0 && random_below(bound) == 0; }
  // Random numbers drawn within `draw` depend only on the seed and the name, not on earlier draws. Thus one event can
  // be left out without changing the others.
  template <class Draw>
  auto draw_independently(const std::string& name, Draw draw) {
    const RandomGenerator before = std::exchange(random_, make_named_stream(name));
    auto drawn = draw();
    random_ = before;
    return drawn;
  }
  // Returns whether the event with this name happens, and records it. Returns false if it is in suppressed_events.
  bool should_inject(const std::string& name);
  std::set<std::string> suppressed_events;
  const std::vector<std::string>& event_names() const { return event_names_; }

  MemoryServer& server() { return server_->server; }
  ShiftedClock& server_clock() { return server_clock_; }
  // Stops the server for this time; then it restarts with the same data.
  void restart_server(Ms outage_ms);
  bool is_server_up() const { return now_ >= server_up_at_; }
  std::uint64_t server_starts() const { return server_starts_; }

  // Stores of a program; they end with the program.
  std::unique_ptr<Store> open_store(Program&);
  std::unique_ptr<FlowStore> open_flows(Program&);

  void add(Actor& actor) { actors_.push_back(&actor); }
  void remove(Actor& actor) { std::erase(actors_, &actor); }
  void schedule(Ms time_ms, std::function<void()> event) { events_.emplace(time_ms, std::move(event)); }
  // Returns whether only the caller's step is active, so that ended actors may be deleted.
  bool is_alone() const { return active_steps_ <= 1; }
  void kill(Program&);
  void revive(Program&);
  void stop(Program&, Ms duration);
  bool is_stopped(const Program& program) const { return program.stopped_until_ > now_; }

  // Runs the steps that are due before the given time, and then sets the time.
  void run_until(Ms moment);
  // Also stops once `done` returns true, which is checked after each step. Returns false if that did not happen.
  bool run_until(Ms moment, const std::function<bool()>& done);

  // Chooses the fault of each call of a program. `write` is the number of the call among the writing calls, 0 for a
  // read.
  std::function<CallFault(const Program&, const ServerCall&, std::uint64_t write)> choose_fault;
  std::uint64_t writes() const { return writes_; }
  FaultRates fault_rates;
  const FaultCounts& fault_counts() const { return fault_counts_; }
  PlantedBug planted_bug{"none"};
  const Script& apply_planted_bug(const Script&);
  std::function<void()> after_step;

  // Records an event. The last events are printed with the first violation, which ends the world.
  void note(std::string text);
  void report_violation(const std::string& text);
  bool is_violated() const { return !violation_.empty(); }
  const std::string& violation() const { return violation_; }
  std::uint64_t history() const { return history_; }  // digest of all notes

 private:
  friend class SimLink;
  struct PatchedScript {
    std::string sha1, text;
    Script script;
  };
  // All worlds share one server in turn, so that the scripts are compiled only once.
  struct Server {
    struct RedirectedClock final : Clock {
      const Clock* source = nullptr;
      std::uint64_t unix_ms() const override { return source->unix_ms(); }
      std::uint64_t boot_ms() const override { return source->boot_ms(); }
    } clock;
    MemoryServer server{clock};
  };
  static std::unique_ptr<Server>& spare_server();

  RandomGenerator make_named_stream(const std::string& name) const;
  std::string make_call_name(const Program&);
  Fault decide_fault(const ServerCall&);
  struct NextEvent {
    Ms due = kNever;
    Actor* actor = nullptr;  // null: an event without an actor
  };
  NextEvent find_next_event();
  bool step(Ms moment);
  OpenLink make_open_link(Program&);
  void wait(Ms duration, const Program&);                 // for a thread within its step
  void inject_delays(Program&, const std::string& call);  // injects delays and stops

  std::uint64_t seed_;
  RandomGenerator random_;
  std::map<std::string, std::uint64_t> call_counts_;  // by program
  std::vector<std::string> event_names_;
  FaultCounts fault_counts_;
  Ms now_ = 0, server_up_at_ = 0;
  std::uint64_t server_starts_ = 1, writes_ = 0, total_calls_ = 0, history_ = 14695981039346656037ULL;
  ShiftedClock server_clock_{now_, 0};
  std::unique_ptr<Server> server_;
  std::vector<Actor*> actors_;
  std::multimap<Ms, std::function<void()>> events_;
  Program* caller_ = nullptr;  // the caller of the current server call
  bool kills_caller_ = false;  // the caller dies of the current call
  int wait_depth_ = 0, active_steps_ = 0;
  unsigned steps_at_same_time_ = 0;
  std::map<std::string_view, std::unique_ptr<PatchedScript>> patched_scripts_;
  std::deque<std::string> notes_;
  std::string violation_;
};

}  // namespace mycojobs::sim
