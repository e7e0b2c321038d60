#include "support/mycelium_mesh.h"
#include "support/build_paths.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "text/base64.h"

namespace mycojobs::test {

using nlohmann::json;

MyceliumMesh::MyceliumMesh(std::size_t nodes, unsigned window_s)
    : program_(folder_, {mj::test::source_path("tests/support/mycelium_node.py"), std::to_string(nodes),
                         std::to_string(window_s)}) {
  const bool is_started = eventually([this] { return program_.out().ends_with('\n'); });
  const json addresses = json::parse(program_.out(), nullptr, false);
  if (!is_started || !addresses.is_object()) {
    ADD_FAILURE() << "the nodes do not start: " << program_.err();
    std::abort();
  }
  control_url_ = addresses["control"];
  for (const json& node : addresses["nodes"]) nodes_.push_back({node["rest"], node["rpc"], node["key"], node["ip"]});
}

void MyceliumMesh::control(std::size_t node, const std::string& action, unsigned count) {
  send_control_request({{"node", node}, {"do", action}, {"count", count}});
}

void MyceliumMesh::forge(std::size_t to, std::size_t from, const std::string& topic, const std::string& payload) {
  send_control_request(
      {{"node", to}, {"do", "forge"}, {"from", from}, {"topic", topic}, {"payload", encode_base64(payload)}});
}

MyceliumMesh::Counts MyceliumMesh::counts(std::size_t node) {
  const json out = send_control_request({{"node", node}, {"do", "count"}});
  return {out.value("pushed", std::uint64_t{0}), out.value("pending", std::uint64_t{0}),
          out.value("sending", std::uint64_t{0}), out.value("inbox", std::uint64_t{0}), out.value("longest_hold", 0.0)};
}

json MyceliumMesh::send_control_request(const json& request) {
  HttpPost post;
  post.url = control_url_;
  post.body = request.dump();
  const auto answer = http_.post(post);
  EXPECT_TRUE(answer && answer->status == 200) << request.dump();
  return answer ? json::parse(answer->body, nullptr, false) : json::object();
}

}  // namespace mycojobs::test
