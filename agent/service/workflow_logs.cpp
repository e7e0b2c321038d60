#include "service/workflow_logs.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "base/parse.h"
#include "model/codec.h"
#include "service/job_service.h"
#include "text/plural.h"
#include "text/utf8.h"

namespace mycojobs::service {
namespace {

using nlohmann::json;

constexpr std::uint32_t kFactsPerScan = 1000;
constexpr std::size_t kLinesPerScan = 256;

// A requested effect with a log that may still grow.
struct PendingEffect {
  std::uint64_t step = 0, index = 0;  // height of the requesting step; index of the effect in the step
  std::uint64_t published = 0;        // height of the fact that names the carrier; 0: the effect has no carrier yet
  std::uint64_t seq = 0;              // number of the last line that was read
  std::string effect, intent, effect_ref;
  std::uint64_t at_ms = 0;  // time of publication
};

// The end of a page. As text: numbers separated by dots, namely the height of the last fact read, whether any fact was
// of this instance, whether the instance had ended at that height, and {step, index, published, seq} of each effect
// under way.
struct LogCursor {
  std::uint64_t height = 0;
  bool met = false, over = false;
  std::vector<PendingEffect> under_way;
};

std::string text_of(const LogCursor& place) {
  std::string out = std::to_string(place.height) + (place.met ? ".1" : ".0") + (place.over ? ".1" : ".0");
  for (const PendingEffect& each : place.under_way) {
    for (const std::uint64_t number : {each.step, each.index, each.published, each.seq})
      out += '.' + std::to_string(number);
  }
  return out;
}

Result<LogCursor> parse_log_place(std::string_view text) {
  constexpr std::size_t kFront = 3, kOfEach = 4;
  std::vector<std::uint64_t> numbers;
  for (bool more = !text.empty(); more;) {
    const std::size_t dot = text.find('.');
    more = dot != std::string_view::npos;
    if (!parse_u64(text.substr(0, dot), numbers.emplace_back()))
      return fail(Code::invalid, "after: is not a value that a page returned");
    text.remove_prefix(more ? dot + 1 : text.size());
  }
  LogCursor place;
  if (numbers.empty()) return place;
  const bool whole = numbers.size() >= kFront && (numbers.size() - kFront) % kOfEach == 0;
  // One step can request 64 effects more than the limit of followed effects.
  if (!whole || numbers.size() > kFront + kOfEach * 2 * kMaxPendingEffects)
    return fail(Code::invalid, "after: is not a value that a page returned");
  place.height = numbers[0], place.met = numbers[1] != 0, place.over = numbers[2] != 0;
  for (std::size_t i = kFront; i < numbers.size(); i += kOfEach) {
    PendingEffect& each = place.under_way.emplace_back();
    each.step = numbers[i], each.index = numbers[i + 1], each.published = numbers[i + 2], each.seq = numbers[i + 3];
  }
  return place;
}

// Updates the position with the facts of one instance.
class LogCursorUpdater {
 public:
  LogCursorUpdater(LogCursor& place, const InstanceId& cell, const WorkflowFact& fact)
      : place_(place), cell_(cell), fact_(fact) {}

  void operator()(const EventAccepted& fact) const {
    for (const EventTarget& target : fact.targets) {
      if (target.cell == cell_ && target.skipped.empty()) place_.over = false;
    }
  }
  void operator()(const StepTaken& fact) const {
    for (std::size_t i = 0; i < fact.intents.size(); ++i)
      place_.under_way.push_back({fact_.height, i, 0, 0, fact.intents[i].effect, fact.intents[i].hash, "", 0});
  }
  void operator()(const EffectPublished& fact) const {
    const auto it = std::find_if(place_.under_way.begin(), place_.under_way.end(),
                                 [&](const PendingEffect& each) { return each.intent == fact.intent; });
    if (it == place_.under_way.end()) return;
    const bool is_record = fact.effect_ref.starts_with("job:") || fact.effect_ref.starts_with("flow:");
    if (!is_record) {  // timers and approvals have no log
      place_.under_way.erase(it);
    } else {
      it->published = fact_.height, it->effect_ref = fact.effect_ref, it->at_ms = fact_.at_ms;
    }
  }
  void operator()(const ReceiptAdmitted& fact) const { forget(&fact.intent); }
  void operator()(const ReceiptMismatched& fact) const { forget(&fact.intent); }
  void operator()(const InstanceFailed&) const { end(); }
  void operator()(const InstanceCompleted&) const { end(); }
  void operator()(const InstanceDeleted&) const { end(); }
  template <class Other>
  void operator()(const Other&) const {}

