#include "telemetry/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <cassert>
#include <charconv>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>
#include <variant>
#include <vector>

#include "base/version.h"
#include "telemetry/process_stats.h"
#include "text/split.h"

namespace mycojobs {
namespace {

constexpr char kBetween = '\x1f';
constexpr std::size_t kMaxLabel = 64;  // bytes of a value
constexpr const char* kOther = "other";

std::string printable(std::string_view text) {
  std::string out(text.substr(0, kMaxLabel));
  std::replace_if(
      out.begin(), out.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  return out;
}

// The concatenated texts of labels, without an allocation while they are short.
class SeriesKey {
 public:
  explicit SeriesKey(Metrics::Labels labels) {
    for (const Label& label : labels) {
      append(label.text());
      append({&kBetween, 1});
    }
  }
  std::string_view text() const { return long_.empty() ? std::string_view(short_.data(), size_) : long_; }

 private:
  void append(std::string_view text) {
    if (long_.empty() && size_ + text.size() <= short_.size()) {
      std::copy(text.begin(), text.end(), short_.begin() + static_cast<std::ptrdiff_t>(size_));
      size_ += text.size();
      return;
    }
    if (long_.empty()) long_.assign(short_.data(), size_);
    long_ += text;
  }
  std::array<char, 128> short_;  // NOLINT(*-member-init): only the first size_ bytes are used
  std::size_t size_ = 0;
  std::string long_;
};

struct KeyHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
};

template <class Series>
struct Table {
  prometheus::Family<Series>* family = nullptr;
  std::unordered_map<std::string, Series*, KeyHash, std::equal_to<>> series;
};

struct Row {
  std::vector<std::string> labels;
  std::variant<Table<prometheus::Counter>, Table<prometheus::Gauge>, Table<prometheus::Histogram>> table;
  mutable std::shared_mutex mutex;  // protects the table; a series stays valid while the lock is held
};

class Prometheus final : public Metrics {
 public:
  Prometheus() {
    for (const MetricRow& row : metric_rows()) {
      Row& made = rows_[static_cast<std::size_t>(row.metric)];
      made.labels = split_words(row.labels);
      const std::string name(row.name), help(row.help);
      switch (row.kind) {
        case MetricKind::counter:
          made.table = Table<prometheus::Counter>{&prometheus::BuildCounter().Name(name).Help(help).Register(all_), {}};
          if (made.labels.empty() && row.where == "both") Prometheus::add(row.metric, {}, 0);
          break;
        case MetricKind::gauge:
          made.table = Table<prometheus::Gauge>{&prometheus::BuildGauge().Name(name).Help(help).Register(all_), {}};
          break;
        case MetricKind::histogram:
          made.table =
              Table<prometheus::Histogram>{&prometheus::BuildHistogram().Name(name).Help(help).Register(all_), {}};
          break;
      }
    }
    Prometheus::set(Metric::build_info, {kVersion}, 1);
  }

  void add(Metric metric, Labels labels, double by) override {
    with<prometheus::Counter>(metric, labels, [by](prometheus::Counter& one) { one.Increment(by); });
  }
  void set(Metric metric, Labels labels, double to) override {
    with<prometheus::Gauge>(metric, labels, [to](prometheus::Gauge& one) { one.Set(to); });
  }
  void observe(Metric metric, Labels labels, double value) override {
    with<prometheus::Histogram>(metric, labels, [value](prometheus::Histogram& one) { one.Observe(value); });
  }
  void forget(Metric metric, Labels first) override {
    Row& row = row_of(metric);
    const SeriesKey key(first);
    const std::string_view begin = key.text();
    const std::unique_lock lock(row.mutex);
    auto& table = std::get<Table<prometheus::Gauge>>(row.table);
    for (auto each = table.series.begin(); each != table.series.end();) {
      if (!each->first.starts_with(begin)) {
        ++each;
        continue;
      }
      table.family->Remove(each->second);
      each = table.series.erase(each);
    }
  }
  std::string text() override {
    measure_process();
    return prometheus::TextSerializer().Serialize(all_.Collect());
  }

 private:
  void measure_process() {
    const std::lock_guard lock(measuring_);
    const ProcessFacts now = process_facts();
    set(Metric::start_time, {}, now.started_s);
    set(Metric::memory, {}, now.memory_bytes);
    set(Metric::open_files, {}, now.open_files);
    add(Metric::cpu, {}, std::max(0.0, now.cpu_s - cpu_s_));
    cpu_s_ = now.cpu_s;
  }

  Row& row_of(Metric metric) { return rows_[static_cast<std::size_t>(metric)]; }

  template <class Series, class Use>
  void with(Metric metric, Labels labels, const Use& use) {
    Row& row = row_of(metric);
    assert(labels.size() == row.labels.size());
    const SeriesKey key(labels);
    auto& table = std::get<Table<Series>>(row.table);
    {
      const std::shared_lock lock(row.mutex);
      if (const auto found = table.series.find(key.text()); found != table.series.end()) return use(*found->second);
    }
    const bool room = use_new(row, table, metric, key.text(), labels, use);
    if (!room) add(Metric::folded, {}, 1);
  }

  // Returns false if there are too many series, so that `other` was used.
  template <class Series, class Use>
  static bool use_new(Row& row, Table<Series>& table, Metric metric, std::string_view key, Labels labels,
                      const Use& use) {
    const std::unique_lock lock(row.mutex);
    const bool room = table.series.size() < kMaxSeries;
    prometheus::Labels named;
    std::size_t i = 0;
    for (const Label& label : labels) named.emplace(row.labels[i++], room ? printable(label.text()) : kOther);
    Series& made = make(*table.family, metric, named);
    if (room) table.series.emplace(key, &made);
    use(made);
    return room;
  }
  template <class Series>
  static Series& make(prometheus::Family<Series>& family, Metric metric, const prometheus::Labels& labels) {
    if constexpr (std::is_same_v<Series, prometheus::Histogram>) {
      return family.Add(labels, metric_rows()[static_cast<std::size_t>(metric)].buckets);
    } else {
      return family.Add(labels);
    }
  }

  prometheus::Registry all_;
  std::array<Row, kMetrics> rows_;
  std::mutex measuring_;
  double cpu_s_ = 0;  // value of the counter
};

class NoMetrics final : public Metrics {
 public:
  bool is_enabled() const override { return false; }
  void add(Metric /*metric*/, Labels /*labels*/, double /*by*/) override {}
  void set(Metric /*metric*/, Labels /*labels*/, double /*to*/) override {}
  void observe(Metric /*metric*/, Labels /*labels*/, double /*value*/) override {}
  void forget(Metric /*metric*/, Labels /*first*/) override {}
  std::string text() override { return {}; }
};

}  // namespace

Label::Label(Id id) {
  size_ =
      static_cast<std::size_t>(std::to_chars(digits_.data(), digits_.data() + digits_.size(), id).ptr - digits_.data());
}

std::shared_ptr<Metrics> no_metrics() { return std::make_shared<NoMetrics>(); }

std::shared_ptr<Metrics> Metrics::make() { return std::make_shared<Prometheus>(); }

}  // namespace mycojobs
