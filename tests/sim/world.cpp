#include "world.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "link.h"
#include "store/redis/redis_flows.h"
#include "store/redis/store_connection.h"

namespace mycojobs::sim {
namespace {

constexpr std::size_t kShown = 50;
constexpr int kDeepest = 3;             // nested steps
constexpr unsigned kMaxAtOnce = 20000;  // steps at the same time; a larger number means a busy loop

std::string seconds(Ms ms) {
  const std::string text = std::to_string(ms % 1000);
  return std::to_string(ms / 1000) + '.' + std::string(3 - text.size(), '0') + text;
}

}  // namespace

Troubles& Troubles::operator+=(const Troubles& more) {
  requests_lost += more.requests_lost, replies_lost += more.replies_lost, cut += more.cut, given_up += more.given_up;
  slow += more.slow, overtaken += more.overtaken, killed += more.killed, stopped += more.stopped;
  return *this;
}

std::string to_text(const Troubles& source) {
  std::string text;
  const auto add = [&text](std::size_t count, const char* what) {
    text += (text.empty() ? "" : ", ") + std::to_string(count) + what;
  };
  add(source.requests_lost, " requests and ");
  text += std::to_string(source.replies_lost) + " replies lost";
  add(source.cut, " cut");
  add(source.given_up, " given up and done later");
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

World::World(std::uint64_t seed) : seed_(seed), chance_(seed), server_(std::move(spare_server())) {
  if (!server_) server_ = std::make_unique<Server>();
  server_->clock.source = &server_clock_;
  server().set_faults([this](const ServerCall& call) { return decide_fault(call); });
}

World::~World() {
  server().set_faults(nullptr);
  server().restore({});
  spare_server() = std::move(server_);
}

Chance World::make_random_stream(const std::string& name) const {
  std::uint64_t sum = seed_ ^ 14695981039346656037ULL;
  for (const char c : name) sum = (sum ^ static_cast<unsigned char>(c)) * 1099511628211ULL;
  return Chance(sum);
}

std::string World::next_call(const Program& program) {
  return program.name() + '#' + std::to_string(++calls_[program.name()]);
}

bool World::happens(const std::string& name) {
  if (suppressed_events.contains(name)) return false;
  happened_.push_back(name);
  return true;
}

// Some of the scripts that may write only read.
Fault World::decide_fault(const ServerCall& call) {
  if (caller_ == nullptr) return Fault::none;
  ++calls_made_;
  const bool writes = call.write > 0 && call.name != "places" && call.name != "leases";
  const std::uint64_t number = writes ? ++writes_ : 0;
  Fate what = Fate::fine;
  if (fate) {
    const std::string name = "fate " + next_call(*caller_);
    what = apart(name, [&] { return fate(*caller_, call, number); });
    if (what != Fate::fine && !happens(name)) what = Fate::fine;
  }
  doomed_ = what == Fate::killed_before || what == Fate::killed_after;
  if (what == Fate::fine) return Fault::none;
  ++(doomed_ ? troubles_.killed : what == Fate::request_lost ? troubles_.requests_lost : troubles_.replies_lost);
  note("  " + caller_->name() + ' ' + std::string(call.name) + " #" + std::to_string(number) +
       (what == Fate::request_lost    ? ": the request is lost"
        : what == Fate::reply_lost    ? ": the reply is lost"
        : what == Fate::killed_before ? ": killed before it"
                                      : ": killed after it"));
  return what == Fate::request_lost || what == Fate::killed_before ? Fault::before : Fault::after;
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

const Script& World::apply_mistake(const Script& script) {
  const std::size_t at = mistake.instead_of.empty() ? std::string::npos : script.text.find(mistake.instead_of);
  if (at == std::string::npos) return script;
  auto& mistaken = mistaken_[script.name];
  if (!mistaken) {
    mistaken = std::make_unique<MistakenScript>();
    mistaken->text = std::string(script.text).replace(at, mistake.instead_of.size(), mistake.other);
    mistaken->sha1 = std::string(script.name) + " with the mistake " + mistake.name;
    mistaken->script = {script.name, mistaken->sha1, mistaken->text};
  }
  return mistaken->script;
}

void World::restart_server(Ms away) {
  ++starts_;
  up_at_ = now_ + away;
  note("the server is started anew, away for " + std::to_string(away) + " ms");
}

void World::kill(Program& program) {
  if (program.killed_) return;
  program.killed_ = true;
  note(program.name_ + " is killed");
  program.on_killed();
}

void World::revive(Program& program) {
  program.killed_ = false;
  program.stopped_until_ = 0;
}

void World::stop(Program& program, Ms duration) {
  program.stopped_until_ = std::max(program.stopped_until_, now_ + duration);
  note(program.name_ + " is stopped for " + std::to_string(duration) + " ms");
}

World::NextEvent World::next() {
  NextEvent found;
  if (!events_.empty()) found.due = std::max(events_.begin()->first, now_);
  std::uint32_t same = 1;
  for (Actor* actor : actors_) {
    const Program* program = actor->program_;
    if (actor->within_ || (program != nullptr && program->killed_)) continue;
    Ms due = actor->due();
    if (due == kNever) continue;
    due = std::max(due, now_);
    if (program != nullptr) due = std::max(due, program->stopped_until_);
    if (due > found.due) continue;
    // The order of actors that are due at the same time is random.
    same = due < found.due ? 1 : same + 1;
    if (same == 1 || below(same) == 0) found.actor = actor;
    found.due = due;
  }
  return found;
}

bool World::step(Ms moment) {
  const NextEvent now = next();
  if (now.due == kNever || now.due > moment) {
    now_ = std::max(now_, moment);
    return false;
  }
  steps_at_once_ = now.due > now_ ? 0 : steps_at_once_ + 1;
  now_ = now.due;
  if (steps_at_once_ > kMaxAtOnce) {
    report_violation("a thread takes turns without end" + (now.actor != nullptr && now.actor->program_ != nullptr
                                                               ? ": of " + now.actor->program_->name_
                                                               : ""));
    return false;
  }
  if (now.actor != nullptr) {
    now.actor->within_ = true;
    ++within_;
    now.actor->step();
    --within_;
    now.actor->within_ = false;
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
  ++depth_;
  const Ms until = now_ + duration;
  while (!is_violated() && !program.killed_ && step(until)) {
  }
  --depth_;
}

void World::inject_delays(Program& program, const std::string& call) {
  if (depth_ >= kDeepest) return;
  const std::uint64_t before = calls_made_;
  const auto length = [&](const char* what, std::uint32_t one_in, Ms most) {
    const std::string name = what + call;
    const Ms drawn = apart(name, [&] { return once_in(one_in) ? below(most) + 1 : 0; });
    return drawn > 0 && happens(name) ? drawn - 1 : kNever;
  };
  if (const Ms slow = length("slow ", weather.slow, weather.slow_ms); slow != kNever) {
    ++troubles_.slow;
    wait(slow, program);
  }
  if (const Ms away = length("stop ", weather.stop, weather.stop_ms); away != kNever) {
    ++troubles_.stopped;
    stop(program, away);
    wait(program.stopped_until_ - now_, program);
  }
  troubles_.overtaken += calls_made_ > before ? 1 : 0;
}

void World::note(std::string text) {
  text.insert(0, seconds(now_) + ' ');
  for (const char c : text) history_ = (history_ ^ static_cast<unsigned char>(c)) * 1099511628211ULL;
  static const bool tell = std::getenv("MYCOJOBS_SIM_TRACE") != nullptr;
  if (tell) std::fprintf(stderr, "%s\n", text.c_str());
  notes_.push_back(std::move(text));
  if (notes_.size() > kShown) notes_.pop_front();
}

void World::report_violation(const std::string& text) {
  if (is_violated()) return;
  note("!! " + text);
  violation_ = text + "\nThe last steps:";
  for (const std::string& each : notes_) violation_ += "\n  " + each;
}

}  // namespace mycojobs::sim
