#include "world.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "link.h"
#include "store/redis/redis_flows.h"
#include "store/redis/store_connection.h"

namespace mycojobs::sim {
namespace {

constexpr std::size_t kMaxShownNotes = 50;
constexpr int kMaxWaitDepth = 3;                 // nested steps
constexpr unsigned kMaxStepsAtSameTime = 20000;  // steps at the same time; a larger number means a busy loop

std::string format_seconds(Ms ms) {
  const std::string text = std::to_string(ms % 1000);
  return std::to_string(ms / 1000) + '.' + std::string(3 - text.size(), '0') + text;
}

}  // namespace

FaultCounts& FaultCounts::operator+=(const FaultCounts& more) {
  requests_lost += more.requests_lost, replies_lost += more.replies_lost, cut += more.cut, abandoned += more.abandoned;
  slow += more.slow, overtaken += more.overtaken, killed += more.killed, stopped += more.stopped;
  return *this;
}

std::string to_text(const FaultCounts& source) {
  std::string text;
  const auto add = [&text](std::size_t count, const char* suffix) {
    text += (text.empty() ? "" : ", ") + std::to_string(count) + suffix;
  };
  add(source.requests_lost, " requests and ");
  text += std::to_string(source.replies_lost) + " replies lost";
  add(source.cut, " cut");
  add(source.abandoned, " given up and done later");
  add(source.slow, " slow");
  add(source.overtaken, " overtaken");
  add(source.killed, " killed their caller");
  add(source.stopped, " stopped it");
  return text;
}

std::unique_ptr<World::Server>& World::spare_server() {
  static std::unique_ptr<Server> spare;
  return spare;
}

World::World(std::uint64_t seed) : seed_(seed), random_(seed), server_(std::move(spare_server())) {
  if (!server_) server_ = std::make_unique<Server>();
  server_->clock.source = &server_clock_;
  server().set_faults([this](const ServerCall& call) { return decide_fault(call); });
}

World::~World() {
  server().set_faults(nullptr);
  server().restore({});
  spare_server() = std::move(server_);
}

RandomGenerator World::make_named_stream(const std::string& name) const {
  std::uint64_t sum = seed_ ^ 14695981039346656037ULL;
  for (const char c : name) sum = (sum ^ static_cast<unsigned char>(c)) * 1099511628211ULL;
  return RandomGenerator(sum);
}

std::string World::make_call_name(const Program& program) {
  return program.name() + '#' + std::to_string(++call_counts_[program.name()]);
}

bool World::should_inject(const std::string& name) {
  if (suppressed_events.contains(name)) return false;
  event_names_.push_back(name);
  return true;
}

// Some of the scripts that may write only read.
Fault World::decide_fault(const ServerCall& call) {
  if (caller_ == nullptr) return Fault::none;
  ++total_calls_;
  const bool writes = call.write > 0 && call.name != "places" && call.name != "leases";
  const std::uint64_t number = writes ? ++writes_ : 0;
  CallFault call_fault = CallFault::none;
  if (choose_fault) {
    const std::string name = "fate " + make_call_name(*caller_);
    call_fault = draw_independently(name, [&] { return choose_fault(*caller_, call, number); });
    if (call_fault != CallFault::none && !should_inject(name)) call_fault = CallFault::none;
  }
  kills_caller_ = call_fault == CallFault::killed_before || call_fault == CallFault::killed_after;
  if (call_fault == CallFault::none) return Fault::none;
  ++(kills_caller_                           ? fault_counts_.killed
     : call_fault == CallFault::request_lost ? fault_counts_.requests_lost
                                             : fault_counts_.replies_lost);
  note("  " + caller_->name() + ' ' + std::string(call.name) + " #" + std::to_string(number) +
       (call_fault == CallFault::request_lost    ? ": the request is lost"
        : call_fault == CallFault::reply_lost    ? ": the reply is lost"
        : call_fault == CallFault::killed_before ? ": killed before it"
                                                 : ": killed after it"));
  return call_fault == CallFault::request_lost || call_fault == CallFault::killed_before ? Fault::before : Fault::after;
}

OpenLink World::make_open_link(Program& program) {
  return [this, &program](Id context) -> Result<std::unique_ptr<Link>> {
    return std::make_unique<SimLink>(*this, program, server().open_link(context));
  };
}

std::unique_ptr<Store> World::open_store(Program& program) {
  return std::make_unique<Store>(std::make_unique<StoreConnection>(make_open_link(program)));
}

std::unique_ptr<FlowStore> World::open_flows(Program& program) { return make_redis_flows(make_open_link(program)); }

const Script& World::apply_planted_bug(const Script& script) {
  const std::size_t at = planted_bug.original.empty() ? std::string::npos : script.text.find(planted_bug.original);
  if (at == std::string::npos) return script;
  auto& patched = patched_scripts_[script.name];
  if (!patched) {
    patched = std::make_unique<PatchedScript>();
    patched->text = std::string(script.text).replace(at, planted_bug.original.size(), planted_bug.replacement);
    patched->sha1 = std::string(script.name) + " with the planted bug " + planted_bug.name;
    patched->script = {script.name, patched->sha1, patched->text};
  }
  return patched->script;
}

void World::restart_server(Ms outage_ms) {
  ++server_starts_;
  server_up_at_ = now_ + outage_ms;
  note("the server is restarted, unavailable for " + std::to_string(outage_ms) + " ms");
}

void World::kill(Program& program) {
  if (program.is_killed_) return;
  program.is_killed_ = true;
  note(program.name_ + " is killed");
  program.on_killed();
}

void World::revive(Program& program) {
  program.is_killed_ = false;
  program.stopped_until_ = 0;
}

void World::stop(Program& program, Ms duration) {
  program.stopped_until_ = std::max(program.stopped_until_, now_ + duration);
  note(program.name_ + " is stopped for " + std::to_string(duration) + " ms");
}

World::NextEvent World::find_next_event() {
  NextEvent next_event;
  if (!events_.empty()) next_event.due = std::max(events_.begin()->first, now_);
  std::uint32_t tied_actors = 1;
  for (Actor* actor : actors_) {
    const Program* program = actor->program_;
    if (actor->is_stepping_ || (program != nullptr && program->is_killed_)) continue;
    Ms due = actor->due();
    if (due == kNever) continue;
    due = std::max(due, now_);
    if (program != nullptr) due = std::max(due, program->stopped_until_);
    if (due > next_event.due) continue;
    // The order of actors that are due at the same time is random.
    tied_actors = due < next_event.due ? 1 : tied_actors + 1;
    if (tied_actors == 1 || random_below(tied_actors) == 0) next_event.actor = actor;
    next_event.due = due;
  }
  return next_event;
}

bool World::step(Ms moment) {
  const NextEvent next_event = find_next_event();
  if (next_event.due == kNever || next_event.due > moment) {
    now_ = std::max(now_, moment);
    return false;
  }
  steps_at_same_time_ = next_event.due > now_ ? 0 : steps_at_same_time_ + 1;
  now_ = next_event.due;
  if (steps_at_same_time_ > kMaxStepsAtSameTime) {
    report_violation("a thread is stepped in an endless loop" +
                     (next_event.actor != nullptr && next_event.actor->program_ != nullptr
                          ? ": " + next_event.actor->thread_name() + " of " + next_event.actor->program_->name_
                          : ""));
    return false;
  }
  if (next_event.actor != nullptr) {
    next_event.actor->is_stepping_ = true;
    ++active_steps_;
    next_event.actor->step();
    --active_steps_;
    next_event.actor->is_stepping_ = false;
  } else {
    const auto event = std::move(events_.begin()->second);
    events_.erase(events_.begin());
    event();
  }
  if (after_step) after_step();
  return true;
}

void World::run_until(Ms moment) {
  while (!is_violated() && step(moment)) {
  }
}

bool World::run_until(Ms moment, const std::function<bool()>& done) {
  while (!is_violated() && !done()) {
    if (!step(moment)) return done();
  }
  return !is_violated();
}

void World::wait(Ms duration, const Program& program) {
  ++wait_depth_;
  const Ms until = now_ + duration;
  while (!is_violated() && !program.is_killed_ && step(until)) {
  }
  --wait_depth_;
}

void World::inject_delays(Program& program, const std::string& call) {
  if (wait_depth_ >= kMaxWaitDepth) return;
  const std::uint64_t before = total_calls_;
  const auto draw_duration = [&](const char* prefix, std::uint32_t one_in, Ms max_ms) {
    const std::string name = prefix + call;
    const Ms drawn = draw_independently(name, [&] { return random_one_in(one_in) ? random_below(max_ms) + 1 : 0; });
    return drawn > 0 && should_inject(name) ? drawn - 1 : kNever;
  };
  if (const Ms slow = draw_duration("slow ", fault_rates.slow, fault_rates.slow_ms); slow != kNever) {
    ++fault_counts_.slow;
    wait(slow, program);
  }
  if (const Ms stop_ms = draw_duration("stop ", fault_rates.stop, fault_rates.stop_ms); stop_ms != kNever) {
    ++fault_counts_.stopped;
    stop(program, stop_ms);
    wait(program.stopped_until_ - now_, program);
  }
  fault_counts_.overtaken += total_calls_ > before ? 1 : 0;
}

void World::note(std::string text) {
  text.insert(0, format_seconds(now_) + ' ');
  for (const char c : text) history_ = (history_ ^ static_cast<unsigned char>(c)) * 1099511628211ULL;
  static const bool is_traced = std::getenv("MYCOJOBS_SIM_TRACE") != nullptr;
  if (is_traced) std::fprintf(stderr, "%s\n", text.c_str());
  notes_.push_back(std::move(text));
  if (notes_.size() > kMaxShownNotes) notes_.pop_front();
}

void World::report_violation(const std::string& text) {
  if (is_violated()) return;
  note("!! " + text);
  violation_ = text + "\nThe last steps:";
  for (const std::string& each : notes_) violation_ += "\n  " + each;
}

}  // namespace mycojobs::sim
