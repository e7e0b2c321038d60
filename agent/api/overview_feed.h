// How a context is, for all who watch it: read at most once a second, however many they are.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "api/event_stream.h"
#include "api/services.h"

namespace mycojobs::api {

struct OverviewText {
  std::string text;  // an Overview (shapes.cpp) with its context
  std::string rest;  // the same without the moment it was read at: equal texts say nothing new
};

class OverviewFeed {
 public:
  explicit OverviewFeed(Services& services) : services_(services) {}
  // Of who may read the context; asked again with each text. Any thread. That the store does not answer is found out by
  // one for all who wait: it takes no longer however many they are.
  Result<std::shared_ptr<const OverviewText>> read(const EventRequest&);

 private:
  using Text = std::shared_ptr<const OverviewText>;
  struct Kept {
    std::mutex mutex;  // one reads, the others wait for what it finds
    std::unique_ptr<Store> store;
    std::chrono::steady_clock::time_point at;
    Result<Text> text = nullptr;  // or that the store is away; null: never read
    std::set<Id> readers;         // who may read this text
  };
  std::shared_ptr<Kept> kept(Id context);
  Result<Text> read_text(Kept&, Id context);

  Services& services_;
  std::mutex mutex_;  // of the map alone
  std::map<Id, std::shared_ptr<Kept>> kept_;
};

}  // namespace mycojobs::api
