#include "service/workflow_logs.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "base/counted.h"
#include "base/ids.h"
#include "domain/codec.h"
#include "domain/utf8.h"
#include "service/jobs.h"

namespace mycojobs::service {
namespace {

using nlohmann::json;

constexpr std::uint32_t kFactsOfALook = 1000;
constexpr std::size_t kLinesOfALook = 256;

// A requested effect with a log that may still grow.
struct UnderWay {
  std::uint64_t step = 0, index = 0;  // height of the requesting step; index of the effect in the step
  std::uint64_t published = 0;        // height of the fact that names the carrier; 0: the effect has no carrier yet
  std::uint64_t seq = 0;              // number of the last line that was read
  std::string effect, intent, carrier;
  std::uint64_t at_ms = 0;  // time of publication
};

// The end of a page. As text: numbers separated by dots, namely the height of the last fact read, whether any fact was
// of this instance, whether the instance had ended at that height, and {step, index, published, seq} of each effect
// under way.
struct LogPlace {
  std::uint64_t height = 0;
  bool met = false, over = false;
  std::vector<UnderWay> under_way;
};

std::string text_of(const LogPlace& place) {
  std::string out = std::to_string(place.height) + (place.met ? ".1" : ".0") + (place.over ? ".1" : ".0");
  for (const UnderWay& each : place.under_way) {
    for (const std::uint64_t number : {each.step, each.index, each.published, each.seq})
      out += '.' + std::to_string(number);
  }
  return out;
}

Result<LogPlace> parse_log_place(std::string_view text) {
  constexpr std::size_t kFront = 3, kOfEach = 4;
  std::vector<std::uint64_t> numbers;
  for (bool more = !text.empty(); more;) {
    const std::size_t dot = text.find('.');
    more = dot != std::string_view::npos;
    if (!parse_u64(text.substr(0, dot), numbers.emplace_back()))
      return fail(Code::invalid, "after: is not a value that a page returned");
    text.remove_prefix(more ? dot + 1 : text.size());
  }
  LogPlace place;
  if (numbers.empty()) return place;
  const bool whole = numbers.size() >= kFront && (numbers.size() - kFront) % kOfEach == 0;
  // One step can request 64 effects more than the limit of followed effects.
  if (!whole || numbers.size() > kFront + kOfEach * 2 * kMostUnderWay)
    return fail(Code::invalid, "after: is not a value that a page returned");
  place.height = numbers[0], place.met = numbers[1] != 0, place.over = numbers[2] != 0;
  for (std::size_t i = kFront; i < numbers.size(); i += kOfEach) {
    UnderWay& each = place.under_way.emplace_back();
    each.step = numbers[i], each.index = numbers[i + 1], each.published = numbers[i + 2], each.seq = numbers[i + 3];
  }
  return place;
}

// Updates the position with the facts of one instance.
class FollowsFacts {
 public:
  FollowsFacts(LogPlace& place, const CellId& cell, const WorkflowFact& fact)
      : place_(place), cell_(cell), fact_(fact) {}

  void operator()(const EventIn& fact) const {
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
                                 [&](const UnderWay& each) { return each.intent == fact.intent; });
    if (it == place_.under_way.end()) return;
    const bool is_record = fact.carrier.starts_with("job:") || fact.carrier.starts_with("flow:");
    if (!is_record) {  // timers and approvals have no log
      place_.under_way.erase(it);
    } else {
      it->published = fact_.height, it->carrier = fact.carrier, it->at_ms = fact_.at_ms;
    }
  }
  void operator()(const ReceiptAdmitted& fact) const { forget(&fact.intent); }
  void operator()(const ReceiptFaulted& fact) const { forget(&fact.intent); }
  void operator()(const Failed&) const { end(); }
  void operator()(const Completed&) const { end(); }
  void operator()(const Deleted&) const { end(); }
  template <class Other>
  void operator()(const Other&) const {}

 private:
  // Removes the effects of this intent that will not have a carrier any more; null means all intents.
  void forget(const std::string* intent) const {
    std::erase_if(place_.under_way, [&](const UnderWay& each) {
      return each.published == 0 && (intent == nullptr || each.intent == *intent);
    });
  }
  void end() const {
    place_.over = true;
    forget(nullptr);
  }
  LogPlace& place_;
  const CellId& cell_;
  const WorkflowFact& fact_;
};

class InstanceLogReader {
 public:
  InstanceLogReader(const Caller& by, const WorldStores& in, NamedInstance of, LogPlace place)
      : by_(by), in_(in), of_(std::move(of)), place_(std::move(place)) {}

  Result<InstanceLog> page(std::size_t limit) {
    for (UnderWay& each : place_.under_way) MJ_CHECK(recall(each));
    MJ_CHECK(look_on());
    if (!place_.met && place_.height >= height_) return fail(Code::not_found, shown(of_.cell) + ": it has no history");
    InstanceLog out;
    std::vector<UnderWay> left;
    for (UnderWay& each : place_.under_way) {
      const bool goes_on = each.published == 0 || out.frames.size() >= limit;
      MJ_TRY(more, goes_on ? Result<bool>(true) : read_lines(each, limit, out.frames));
      if (more)
        left.push_back(std::move(each));
      else
        out.over.push_back(each.carrier);
    }
    const bool has_room = left.size() < kMostUnderWay;
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
    MJ_TRY(read, in_.worlds.read(by_.context, of_.world, height - 1, 1));
    if (read.facts.empty()) return wrong_place();
    auto fact = decode_workflow_fact(read.facts.front());
    if (!fact) return fail(fact.error(), of_.world + ": height " + std::to_string(height));
    auto* kind = std::get_if<Kind>(&fact->what);
    if (kind == nullptr || !(kind->cell == of_.cell)) return wrong_place();
    return std::pair(std::move(*kind), fact->at_ms);
  }
  // Reads the facts that the numbers of a cursor refer to.
  Result<void> recall(UnderWay& each) {
    MJ_TRY(step, fact_at<StepTaken>(each.step));
    if (each.index >= step.first.intents.size()) return wrong_place();
    const Intent& intent = step.first.intents[each.index];
    each.effect = intent.effect, each.intent = intent.hash;
    if (each.published == 0) return {};
    MJ_TRY(published, fact_at<EffectPublished>(each.published));
    if (published.first.intent != intent.hash) return wrong_place();
    each.carrier = published.first.carrier, each.at_ms = published.second;
    return {};
  }

