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

using Ms = std::uint64_t;  // time of the world, which no program can read
inline constexpr Ms kNever = UINT64_MAX;
inline constexpr Ms kWall = 1700000000000;  // Unix time at the start of the world, on a correct clock
inline constexpr Id kContext = 1;

// An operating system process: the unit of kills and stops.
class Program {
 public:
  explicit Program(std::string name) : name_(std::move(name)) {}
  virtual ~Program() = default;
  const std::string& name() const { return name_; }
  bool killed() const { return killed_; }

 protected:
  virtual void on_killed() {}

 private:
  friend class World;
  std::string name_;
  bool killed_ = false;
  Ms stopped_until_ = 0;
};

// A thread of a program. A thread is not stepped again while its step is active.
class Actor {
 public:
  explicit Actor(Program* program) : program_(program) {}  // nullptr: the thread cannot be stopped
  virtual ~Actor() = default;
  virtual Ms due() const = 0;
  virtual void step() = 0;

 private:
  friend class World;
  Program* program_;
  bool within_ = false;
};

// The fate of a call. reply_lost: the call was executed. killed_before, killed_after: the caller dies, before or after
// the call is executed.
enum class Fate { fine, request_lost, reply_lost, killed_before, killed_after };

// The probability of faults of each call: 1 in n; 0: never.
struct Weather {
  std::uint32_t cut = 0;   // the connection is lost before or after the call is executed; the next call reconnects
  std::uint32_t late = 0;  // executed up to late_ms after the caller has abandoned the call
  // Takes up to slow_ms, before or after the call is executed; other programs act in the meantime.
  std::uint32_t slow = 0;
  std::uint32_t stop = 0;  // the caller is stopped for up to stop_ms, before or after the call is executed
  Ms late_ms = 3000, slow_ms = 0, stop_ms = 0;
};

// Counts of the faults so far. overtaken: later calls of other programs were executed while a call or its reply was
// delayed.
struct Troubles {
  std::size_t requests_lost = 0, replies_lost = 0, cut = 0, given_up = 0, slow = 0, overtaken = 0, killed = 0,
              stopped = 0;
  Troubles& operator+=(const Troubles&);
};
std::string to_text(const Troubles&);

// A bug planted to check that the simulation finds it: either a replacement in every script that contains `instead_of`,
// or a wrong behaviour of the agent.
struct Mistake {
  const char* name;
  std::string_view instead_of = {}, other = {};
  enum class Agent { none, fences_late, fences_never, forgets_reports } agent = Agent::none;
  std::uint64_t first_seed = 0;  // No earlier seed shows the bug.
};

// Unix time with an individual shift.
class ShiftedClock final : public Clock {
 public:
  ShiftedClock(const Ms& now, Ms boot) : now_(now), boot_(boot) {}
  std::uint64_t unix_ms() const override { return kWall + now_ + static_cast<std::uint64_t>(shift_ms); }
  std::uint64_t boot_ms() const override { return boot_ + now_; }
  Ms world_time(std::uint64_t boot) const { return boot > boot_ ? boot - boot_ : 0; }
  std::int64_t shift_ms = 0;

 private:
  const Ms& now_;
  Ms boot_;
};

// A random number generator that depends only on its seed.
class Chance {
 public:
  explicit Chance(std::uint64_t seed) : state_(seed) {}
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
  std::uint64_t below(std::uint64_t bound) { return bound == 0 ? 0 : chance_.next() % bound; }
  bool once_in(std::uint32_t many) { return many > 0 && below(many) == 0; }
  // Random numbers drawn within `draw` depend only on the seed and the name, not on earlier draws. Thus one event can
  // be left out without changing the others.
  template <class Draw>
  auto apart(const std::string& name, Draw draw) {
    const Chance before = std::exchange(chance_, make_random_stream(name));
    auto drawn = draw();
    chance_ = before;
    return drawn;
  }
  // Records an exceptional event by its name. Returns false if the event is to be left out.
  bool happens(const std::string& name);
  std::set<std::string> suppressed_events;
  const std::vector<std::string>& event_names() const { return happened_; }

  MemoryServer& server() { return server_->server; }
  ShiftedClock& server_clock() { return server_clock_; }
  // Stops the server for this time; then it restarts with the same data.
  void restart_server(Ms away);
  bool server_up() const { return now_ >= up_at_; }
  std::uint64_t server_starts() const { return starts_; }

  // Stores of a program; they end with the program.
  std::unique_ptr<Store> open_store(Program&);
  std::unique_ptr<FlowStore> open_flows(Program&);

  void add(Actor& actor) { actors_.push_back(&actor); }
  void remove(Actor& actor) { std::erase(actors_, &actor); }
  void at(Ms moment, std::function<void()> what) { events_.emplace(moment, std::move(what)); }
  // Returns whether only the caller's step is active, so that ended actors may be deleted.
  bool is_alone() const { return within_ <= 1; }
  void kill(Program&);
  void revive(Program&);
  void stop(Program&, Ms duration);
  bool is_stopped(const Program& program) const { return program.stopped_until_ > now_; }

  // Runs the steps that are due before the given time, and then sets the time.
  void run_until(Ms moment);
  // Also stops once `done` returns true, which is checked after each step. Returns false if that did not happen.
  bool run_until(Ms moment, const std::function<bool()>& done);

  // Called for every call of a program, with its number among the writing calls (0 for a read).
  std::function<Fate(const Program&, const ServerCall&, std::uint64_t write)> fate;
  std::uint64_t writes() const { return writes_; }
  Weather weather;
  const Troubles& troubles() const { return troubles_; }
  Mistake mistake{"none"};
  const Script& apply_mistake(const Script&);
  std::function<void()> after_step;

  // Records an event. The last events are printed with the first violation, which ends the world.
  void note(std::string text);
  void report_violation(const std::string& text);
  bool is_violated() const { return !violation_.empty(); }
  const std::string& violation() const { return violation_; }
  std::uint64_t history() const { return history_; }  // digest of all notes

 private:
  friend class SimLink;
  struct MistakenScript {
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

  Chance make_random_stream(const std::string& name) const;
  std::string next_call(const Program&);
  Fault decide_fault(const ServerCall&);
  struct NextEvent {
    Ms due = kNever;
    Actor* actor = nullptr;  // null: an event without an actor
  };
  NextEvent next();
  bool step(Ms moment);
  OpenLink make_open_link(Program&);
  void wait(Ms duration, const Program&);                 // for a thread within its step
  void inject_delays(Program&, const std::string& call);  // injects delays and stops

  std::uint64_t seed_;
  Chance chance_;
  std::map<std::string, std::uint64_t> calls_;  // by program
  std::vector<std::string> happened_;
  Troubles troubles_;
  Ms now_ = 0, up_at_ = 0;
  std::uint64_t starts_ = 1, writes_ = 0, calls_made_ = 0, history_ = 14695981039346656037ULL;
  ShiftedClock server_clock_{now_, 0};
  std::unique_ptr<Server> server_;
  std::vector<Actor*> actors_;
  std::multimap<Ms, std::function<void()>> events_;
  Program* caller_ = nullptr;  // the caller of the current server call
  bool doomed_ = false;        // the caller dies of the current call
  int depth_ = 0, within_ = 0;
  unsigned steps_at_once_ = 0;
  std::map<std::string_view, std::unique_ptr<MistakenScript>> mistaken_;
  std::deque<std::string> notes_;
  std::string violation_;
};

}  // namespace mycojobs::sim
