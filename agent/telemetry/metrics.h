// The metrics of a process for /metrics (Prometheus text). A process has one object, which is created with its
// components and passed to them; each test has its own. Thread-safe.
//
// Names, labels and texts are in metric_table.h. Label values come from fixed sets, never from text of users, ids of
// jobs or keys; there are few context ids. To limit the cost of a mistake or a malicious store, values are cut to
// printable ASCII, and a metric with kMaxSeries series counts new values under the label `other`.
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

// The value of a label: a word, or the id of a context. Refers to the text, which must outlive the label.
class Label {
 public:
  Label(std::string_view text) : text_(text) {}    // NOLINT(*-explicit-*)
  Label(const char* text) : text_(text) {}         // NOLINT(*-explicit-*)
  Label(const std::string& text) : text_(text) {}  // NOLINT(*-explicit-*)
  Label(Id id);                                    // NOLINT(*-explicit-*)
  std::string_view text() const { return size_ > 0 ? std::string_view(digits_.data(), size_) : text_; }

 private:
  std::string_view text_;
  std::array<char, 10> digits_{};
  std::size_t size_ = 0;
};

class Metrics {
 public:
  static constexpr std::size_t kMaxSeries = 1000;  // limit for one metric
  using Labels = std::initializer_list<Label>;     // same number and order as in the row

  virtual ~Metrics() = default;
  // Returns false if updates are dropped, so that the caller can skip work for them.
  virtual bool is_enabled() const { return true; }
  virtual void add(Metric, Labels, double amount = 1) = 0;  // REQUIRES: the metric is a counter.
  virtual void set(Metric, Labels, double value) = 0;       // REQUIRES: the metric is a gauge.
  virtual void observe(Metric, Labels, double value) = 0;   // REQUIRES: the metric is a histogram.
  // Removes all series of a gauge whose first labels are `first_labels`.
  virtual void remove_series(Metric, Labels first_labels) = 0;
  // Updates the metrics about the process and returns all metrics in the text format of Prometheus.
  virtual std::string render() = 0;

  static std::shared_ptr<Metrics> make();
};

// Returns an object that drops all updates, for components that are created without metrics.
std::shared_ptr<Metrics> no_metrics();

}  // namespace mycojobs