 private:
  // Removes the effects of this intent that will not have a carrier any more; null means all intents.
  void forget(const std::string* intent) const {
    std::erase_if(place_.under_way, [&](const PendingEffect& each) {
      return each.published == 0 && (intent == nullptr || each.intent == *intent);
    });
  }
  void end() const {
    place_.over = true;
    forget(nullptr);
  }
  LogCursor& place_;
  const InstanceId& cell_;
  const WorkflowFact& fact_;
};

class InstanceLogReader {
 public:
  InstanceLogReader(const RequestContext& by, const WorkflowStores& in, NamedInstance of, LogCursor place)
      : by_(by), in_(in), of_(std::move(of)), place_(std::move(place)) {}

  Result<InstanceLog> page(std::size_t limit) {
    for (PendingEffect& each : place_.under_way) MJ_CHECK(recall(each));
    MJ_CHECK(continue_scan());
    if (!place_.met && place_.height >= height_) return fail(Code::not_found, shown(of_.cell) + ": it has no history");
    InstanceLog out;
    std::vector<PendingEffect> left;
    for (PendingEffect& each : place_.under_way) {
      const bool goes_on = each.published == 0 || out.frames.size() >= limit;
      MJ_TRY(more, goes_on ? Result<bool>(true) : read_lines(each, limit, out.frames));
      if (more)
        left.push_back(std::move(each));
      else
        out.over.push_back(each.effect_ref);
    }
    const bool has_room = left.size() < kMaxPendingEffects;
    place_.under_way = std::move(left);
    out.after = text_of(place_);
    out.more = out.frames.size() >= limit || (place_.height < height_ && has_room);
    out.ended = place_.over && place_.under_way.empty() && place_.height >= height_;
    return out;
  }

 private:
  tl::unexpected<Error> wrong_place() const {
    return fail(Code::invalid, "after: not of the journal of " + shown(of_.cell));
  }
  // Returns the fact at a height if it is of this instance and kind.
  template <class Kind>
  Result<std::pair<Kind, std::uint64_t>> fact_at(std::uint64_t height) {
    if (height == 0) return wrong_place();
    MJ_TRY(read, in_.deployments.read(by_.context, of_.deployment, height - 1, 1));
    if (read.facts.empty()) return wrong_place();
    auto fact = decode_workflow_fact(read.facts.front());
    if (!fact) return fail(fact.error(), of_.deployment + ": height " + std::to_string(height));
    auto* kind = std::get_if<Kind>(&fact->what);
    if (kind == nullptr || !(kind->cell == of_.cell)) return wrong_place();
    return std::pair(std::move(*kind), fact->at_ms);
  }
  // Reads the facts that the numbers of a cursor refer to.
  Result<void> recall(PendingEffect& each) {
    MJ_TRY(step, fact_at<StepTaken>(each.step));
    if (each.index >= step.first.intents.size()) return wrong_place();
    const Intent& intent = step.first.intents[each.index];
    each.effect = intent.effect, each.intent = intent.hash;
    if (each.published == 0) return {};
    MJ_TRY(published, fact_at<EffectPublished>(each.published));
    if (published.first.intent != intent.hash) return wrong_place();
    each.effect_ref = published.first.effect_ref, each.at_ms = published.second;
    return {};
  }

  // The encoded bytes of a fact of the instance contain its workflow and its key. Facts without them are skipped
  // without decoding, since most facts of a large world are of other instances.
  bool may_be_of(const std::string& fact) const {
    return fact.find(of_.cell.workflow) != std::string::npos && fact.find(of_.cell.key) != std::string::npos;
  }
  // Reads the facts after the cursor.
  Result<void> continue_scan() {
    const std::uint64_t last = place_.height + kMaxLogFacts;
    for (;;) {
      MJ_TRY(read, in_.deployments.read(by_.context, of_.deployment, place_.height, kFactsPerScan));
      height_ = read.height;
      if (place_.height > height_) return wrong_place();  // cursor of a longer journal: the journal was restored
      for (const std::string& bytes : read.facts) {
        if (place_.height >= last || place_.under_way.size() >= kMaxPendingEffects) return {};
        ++place_.height;
        if (may_be_of(bytes)) MJ_CHECK(take(bytes));
      }
      if (place_.height >= read.height) return {};
      if (read.facts.empty())
        return fail(Code::invalid,
                    of_.deployment + ": the fact at height " + std::to_string(place_.height + 1) + " no longer exists");
    }
  }
  Result<void> take(const std::string& bytes) {
    auto fact = decode_workflow_fact(bytes);
    if (!fact) return fail(fact.error(), of_.deployment + ": height " + std::to_string(place_.height));
    const std::vector<InstanceId> cells = instances_of(*fact);
    if (std::find(cells.begin(), cells.end(), of_.cell) == cells.end()) return {};
    place_.met = true;
    std::visit(LogCursorUpdater(place_, of_.cell, *fact), fact->what);
    return {};
  }

