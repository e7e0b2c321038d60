#include "cli/flow_live.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "cli/serve.h"
#include "cli/terminal.h"
#include "domain/codec.h"
#include "domain/result_values.h"
#include "inspect/draw_flow.h"
#include "inspect/runners.h"
#include "store/redis_flows.h"

namespace mycojobs {
namespace {

constexpr std::uint64_t kAwayMs = 30000;     // how long a store may be away
constexpr std::uint64_t kRedrawMs = 1000;    // without any hint: times go on
constexpr std::uint64_t kSoonestMs = 100;    // two looks are this far apart, and ten times as far as one takes
constexpr std::uint64_t kPatienceMs = 3000;  // before we say why nothing runs
constexpr std::uint32_t kSliceMs = 100;      // how soon a Ctrl-C is noticed
constexpr std::size_t kShownBytes = 1000;    // of one value of the result

bool is_over(const FlowView& view) { return view.status == "finished" || view.status == "error"; }

class Live {
 public:
  Live(const Invocation& call, OpenedFlows& open, Id flow, const LiveStyle& style)
      : call_(call),
        open_(open),
        flow_(flow),
        style_(style),
        to_(style.to_stdout ? stdout : stderr),
        terminal_(terminal_of(to_)),
        redraws_(terminal_.lines > 0 && !style.json) {}

  Result<Followed> follow() {
    quiet_since_ms_ = now();
    for (;;) {
      auto looked = look();
      if (!looked) {
        MJ_CHECK(outlive(looked.error()));
      } else {
        away_since_ms_ = 0;
        if (is_over(view_)) return Followed{std::move(view_), 0};
      }
      if (const int signal = wait(); signal != 0) return Followed{std::move(view_), signal};
    }
  }

 private:
  std::uint64_t now() const { return call_.parts.clock.boot_ms(); }

  Result<void> look() {
    const std::uint64_t before = now();
    MJ_TRY(view, look_at_flow(*open_.flows, open_.store(), context_of(call_), flow_));
    const bool moved = seen_ == 0 || view.revision != view_.revision || view.detail != view_.detail;
    view_ = std::move(view);
    ++seen_;
    if (moved || view_.detail == "running" || is_over(view_)) {
      quiet_since_ms_ = now();
      reason_.clear();
    }
    MJ_CHECK(say_why());
    redraws_ ? redraw() : tell_changes();
    next_look_ms_ = now() + std::max(kSoonestMs, 10 * (now() - before));
    return {};
  }

  // Once nothing has run for a while: the reason that matters first.
  Result<void> say_why() {
    if (now() - quiet_since_ms_ < kPatienceMs || is_over(view_)) return {};
    quiet_since_ms_ = now();
    auto reasons = explain_flow(*open_.flows, open_.store(), context_of(call_), flow_);
    if (!reasons && reasons.error().code == Code::unavailable) return tl::unexpected(reasons.error());
    if (!reasons || reasons->empty()) return {};
    const FlowReason& first = reasons->front();
    reason_ = one_line(first.reason) + (first.next.empty() ? "" : "; next: " + one_line(first.next));
    const std::string cause = first.cause + " " + first.node;
    if (!redraws_ && cause != told_ && !style_.json) say("waits: " + reason_);
    told_ = cause;
    return {};
  }

  void write(const std::string& text) {
    std::fwrite(text.data(), 1, text.size(), to_);
    std::fflush(to_);
  }

  void redraw() {
    terminal_ = terminal_of(to_);
    const std::size_t room = std::max<std::size_t>(terminal_.lines, 6) - 2;
    std::string text = draw_text(view_, {std::max<std::size_t>(terminal_.columns, 2) - 1, terminal_.colour,
                                         terminal_.ascii, 2000, is_over(view_) ? 0 : room - reason_rows()});
    // A command is not cut: its line may go on over several rows of the terminal.
    if (!reason_.empty()) text += paint_note(shortened_talk(reason_, terminal_.columns - 1)) + "\n";
    // What is taller than the terminal cannot be moved up over: its beginning is drawn.
    std::string out = drawn_ > 0 ? fmt::format("\r\033[{}A", drawn_) : "";
    drawn_ = 0;
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t end = text.find('\n', at);
      const std::string line = text.substr(at, end - at);
      const std::size_t rows = rows_of(line);
      if (!is_over(view_) && drawn_ + rows > room) break;
      out += line + "\033[K\n";
      at = end + 1;
      drawn_ += rows;
    }
    write(out + "\033[J");
  }
  std::size_t rows_of(const std::string& line) const {
    const std::size_t width = std::max<std::size_t>(terminal_.columns, 1);
    return std::max<std::size_t>(1, (columns(line) + width - 1) / width);
  }
  // Kept free for the reason and the command beside it.
  std::size_t reason_rows() const {
    const std::size_t rows = reason_.empty() ? 1 : rows_of(shortened_talk(reason_, terminal_.columns - 1));
    return std::min(rows, std::max<std::size_t>(terminal_.lines, 6) / 2);
  }
  std::string paint_note(const std::string& text) const {
    return terminal_.colour ? "\033[33m" + text + "\033[0m" : text;
  }

