// The definitions for support/include/nlohmann/json.hpp.
#include <nlohmann/json.hpp>

template class nlohmann::basic_json<>;
template class std::map<std::string, nlohmann::json, std::less<>>;
template class std::vector<nlohmann::json>;
