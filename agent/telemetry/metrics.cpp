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

constexpr char kValueSeparator = '\x1f';
constexpr std::size_t kMaxLabelValueBytes = 64;
constexpr const char* kOverflowLabelValue = "other";

std::string to_printable(std::string_view text) {
  std::string printable_text(text.substr(0, kMaxLabelValueBytes));
  std::replace_if(
      printable_text.begin(), printable_text.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  return printable_text;
}

// Key of a series in SeriesTable: the concatenated label values. A short key is stored without an allocation.
class SeriesKey {
 public:
  explicit SeriesKey(Metrics::LabelValues values) {
    for (const LabelValue& value : values) {
      append(value.text());
      append({&kValueSeparator, 1});
    }
  }
  std::string_view text() const {
    return heap_buffer_.empty() ? std::string_view(inline_buffer_.data(), size_) : heap_buffer_;
  }

 private:
  void append(std::string_view text) {
    if (heap_buffer_.empty() && size_ + text.size() <= inline_buffer_.size()) {
      std::copy(text.begin(), text.end(), inline_buffer_.begin() + static_cast<std::ptrdiff_t>(size_));
      size_ += text.size();
      return;
    }
    if (heap_buffer_.empty()) heap_buffer_.assign(inline_buffer_.data(), size_);
    heap_buffer_ += text;
  }
  std::array<char, 128> inline_buffer_;  // NOLINT(*-member-init): only the first size_ bytes are used
  std::size_t size_ = 0;
  std::string heap_buffer_;
};

struct KeyHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
};

// The series of one metric of the type `Series` (counter, gauge or histogram of prometheus-cpp) by their SeriesKey.
template <class Series>
struct SeriesTable {
  prometheus::Family<Series>* family = nullptr;
  std::unordered_map<std::string, Series*, KeyHash, std::equal_to<>> series;
};

// All series of one metric. A pointer to a series is valid only while `mutex` is held.
struct MetricSeries {
  std::vector<std::string> label_names;
  std::variant<SeriesTable<prometheus::Counter>, SeriesTable<prometheus::Gauge>, SeriesTable<prometheus::Histogram>>
      table;
  mutable std::shared_mutex mutex;  // Protects `table`.
};

class PrometheusMetrics final : public Metrics {
 public:
  PrometheusMetrics() {
    for (const MetricRow& row : metric_rows()) {
      MetricSeries& series = metrics_[static_cast<std::size_t>(row.metric)];
      series.label_names = split_words(row.label_names);
      const std::string name(row.name), help(row.help);
      switch (row.kind) {
        case MetricKind::counter:
          series.table = SeriesTable<prometheus::Counter>{
              &prometheus::BuildCounter().Name(name).Help(help).Register(registry_), {}};
          if (series.label_names.empty() && row.process_kind == "both") PrometheusMetrics::add(row.metric, {}, 0);
          break;
        case MetricKind::gauge:
          series.table =
              SeriesTable<prometheus::Gauge>{&prometheus::BuildGauge().Name(name).Help(help).Register(registry_), {}};
          break;
        case MetricKind::histogram:
          series.table = SeriesTable<prometheus::Histogram>{
              &prometheus::BuildHistogram().Name(name).Help(help).Register(registry_), {}};
          break;
      }
    }
    PrometheusMetrics::set(Metric::build_info, {kVersion}, 1);
  }

  void add(Metric metric, LabelValues label_values, double amount) override {
    update_series<prometheus::Counter>(metric, label_values,
                                       [amount](prometheus::Counter& series) { series.Increment(amount); });
  }
  void set(Metric metric, LabelValues label_values, double value) override {
    update_series<prometheus::Gauge>(metric, label_values, [value](prometheus::Gauge& series) { series.Set(value); });
  }
  void observe(Metric metric, LabelValues label_values, double value) override {
    update_series<prometheus::Histogram>(metric, label_values,
                                         [value](prometheus::Histogram& series) { series.Observe(value); });
  }
  void remove_series(Metric metric, LabelValues first_values) override {
    MetricSeries& metric_series = find_metric(metric);
    const SeriesKey key(first_values);
    const std::string_view prefix = key.text();
    const std::unique_lock lock(metric_series.mutex);
    auto& table = std::get<SeriesTable<prometheus::Gauge>>(metric_series.table);
    for (auto entry = table.series.begin(); entry != table.series.end();) {
      if (!entry->first.starts_with(prefix)) {
        ++entry;
        continue;
      }
      table.family->Remove(entry->second);
      entry = table.series.erase(entry);
    }
  }
  std::string render() override {
    update_process_metrics();
    return prometheus::TextSerializer().Serialize(registry_.Collect());
  }

