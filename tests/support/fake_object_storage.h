// An object storage in this process, on loopback: the part of the protocol of Amazon S3 that agents use, with one
// bucket named "bucket". It verifies neither signatures nor hashes. Tests inject faults. Thread-safe.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "artifacts/bucket/artifact_bucket.h"

namespace mycojobs::test {

class FakeObjectStorage {
 public:
  struct Answer {
    int status = 200;
    std::string body;
    std::string headers = {};  // lines that end with "\r\n"
  };
  // Receives the method, the key and the query of each request. A value is sent as the answer. Must be thread-safe.
  using Fault =
      std::function<std::optional<Answer>(const std::string& method, const std::string& key, const std::string& query)>;
  static Answer make_error(int status, const std::string& s3_code) {
    return {status, "<Error><Code>" + s3_code + "</Code><Message>text</Message></Error>"};
  }

  FakeObjectStorage() : listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    auto* const generic = reinterpret_cast<sockaddr*>(&address);
    if (::bind(listener_, generic, size) != 0 || ::listen(listener_, 64) != 0 ||
        ::getsockname(listener_, generic, &size) != 0)
      throw std::runtime_error("the fake object storage cannot listen");
    port_ = ntohs(address.sin_port);
    acceptor_ = std::thread([this] { accept_connections(); });
  }
  ~FakeObjectStorage() {
    set_fault(nullptr);
    ::shutdown(listener_, SHUT_RDWR);
    acceptor_.join();
    {
      const std::lock_guard lock(mutex_);
      for (const int fd : connections_) ::shutdown(fd, SHUT_RDWR);
    }
    for (std::thread& thread : threads_) thread.join();
    ::close(listener_);
  }
  FakeObjectStorage(const FakeObjectStorage&) = delete;
  FakeObjectStorage& operator=(const FakeObjectStorage&) = delete;

  // Returns a client of the bucket. Its credentials are written to a file in the folder.
  std::shared_ptr<ArtifactBucket> open_bucket(const std::string& folder, std::uint64_t part_bytes = 64U << 20) const {
    ArtifactBucket::Settings settings;
    settings.url = "s3://bucket";
    settings.endpoint = "http://127.0.0.1:" + std::to_string(port_);
    settings.region = "us-east-1";
    settings.uses_path_style = true;
    settings.credentials = folder + "/credentials";
    settings.part_bytes = part_bytes;
    std::ofstream(settings.credentials) << "aws_access_key_id = KEY\naws_secret_access_key = SECRET\n";
    std::filesystem::permissions(settings.credentials, std::filesystem::perms::owner_read);
    auto bucket = ArtifactBucket::create(settings);
    if (!bucket) throw std::runtime_error(bucket.error().message);
    return *bucket;
  }
  void set_fault(Fault fault) {
    const std::lock_guard lock(mutex_);
    fault_ = std::move(fault);
  }
  void put(const std::string& key, const std::string& content) {
    const std::lock_guard lock(mutex_);
    objects_[key] = content;
  }
  std::map<std::string, std::string> objects() const {
    const std::lock_guard lock(mutex_);
    return objects_;
  }
  std::size_t upload_count() const {
    const std::lock_guard lock(mutex_);
    return uploads_.size();
  }
  void set_modified(const std::string& time) {  // time of all objects in listings
    const std::lock_guard lock(mutex_);
    modified_ = time;
  }

 private:
  struct Upload {
    std::string key;
    std::map<int, std::string> parts = {};
  };

  void accept_connections() {
    for (;;) {
      const int fd = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
      if (fd < 0) return;
      const std::lock_guard lock(mutex_);
      connections_.push_back(fd);
      threads_.emplace_back([this, fd] {
        while (serve_request(fd)) {
        }
        const std::lock_guard guard(mutex_);
        connections_.remove(fd);
        ::close(fd);
      });
    }
  }