  static LogFrame frame_of(const PendingEffect& each) { return {each.effect, each.intent, each.effect_ref, {}, 0}; }
  // Returns a system line with the next number.
  static LogFrame note(const PendingEffect& each, std::string text) {
    LogFrame frame = frame_of(each);
    frame.line = {each.at_ms, each.seq + 1, LogStream::system, std::move(text)};
    return frame;
  }
  // Returns a frame for the lines that the log has lost before `line`. Numbers without a line (`passed`) are not
  // counted as lost.
  static std::optional<LogFrame> gap(const PendingEffect& each, const Log& line,
                                     const std::vector<std::uint64_t>& passed) {
    const auto between = [&](std::uint64_t number) { return number > each.seq && number < line.seq; };
    const auto none = static_cast<std::uint64_t>(std::count_if(passed.begin(), passed.end(), between));
    if (line.seq - each.seq - 1 <= none) return std::nullopt;
    const std::uint64_t lost = line.seq - each.seq - 1 - none;
    LogFrame frame = note(each, count_with_noun(lost, "piece") + " of this log are lost\n");
    frame.line.ts_ms = line.ts_ms, frame.dropped = lost;
    return frame;
  }
  // Appends lines to `out` up to `limit` frames. Returns false if no more lines will follow.
  Result<bool> read_lines(PendingEffect& each, std::size_t limit, std::vector<LogFrame>& out) {
    if (each.effect_ref.starts_with("flow:")) {
      const std::string id = each.effect_ref.substr(5);
      out.push_back(note(each, each.effect_ref + " carries it out: `mycojobs flow logs " + id + "` has its lines\n"));
      return false;
    }
    if (auto may = may_with_job(by_, in_.records, Action::read, each.effect_ref, 0); !may) {
      if (may.error().code != Code::denied) return tl::unexpected<Error>(std::move(may).error());
      out.push_back(note(each, "the log is another's: " + may.error().message + "\n"));
      return false;
    }
    while (out.size() < limit) {
      auto page =
          in_.records.logs(by_.context, each.effect_ref, each.seq, std::min(kLinesPerScan, limit - out.size()), 0);
      if (!page && page.error().code == Code::not_found) {
        out.push_back(note(each, "the log of " + each.effect_ref + " no longer exists with its record\n"));
        return false;
      }
      if (!page) return tl::unexpected<Error>(std::move(page).error());
      for (Log& line : page->lines) {
        if (auto lost = gap(each, line, page->passed)) {
          each.seq = line.seq - 1;  // the gap takes a frame; the line itself may be on the next page
          out.push_back(std::move(*lost));
        }
        if (out.size() >= limit) return true;
        each.seq = line.seq;
        out.push_back(frame_of(each));
        out.back().line = std::move(line);
      }
      if (page->ended) return false;
      if (page->lines.empty()) return true;
    }
    return true;
  }

  const RequestContext& by_;
  const WorkflowStores& in_;
  NamedInstance of_;
  LogCursor place_;
  std::uint64_t height_ = 0;  // height of the world
};

}  // namespace

Result<InstanceLog> instance_log(const RequestContext& by, const WorkflowStores& in, const InstanceReference& instance,
                                 const LogRequest& request) {
  if (request.limit == 0 || request.limit > 1000) return fail(Code::invalid, "limit: from 1 to 1000");
  MJ_TRY(found, find_instance(by, in, instance));
  MJ_TRY(place, parse_log_place(request.after));
  return InstanceLogReader(by, in, std::move(found), std::move(place)).page(request.limit);
}

json to_json(const LogFrame& frame) {
  json out{{"effect", frame.effect},
           {"intent", frame.intent},
           {"sequence", frame.line.seq},
           {"ts_ms", frame.line.ts_ms},
           {"stream", to_string(frame.line.stream)},
           {"text", to_utf8(frame.line.text)}};
  out[frame.effect_ref.starts_with("flow:") ? "flow" : "job"] = to_utf8(frame.effect_ref);
  if (frame.dropped > 0) out["dropped"] = frame.dropped;
  return out;
}

json to_json(const InstanceLog& log) {
  json frames = json::array();
  for (const LogFrame& frame : log.frames) frames.push_back(to_json(frame));
  return {{"frames", std::move(frames)}, {"after", log.after}, {"more", log.more}, {"ended", log.ended}};
}

}  // namespace mycojobs::service
