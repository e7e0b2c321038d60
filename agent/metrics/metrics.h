// What a process has counted, for /metrics (Prometheus text). One object a process, made where its parts are wired and
// handed to them; tests have one each. Any thread.
//
// Names, labels and texts: metric_table.h. Values of labels come from closed lists, never from a person's text, an id
// of a job or a key; context ids are few. So that a mistake, or a hostile store, costs nothing: values are cut to
// printable ASCII, and a metric that has kMostSeries counts what is new under the label `other`.
//
// Cost of a call: one look in a table by the labels' texts, one atomic addition; about 100 ns (bench/metrics.cpp).
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>

#include "metrics/metric_table.h"
#include "mycojobs/records.h"

namespace mycojobs {

// The value of a label: a word, or a context's id.
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
  static constexpr std::size_t kMostSeries = 1000;  // of one metric
  using Labels = std::initializer_list<Label>;      // as many as the row names, in its order

  virtual ~Metrics() = default;
  virtual bool wanted() const { return true; }          // somebody may ask for the text
  virtual void add(Metric, Labels, double by = 1) = 0;  // counter
  virtual void set(Metric, Labels, double to) = 0;      // gauge
  virtual void observe(Metric, Labels, double value) = 0;
  // The series of a gauge whose first labels are these are gone: the process does not know them any more.
  virtual void forget(Metric, Labels first) = 0;
  virtual std::string text() = 0;  // measures the process, too

  static std::shared_ptr<Metrics> make();
};

// Counts nothing: of parts that are made without any.
std::shared_ptr<Metrics> no_metrics();

}  // namespace mycojobs