  // The encoded bytes of a fact of the instance contain its workflow and its key. Facts without them are skipped
  // without decoding, since most facts of a large world are of other instances.
  bool may_be_of(const std::string& fact) const {
    return fact.find(of_.cell.workflow) != std::string::npos && fact.find(of_.cell.key) != std::string::npos;
  }
  // Reads the facts after the cursor.
  Result<void> look_on() {
    const std::uint64_t last = place_.height + kMostLogLooks;
    for (;;) {
      MJ_TRY(read, in_.worlds.read(by_.context, of_.world, place_.height, kFactsOfALook));
      height_ = read.height;
      if (place_.height > height_) return wrong_place();  // cursor of a longer journal: the journal was restored
      for (const std::string& bytes : read.facts) {
        if (place_.height >= last || place_.under_way.size() >= kMostUnderWay) return {};
        ++place_.height;
        if (may_be_of(bytes)) MJ_CHECK(take(bytes));
      }
      if (place_.height >= read.height) return {};
      if (read.facts.empty())
        return fail(Code::invalid,
                    of_.world + ": the fact at height " + std::to_string(place_.height + 1) + " no longer exists");
    }
  }
  Result<void> take(const std::string& bytes) {
    auto fact = decode_workflow_fact(bytes);
    if (!fact) return fail(fact.error(), of_.world + ": height " + std::to_string(place_.height));
    const std::vector<CellId> cells = cells_of(*fact);
    if (std::find(cells.begin(), cells.end(), of_.cell) == cells.end()) return {};
    place_.met = true;
    std::visit(FollowsFacts(place_, of_.cell, *fact), fact->what);
    return {};
  }

  static LogFrame frame_of(const UnderWay& each) { return {each.effect, each.intent, each.carrier, {}, 0}; }
  // Returns a system line with the next number.
  static LogFrame note(const UnderWay& each, std::string text) {
    LogFrame frame = frame_of(each);
    frame.line = {each.at_ms, each.seq + 1, LogStream::system, std::move(text)};
    return frame;
  }
  // Returns a frame for the lines that the log has lost before `line`. Numbers without a line (`passed`) are not
  // counted as lost.
  static std::optional<LogFrame> gap(const UnderWay& each, const Log& line, const std::vector<std::uint64_t>& passed) {
    const auto between = [&](std::uint64_t number) { return number > each.seq && number < line.seq; };
    const auto none = static_cast<std::uint64_t>(std::count_if(passed.begin(), passed.end(), between));
    if (line.seq - each.seq - 1 <= none) return std::nullopt;
    const std::uint64_t lost = line.seq - each.seq - 1 - none;
    LogFrame frame = note(each, counted(lost, "piece") + " of this log are lost\n");
    frame.line.ts_ms = line.ts_ms, frame.dropped = lost;
    return frame;
  }
  // Appends lines to `out` up to `limit` frames. Returns false if no more lines will follow.
  Result<bool> read_lines(UnderWay& each, std::size_t limit, std::vector<LogFrame>& out) {
    if (each.carrier.starts_with("flow:")) {
      const std::string id = each.carrier.substr(5);
      out.push_back(note(each, each.carrier + " carries it out: `mycojobs flow logs " + id + "` has its lines\n"));
      return false;
    }
    if (auto may = may_with_job(by_, in_.records, Action::read, each.carrier, 0); !may) {
      if (may.error().code != Code::denied) return tl::unexpected<Error>(std::move(may).error());
      out.push_back(note(each, "the log is another's: " + may.error().message + "\n"));
      return false;
    }
    while (out.size() < limit) {
      auto page = in_.records.logs(by_.context, each.carrier, each.seq, std::min(kLinesOfALook, limit - out.size()), 0);
      if (!page && page.error().code == Code::not_found) {
        out.push_back(note(each, "the log of " + each.carrier + " no longer exists with its record\n"));
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

  const Caller& by_;
  const WorldStores& in_;
  NamedInstance of_;
  LogPlace place_;
  std::uint64_t height_ = 0;  // height of the world
};

}  // namespace

Result<InstanceLog> instance_log(const Caller& by, const WorldStores& in, const Instance& instance,
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
           {"stream", word(frame.line.stream)},
           {"text", to_utf8(frame.line.text)}};
  out[frame.carrier.starts_with("flow:") ? "flow" : "job"] = to_utf8(frame.carrier);
  if (frame.dropped > 0) out["dropped"] = frame.dropped;
  return out;
}

json to_json(const InstanceLog& log) {
  json frames = json::array();
  for (const LogFrame& frame : log.frames) frames.push_back(to_json(frame));
  return {{"frames", std::move(frames)}, {"after", log.after}, {"more", log.more}, {"ended", log.ended}};
}

}  // namespace mycojobs::service