 private:
  void update_process_metrics() {
    const std::lock_guard lock(process_mutex_);
    const ProcessStats stats = read_process_stats();
    set(Metric::process_start_time, {}, stats.start_time_s);
    set(Metric::resident_memory, {}, stats.resident_bytes);
    set(Metric::open_files, {}, stats.open_files);
    add(Metric::process_cpu_time, {}, std::max(0.0, stats.cpu_time_s - reported_cpu_time_s_));
    reported_cpu_time_s_ = stats.cpu_time_s;
  }

  MetricSeries& find_metric(Metric metric) { return metrics_[static_cast<std::size_t>(metric)]; }

  template <class Series, class Update>
  void update_series(Metric metric, LabelValues label_values, const Update& update) {
    MetricSeries& metric_series = find_metric(metric);
    assert(label_values.size() == metric_series.label_names.size());
    const SeriesKey key(label_values);
    auto& table = std::get<SeriesTable<Series>>(metric_series.table);
    {
      const std::shared_lock lock(metric_series.mutex);
      if (const auto position = table.series.find(key.text()); position != table.series.end())
        return update(*position->second);
    }
    const bool has_capacity = update_new_series(metric_series, table, metric, key.text(), label_values, update);
    if (!has_capacity) add(Metric::metric_values_folded, {}, 1);
  }

  // Adds a series and updates it. Returns false if the metric already has kMaxSeries series: the update then applies to
  // the series with the label values `other`.
  template <class Series, class Update>
  static bool update_new_series(MetricSeries& metric_series, SeriesTable<Series>& table, Metric metric,
                                std::string_view key, LabelValues label_values, const Update& update) {
    const std::unique_lock lock(metric_series.mutex);
    const bool has_capacity = table.series.size() < kMaxSeries;
    prometheus::Labels labels;
    std::size_t i = 0;
    for (const LabelValue& value : label_values)
      labels.emplace(metric_series.label_names[i++], has_capacity ? to_printable(value.text()) : kOverflowLabelValue);
    Series& series = add_series(*table.family, metric, labels);
    if (has_capacity) table.series.emplace(key, &series);
    update(series);
    return has_capacity;
  }
  template <class Series>
  static Series& add_series(prometheus::Family<Series>& family, Metric metric, const prometheus::Labels& labels) {
    if constexpr (std::is_same_v<Series, prometheus::Histogram>) {
      return family.Add(labels, metric_rows()[static_cast<std::size_t>(metric)].buckets);
    } else {
      return family.Add(labels);
    }
  }

  prometheus::Registry registry_;
  std::array<MetricSeries, kMetricCount> metrics_;
  std::mutex process_mutex_;
  double reported_cpu_time_s_ = 0;  // Current value of the counter Metric::process_cpu_time.
};

class NoMetrics final : public Metrics {
 public:
  bool is_enabled() const override { return false; }
  void add(Metric /*metric*/, LabelValues /*label_values*/, double /*amount*/) override {}
  void set(Metric /*metric*/, LabelValues /*label_values*/, double /*value*/) override {}
  void observe(Metric /*metric*/, LabelValues /*label_values*/, double /*value*/) override {}
  void remove_series(Metric /*metric*/, LabelValues /*first_values*/) override {}
  std::string render() override { return {}; }
};

}  // namespace

LabelValue::LabelValue(Id id) {
  size_ =
      static_cast<std::size_t>(std::to_chars(digits_.data(), digits_.data() + digits_.size(), id).ptr - digits_.data());
}

std::shared_ptr<Metrics> no_metrics() { return std::make_shared<NoMetrics>(); }

std::shared_ptr<Metrics> Metrics::make() { return std::make_shared<PrometheusMetrics>(); }

}  // namespace mycojobs
