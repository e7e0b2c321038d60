// Finds many texts at once in a stream of bytes (Aho and Corasick, 1975): each byte costs a bounded number of steps on
// average, whatever the texts and whatever a hostile writer sends. Built once, then read by any thread.
//
// Nodes are the beginnings of texts; a text's nodes follow one another in memory, and only where texts part is there a
// table to look into. So a byte of text costs 16 bytes of memory.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace mycojobs {

class Matcher {
 public:
  using Node = std::uint32_t;  // where a stream is: the longest beginning of any text that it ends with. 0: none
  struct Match {
    std::uint32_t length = 0;  // 0: no text ends here
    std::uint32_t owner = 0;
  };

  Matcher();
  // Not empty. A text that is there already keeps its first owner.
  void add(std::string_view text, std::uint32_t owner);
  void finish();  // once, after the last add()

  Node next(Node, unsigned char byte) const;
  std::uint32_t depth(Node node) const { return nodes_[node].depth; }           // bytes of that beginning
  const Match& match(Node node) const { return matches_[nodes_[node].match]; }  // the longest text that ends here
  // The longest beginning that more bytes could still make a text. And a text that begins so, of one that is not 0.
  Node unfinished(Node) const;
  const Match& first_of(Node unfinished) const;
  bool starts_with(unsigned char byte) const { return root_[byte] != 0; }
  std::uint32_t longest() const { return longest_; }

 private:
  struct State {
    Node fail = 0;
    std::uint32_t depth = 0;
    std::uint32_t match = 0;  // in matches_
    unsigned char byte = 0;
    bool chained = false;  // the next node is its first child
    bool parts = false;    // it has other children
  };
  Node child(Node, unsigned char byte) const;  // 0: none
  Node make_child(Node, unsigned char byte);

  std::vector<State> nodes_;
  std::vector<Match> matches_;
  std::array<Node, 256> root_{};
  std::unordered_map<std::uint64_t, Node> branches_;  // node and byte -> further children
  std::vector<Node> parents_;                         // until finish()
  std::uint32_t longest_ = 0;
};

}  // namespace mycojobs
