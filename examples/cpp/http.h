// As much of HTTP as an example needs, over Linux's own sockets: each connection has one request, a POST whose body is
// a short text, and the response is a text that is sent as it comes.
#pragma once

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <strings.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>

// Why a request is not answered: the status.
struct Refused {
  const char* status;
};

class Connection {
 public:
  explicit Connection(int socket) : file_(fdopen(socket, "r"), std::fclose), socket_(socket) {
    const int on = 1;
    const timeval patience = {30, 0};
    setsockopt(socket_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  }

  // The body of the request.
  std::string read() {
    const bool is_post = read_line().rfind("POST ", 0) == 0;
    long long length = -1;
    for (std::string line = read_line(); line != "\r\n"; line = read_line()) {
      if (strncasecmp(line.c_str(), "content-length:", 15) != 0) continue;
      const char* digits = line.c_str() + 15;
      char* end = nullptr;
      length = std::strtoll(digits, &end, 10);
      if (end == digits) length = -1;
    }
    if (!is_post) throw Refused{"405 Method Not Allowed\r\nAllow: POST"};
    if (length < 0) throw Refused{"411 Length Required"};
    if (length > kMaxBytes) throw Refused{"413 Content Too Large"};
    std::string body(static_cast<std::size_t>(length), ' ');
    if (std::fread(body.data(), 1, body.size(), file_.get()) < body.size()) throw std::runtime_error("the client left");
    return body;
  }

  // The response: begin, then write, which fails if the client has left, then end. One without an end was broken off.
  void begin() {
    send_all(
        "HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=utf-8\r\n"
        "Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n");
  }
  void write(std::string_view text) {
    // While the question is read there is nothing to write. An empty chunk would be the last one.
    char byte = 0;
    if (recv(socket_, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0) throw std::runtime_error("the client left");
    if (text.empty()) return;
    char size[32];
    std::snprintf(size, sizeof size, "%zx\r\n", text.size());
    send_all(size + std::string(text) + "\r\n");
  }
  void end() { send_all("0\r\n\r\n"); }

  // Another response.
  void refuse(const Refused& why) {
    send_all(std::string("HTTP/1.1 ") + why.status + "\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    shutdown(socket_, SHUT_WR);
    // A client that is still sending would not see the response otherwise.
    for (long long n = 0; n < 16 * kMaxBytes && std::fgetc(file_.get()) != EOF; ++n) continue;
  }

 private:
  static constexpr long long kMaxBytes = 64 * 1024;

  std::string read_line() {
    char line[8192];
    if (!std::fgets(line, sizeof line, file_.get())) throw std::runtime_error("the client left");
    if (std::strchr(line, '\n') == nullptr && std::strlen(line) + 1 == sizeof line) {
      throw Refused{"431 Request Header Fields Too Large"};
    }
    return line;
  }

  void send_all(std::string_view text) {
    while (!text.empty()) {
      const ssize_t sent = send(socket_, text.data(), text.size(), MSG_NOSIGNAL);
      if (sent < 0) throw std::system_error(errno, std::generic_category());
      text.remove_prefix(static_cast<std::size_t>(sent));
    }
  }

  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_;
  int socket_;
};

// A socket that connections can be accepted from, without waiting. The address is HOST:PORT; where the port is 0, any
// is taken, and stands in the address then.
inline int listen_at(std::string* address) {
  const std::size_t colon = address->rfind(':');
  const std::string host = address->substr(0, colon);
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  const int unknown = getaddrinfo(host.c_str(), address->c_str() + colon + 1, &hints, &found);
  if (unknown != 0) throw std::runtime_error(*address + ": " + gai_strerror(unknown));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owned(found, freeaddrinfo);
  const int listener = socket(found->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), on = 1;
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (bind(listener, found->ai_addr, found->ai_addrlen) != 0 || listen(listener, SOMAXCONN) != 0 ||
      getsockname(listener, found->ai_addr, &found->ai_addrlen) != 0) {
    throw std::system_error(errno, std::generic_category(), *address);
  }
  char port[8] = "";
  getnameinfo(found->ai_addr, found->ai_addrlen, nullptr, 0, port, sizeof port, NI_NUMERICSERV);
  *address = host + ":" + port;
  return listener;
}