  // Returns false at the end of the connection.
  bool serve_request(int fd) {
    std::string text;
    std::size_t head_end = std::string::npos;
    while ((head_end = text.find("\r\n\r\n")) == std::string::npos) {
      if (!receive(fd, text)) return false;
    }
    std::string head = text.substr(0, head_end), body = text.substr(head_end + 4);
    for (char& c : head)
      c = c >= 'A' && c <= 'Z' && &c > head.data() + head.find("\r\n") ? static_cast<char>(c + 32) : c;
    const std::size_t length_begin = head.find("\r\ncontent-length:");
    const std::size_t length =
        length_begin == std::string::npos ? 0 : std::strtoull(head.c_str() + length_begin + 17, nullptr, 10);
    while (body.size() < length) {
      if (!receive(fd, body)) return false;
    }
    const std::size_t space = head.find(' ');
    const std::string method = head.substr(0, space),
                      target = head.substr(space + 1, head.find(' ', space + 1) - space - 1);
    const std::size_t question = std::min(target.find('?'), target.size());
    const std::string path = target.substr(0, question);
    const std::string query = question < target.size() ? '&' + target.substr(question + 1) + '&' : "";
    const std::string key = decode(path.substr(std::min(path.size(), std::string("/bucket/").size())));
    Fault fault;
    {
      const std::lock_guard lock(mutex_);
      fault = fault_;
    }
    std::optional<Answer> answer;
    if (fault) answer = fault(method, key, query);
    if (!answer) answer = make_answer(method, key, query, body);
    const std::string reply = "HTTP/1.1 " + std::to_string(answer->status) + " text\r\n" + answer->headers +
                              "Content-Length: " + std::to_string(answer->body.size()) + "\r\n\r\n" + answer->body;
    return ::send(fd, reply.data(), reply.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(reply.size());
  }

  Answer make_answer(const std::string& method, const std::string& key, const std::string& query,
                     const std::string& body) {
    const std::lock_guard lock(mutex_);
    const std::string id = find_parameter(query, "uploadId");
    if (!id.empty()) return answer_part(method, key, query, id, body);
    if (method == "POST") {
      const std::string new_id = "upload" + std::to_string(++last_upload_);
      uploads_[new_id] = {key};
      return {200, "<R><UploadId>" + new_id + "</UploadId></R>"};
    }
    if (method == "GET" && query.find("&uploads=&") != std::string::npos)
      return list_uploads(find_parameter(query, "prefix"));
    if (method == "GET" && key.empty()) return list_objects(find_parameter(query, "prefix"));
    if (method == "PUT") objects_[key] = body;
    if (method == "DELETE") objects_.erase(key);
    if (method != "GET") return {method == "PUT" ? 200 : 204, ""};
    const auto object = objects_.find(key);
    return object == objects_.end() ? make_error(404, "NoSuchKey") : Answer{200, object->second};
  }
  Answer answer_part(const std::string& method, const std::string& key, const std::string& query, const std::string& id,
                     const std::string& body) {
    const auto upload = uploads_.find(id);
    if (upload == uploads_.end()) return make_error(404, "NoSuchUpload");
    if (method == "PUT") {
      upload->second.parts[std::atoi(find_parameter(query, "partNumber").c_str())] = body;
      return {200, "", "ETag: \"etag\"\r\n"};
    }
    if (method == "POST") {
      objects_[key].clear();
      for (const auto& [number, part] : upload->second.parts) objects_[key] += part;
    }
    uploads_.erase(upload);
    return method == "POST" ? Answer{200, "<CompleteMultipartUploadResult></CompleteMultipartUploadResult>"}
                            : Answer{204, ""};
  }
  Answer list_objects(const std::string& prefix) const {
    std::string rows;
    for (const auto& [key, content] : objects_) {
      if (key.starts_with(prefix)) {
        rows += "<Contents><Key>" + key + "</Key><LastModified>" + modified_ + "</LastModified><Size>" +
                std::to_string(content.size()) + "</Size></Contents>";
      }
    }
    return {200, "<R><IsTruncated>false</IsTruncated>" + rows + "</R>"};
  }
  Answer list_uploads(const std::string& prefix) const {
    std::string rows;
    for (const auto& [id, upload] : uploads_) {
      if (upload.key.starts_with(prefix)) {
        rows += "<Upload><Key>" + upload.key + "</Key><UploadId>" + id + "</UploadId><Initiated>" + modified_ +
                "</Initiated></Upload>";
      }
    }
    return {200, "<R>" + rows + "</R>"};
  }
  static bool receive(int fd, std::string& text) {
    std::string buffer(1U << 16, '\0');
    const ssize_t count = ::recv(fd, buffer.data(), buffer.size(), 0);
    if (count > 0) text.append(buffer, 0, static_cast<std::size_t>(count));
    return count > 0;
  }
  static std::string decode(const std::string& text) {
    std::string decoded;
    for (std::size_t i = 0; i < text.size(); ++i) {
      const bool is_encoded = text[i] == '%' && i + 2 < text.size();
      decoded += is_encoded ? static_cast<char>(std::strtol(text.substr(i + 1, 2).c_str(), nullptr, 16)) : text[i];
      if (is_encoded) i += 2;
    }
    return decoded;
  }
  static std::string find_parameter(const std::string& query, const std::string& name) {
    const std::size_t begin = query.find('&' + name + '=');
    if (begin == std::string::npos) return "";
    const std::size_t value = begin + name.size() + 2;
    return decode(query.substr(value, query.find('&', value) - value));
  }

  const int listener_;
  int port_ = 0;
  mutable std::mutex mutex_;
  // Guarded by mutex_:
  Fault fault_;
  std::map<std::string, std::string> objects_;
  std::map<std::string, Upload> uploads_;
  std::string modified_ = "2020-01-01T00:00:00.000Z";
  int last_upload_ = 0;
  std::list<int> connections_;
  std::list<std::thread> threads_;
  std::thread acceptor_;
};

}  // namespace mycojobs::test