  void tell_changes() {
    for (const NodeView& node : view_.nodes) {
      const std::pair<std::string, std::string> state{word(node.status), node.detail};
      auto& before = states_[node.name];
      const bool first = before.first.empty();
      if (before == state) continue;
      before = state;
      if (first && node.status == NodeStatus::pending) continue;
      tell(node);
    }
    const std::string detail = view_.status + " " + view_.detail;
    if (detail == detail_) return;
    detail_ = detail;
    if (style_.json) {
      write(dump_json({{"ts_ms", view_.now_ms},
                       {"flow", flow_},
                       {"status", view_.status},
                       {"detail", view_.detail},
                       {"revision", view_.revision}}) +
            "\n");
    } else {
      write(fmt::format("{}  {}\n", clock(), one_line(headline(view_))));
    }
  }
  void tell(const NodeView& node) {
    if (style_.json) {
      nlohmann::json line = to_json(node);
      line["ts_ms"] = view_.now_ms;
      line["flow"] = flow_;
      write(dump_json(line) + "\n");
      return;
    }
    const std::string runner =
        node.status == NodeStatus::running && node.runner != 0 ? fmt::format("  runner {}", node.runner) : "";
    const std::string error = node.error.empty() ? "" : "  " + shortened_talk(one_line(node.error), 160);
    write(fmt::format("{}  {}  {}{}{}\n", clock(), one_line(node.name), state_text(node, view_.now_ms), runner, error));
  }
  std::string clock() const {
    return fmt::format("{:%H:%M:%S}", fmt::localtime(static_cast<std::time_t>(view_.now_ms / 1000)));
  }

  // A stop signal that came; 0: something has moved, or it is time to look again.
  int wait() {
    const std::uint64_t until = std::max(now() + kRedrawMs, next_look_ms_);
    bool moved = false;
    for (;;) {
      if (const int signal = next_stop_signal(0); signal != 0) return signal;
      if (now() >= until || (moved && now() >= next_look_ms_)) return 0;
      moved = listen() || moved;
    }
  }
  bool listen() {
    if (!waiter_) {
      auto waiter = open_.opened.session.stores->open_waiter({{context_of(call_), queue_key("flow")}}, kFlowMovedTopic);
      if (waiter) waiter_ = std::move(*waiter);
    }
    auto woken = waiter_ ? waiter_->wait(kSliceMs, false) : fail(Code::unavailable, "no waiter");
    if (!woken) {
      waiter_.reset();
      ::poll(nullptr, 0, kSliceMs);
      return false;
    }
    const std::string ours = fmt::format("{} {} ", context_of(call_), flow_);
    return std::any_of(woken->hints.begin(), woken->hints.end(),
                       [&](const std::string& hint) { return (hint + " ").starts_with(ours); });
  }

  Result<void> outlive(const Error& error) {
    if (error.code != Code::unavailable || seen_ == 0) return tl::unexpected(error);
    if (away_since_ms_ == 0) away_since_ms_ = now();
    if (now() - away_since_ms_ > kAwayMs) {
      return fail(Code::unavailable,
                  fmt::format("{}; flow {} goes on without us: `mycojobs flow watch {}{}` shows it again",
                              error.message, flow_, flow_, context_words(call_)));
    }
    waiter_.reset();
    reopen_flows(call_, open_, style_.with_agent);
    return {};
  }

  const Invocation& call_;
  OpenedFlows& open_;
  Id flow_;
  LiveStyle style_;
  std::FILE* to_;
  Terminal terminal_;
  bool redraws_;
  FlowView view_;
  std::uint64_t seen_ = 0, quiet_since_ms_ = 0, next_look_ms_ = 0, away_since_ms_ = 0;
  std::size_t drawn_ = 0;
  std::string reason_, told_, detail_;
  std::map<std::string, std::pair<std::string, std::string>> states_;  // by name: nodes may be added
  std::unique_ptr<Waiter> waiter_;
};

}  // namespace

Terminal terminal_of(std::FILE* stream) {
  Terminal out;
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const char* value = std::getenv(name);
    if (value == nullptr || *value == '\0') continue;
    const std::string text(value);
    out.ascii = text.find("UTF-8") == std::string::npos && text.find("utf8") == std::string::npos;
    break;
  }
  const int fd = ::fileno(stream);
  if (::isatty(fd) == 0) return out;
  out.colour = std::getenv("NO_COLOR") == nullptr;
  winsize size{};
  out.lines = 24;
  out.columns = 80;
  if (::ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 && size.ws_row > 0) {
    out.lines = size.ws_row;
    out.columns = size.ws_col;
  }
  return out;
}

Result<Followed> follow_flow(const Invocation& call, OpenedFlows& open, Id flow, const LiveStyle& style) {
  return Live(call, open, flow, style).follow();
}

void print_flow_end(const Invocation& call, const FlowView& view) {
  if (call.json) {
    nlohmann::json out = to_json(view);
    out["result"] = typed_values(view.record.result, view.record.result_json);
    print(dump_json(out, 2) + "\n");
    return;
  }
  for (const auto& [key, value] : view.record.result) {
    const std::string more =
        value.size() > kShownBytes ? fmt::format("... ({} bytes; --json has all)", value.size()) : "";
    say(paint(Tone::strong, one_line(key), true) + " = " + printable(value.substr(0, kShownBytes)) + more);
  }
  if (!view.record.error.empty()) say(paint(Tone::bad, "error: ", true) + one_line(view.record.error));
  const bool good = view.status == "finished";
  say(paint(good ? Tone::good : Tone::bad, fmt::format("flow {}", view.record.id), true) + " " + one_line(view.detail));
}

int exit_code(const FlowView& view) {
  if (view.status == "finished") return EXIT_SUCCESS;
  return view.detail == "timeout" ? 124 : view.detail == "cancelled" ? 130 : EXIT_FAILURE;
}

}  // namespace mycojobs
