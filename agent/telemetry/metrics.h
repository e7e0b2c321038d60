// The metrics of a process for /metrics (Prometheus text). A process has one object, which is created with its
// components and passed to them; each test has its own. Thread-safe.
//
// metric_table.h defines the names, labels and help texts. Callers pass label values of fixed sets and ids of contexts,
// never user input, ids of jobs or keys, because each combination of values is a series in memory. As a protection
// against bugs and a malicious store, label values are shortened and converted to printable ASCII, and after kMaxSeries
// series a metric counts new label values under `other`.
//
// A call costs one lookup by the label texts and one atomic addition, about 100 ns (bench/metrics.cpp).
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>

#include "model/records.h"
#include "telemetry/metric_table.h"

namespace mycojobs {

// The value of a label: a word, or the id of a context. A word is not copied and must outlive the object.
class LabelValue {
 public:
  LabelValue(std::string_view text) : text_(text) {}    // NOLINT(*-explicit-*)
  LabelValue(const char* text) : text_(text) {}         // NOLINT(*-explicit-*)
  LabelValue(const std::string& text) : text_(text) {}  // NOLINT(*-explicit-*)
  LabelValue(Id id);                                    // NOLINT(*-explicit-*)
  std::string_view text() const { return size_ > 0 ? std::string_view(digits_.data(), size_) : text_; }

 private:
  std::string_view text_;
  std::array<char, 10> digits_{};
  std::size_t size_ = 0;
};

class Metrics {
 public:
  static constexpr std::size_t kMaxSeries = 1000;         // Maximum number of series of one metric.
  using LabelValues = std::initializer_list<LabelValue>;  // REQUIRES: number and order as in MetricRow::label_names.

  virtual ~Metrics() = default;
  // Returns false if updates are dropped, so that the caller can skip work for them.
  virtual bool is_enabled() const { return true; }
  virtual void add(Metric, LabelValues, double amount = 1) = 0;  // REQUIRES: the metric is a counter.
  virtual void set(Metric, LabelValues, double value) = 0;       // REQUIRES: the metric is a gauge.
  virtual void observe(Metric, LabelValues, double value) = 0;   // REQUIRES: the metric is a histogram.
  // Removes all series of a gauge whose label values begin with `first_values`.
  virtual void remove_series(Metric, LabelValues first_values) = 0;
  // Reads the resource usage of the process and returns all metrics in the text format of Prometheus.
  virtual std::string render() = 0;

  static std::shared_ptr<Metrics> make();
};

// Returns an object that drops all updates, for components that are created without metrics.
std::shared_ptr<Metrics> no_metrics();

}  // namespace mycojobs
