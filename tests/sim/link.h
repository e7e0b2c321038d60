// A program's connection to the server, with injected network faults.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "store/redis/redis_link.h"
#include "world.h"

namespace mycojobs::sim {

class SimLink final : public Link {
 public:
  SimLink(World& world, Program& program, std::unique_ptr<Link> inner)
      : world_(world), program_(program), inner_(std::move(inner)) {}

  Result<Reply> command(const Arguments&, std::uint32_t extra_ms) override;
  Result<Reply> run(const Script&, const Arguments&) override;
  std::optional<int> begin(const Script&, const Arguments&) override;  // returns -1, since there is no descriptor
  Result<Reply> finish(const Script&, const Arguments&) override;
  const std::string& server_run_id() const override { return run_id_; }

 private:
  using Call = std::function<Result<Reply>(Link&, const Arguments&)>;
  Result<Reply> pass(std::string_view name, const Arguments&, const Call&);
  bool is_lost(const std::string& call_name);
  bool is_late(const std::string& call_name, std::string_view name, const Arguments&, const Call&);
  Result<void> connect();
  bool is_cut(const std::string& call_name, const Call&, const Arguments&);
  Result<Reply> send(const Call&, const Arguments&);
  void send_later(std::string_view name, const Arguments&, const Call&, Ms later);

  World& world_;
  Program& program_;
  std::unique_ptr<Link> inner_;
  std::uint64_t start_ = 0;  // number of the server start that this connection belongs to
  std::string run_id_;
  std::optional<Result<Reply>> begun_;
};

}  // namespace mycojobs::sim
