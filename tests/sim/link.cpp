#include "link.h"

namespace mycojobs::sim {

Result<Reply> SimLink::command(const Arguments& arguments, std::uint32_t extra_ms) {
  return pass(arguments.list().front(), arguments,
              [extra_ms](Link& link, const Arguments& words) { return link.command(words, extra_ms); });
}

Result<Reply> SimLink::run(const Script& script, const Arguments& arguments) {
  return pass(script.name, arguments, [&run = world_.apply_planted_bug(script)](Link& link, const Arguments& words) {
    return link.run(run, words);
  });
}

// Half of the calls are executed in the background, if the connection is up. The server executes the call at once or
// later; its reply is kept and may be lost.
std::optional<int> SimLink::begin(const Script& script, const Arguments& arguments) {
  const std::string call_name = world_.make_call_name(program_);
  const bool is_synchronous = world_.draw_independently("begun " + call_name, [&] { return world_.random_one_in(2); });
  if (is_synchronous || program_.is_killed() || !world_.is_server_up() || start_ != world_.server_starts())
    return std::nullopt;
  const Script& run = world_.apply_planted_bug(script);
  const Call call = [&run](Link& link, const Arguments& words) { return link.run(run, words); };
  if (is_late(call_name, script.name, arguments, call)) {
    begun_ = fail(Code::unavailable, "the server does not answer");
  } else {
    begun_ = send(call, arguments);
  }
  return -1;
}

Result<Reply> SimLink::finish(const Script& /*same as in begin()*/, const Arguments& /*same*/) {
  const std::string call_name = world_.make_call_name(program_) + " answered";
  world_.inject_delays(program_, call_name);
  auto reply = *std::exchange(begun_, std::nullopt);
  if (program_.is_killed() || is_lost(call_name)) return fail(Code::unavailable, "the answer is lost");
  return reply;
}

bool SimLink::is_lost(const std::string& call_name) {
  const std::string lost = "lost " + call_name;
  const bool drops_reply =
      world_.draw_independently(lost, [&] { return world_.random_one_in(world_.fault_rates.late); });
  if (!drops_reply || !world_.should_inject(lost)) return false;
  ++world_.fault_counts_.replies_lost;
  return true;
}

Result<Reply> SimLink::pass(std::string_view name, const Arguments& arguments, const Call& call) {
  const auto make_unavailable = [] { return fail(Code::unavailable, "the server does not answer"); };
  const std::string call_name = world_.make_call_name(program_);
  world_.inject_delays(program_, call_name);
  if (program_.is_killed() || !world_.is_server_up()) return make_unavailable();
  MJ_CHECK(connect());
  if (is_late(call_name, name, arguments, call)) return make_unavailable();
  if (is_cut(call_name, call, arguments)) return make_unavailable();
  auto reply = send(call, arguments);
  if (reply) world_.inject_delays(program_, call_name + " answered");
  if (program_.is_killed()) return make_unavailable();
  return reply;
}

// Decides whether the caller abandons the call and the server executes it later.
bool SimLink::is_late(const std::string& call_name, std::string_view name, const Arguments& arguments,
                      const Call& call) {
  const std::string late = "late " + call_name;
  const Ms later = world_.draw_independently(late, [&] {
    return world_.random_one_in(world_.fault_rates.late) ? 1 + world_.random_below(world_.fault_rates.late_ms) : 0;
  });
  if (later == 0 || !world_.should_inject(late)) return false;
  ++world_.fault_counts_.abandoned;
  world_.note("  " + program_.name() + ' ' + std::string(name) + ": abandoned, executed later");
  send_later(name, arguments, call, later);
  return true;
}

// Decides whether the connection is lost, before or after the call is executed.
bool SimLink::is_cut(const std::string& call_name, const Call& call, const Arguments& arguments) {
  enum { no, before, after };
  const std::string cut = "cut " + call_name;
  const int when = world_.draw_independently(cut, [&] {
    return world_.random_one_in(world_.fault_rates.cut) ? (world_.random_one_in(2) ? before : after) : no;
  });
  if (when == no || !world_.should_inject(cut)) return false;
  ++world_.fault_counts_.cut;
  world_.note("  " + program_.name() + "'s connection is cut" + (when == before ? "" : " after the call was executed"));
  if (when == after) (void)send(call, arguments);
  start_ = 0;
  return true;
}

// The set-up of a new connection as in agent/store/redis/redis_stores.cpp, without the check of the store's format.
Result<void> SimLink::connect() {
  if (start_ == world_.server_starts()) return {};
  start_ = world_.server_starts();
  run_id_ = "start " + std::to_string(start_);
  auto granted = send([](Link& link, const Arguments& words) { return link.run(scripts::grant, words); }, {run_id_});
  if (granted) return {};
  start_ = 0;
  return tl::unexpected<Error>(std::move(granted).error());
}

Result<Reply> SimLink::send(const Call& call, const Arguments& arguments) {
  world_.caller_ = &program_;
  auto reply = call(*inner_, arguments);
  world_.caller_ = nullptr;
  if (world_.kills_caller_) {
    world_.kills_caller_ = false;
    world_.kill(program_);
  }
  return reply;
}

// Executes an abandoned call later. The call is dropped if the server restarts.
void SimLink::send_later(std::string_view name, const Arguments& arguments, const Call& call, Ms later) {
  std::vector<std::string> words(arguments.list().begin(), arguments.list().end());
  const auto late = [this_world = &world_, start = start_, call, name = std::string(name), words = std::move(words)] {
    if (!this_world->is_server_up() || this_world->server_starts() != start) return;
    Arguments again;
    for (const std::string& word : words) again.add(word);
    const auto reply = call(*this_world->server().open_link(kContext), again);
    this_world->note("  late: " + name + (reply ? "" : ": " + reply.error().message));
  };
  world_.schedule(world_.now() + later, late);
}

}  // namespace mycojobs::sim
