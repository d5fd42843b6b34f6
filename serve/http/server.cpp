#include "serve/http/server.h"

#include <fmt/format.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <future>
#include <set>
#include <thread>

#include "base/threads.h"
#include "serve/http/connection.h"
#include "serve/http/handler_pool.h"

namespace outrider {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

constexpr int kBacklog = 4096;  // the kernel may set a lower limit
constexpr std::chrono::milliseconds kAcceptPause{100};
// A connection that was silent for this long may be closed for a new one.
constexpr std::chrono::seconds kPatience{1};

class AsioServer final : public HttpServer, public HttpConnection::Owner {
 public:
  AsioServer(HttpOptions options, HttpHandler handler)
      : options_(std::move(options)),
        acceptor_(context_),
        accept_timer_(context_),
        handler_(handler),
        handlers_(options_, std::move(handler)) {}
  ~AsioServer() override;

  Status listen(const std::string& host, uint16_t port);
  void run();
  std::string address() const override { return address_; }
  void drain(std::chrono::milliseconds limit) override;

 private:
  void accept();
  void admit(tcp::socket socket);
  bool make_room();
  void asked(HttpRequest request, std::shared_ptr<HttpReply> reply,
             std::shared_ptr<const HttpExchange> exchange) override {
    if (options_.is_quick && options_.is_quick(request))
      return handler_(std::move(request), std::move(reply));
    handlers_.add({std::move(request), std::move(reply), std::move(exchange)});
  }
  void answered() override { tell_if_drained(); }
  void noted(const HttpRecord& record) override {
    if (options_.on_answered) options_.on_answered(record);
  }
  void closed(HttpConnection& connection) override {
    connections_.erase(connection.shared_from_this());
    tell_if_drained();
  }
  void tell_if_drained();

  const HttpOptions options_;
  // Created without the single-thread hint: with it, work posted by the running thread would be queued behind
  // work that other threads post later, and a reply released by another thread could look dropped before it
  // is sent.
  asio::io_context context_;
  const std::shared_ptr<SocketThread> thread_ = std::make_shared<SocketThread>(context_);
  tcp::acceptor acceptor_;
  asio::steady_timer accept_timer_;
  std::set<std::shared_ptr<HttpConnection>> connections_;
  std::shared_ptr<std::promise<void>> drained_;  // set while drain() waits
  std::string address_;
  const HttpHandler handler_;
  HandlerPool handlers_;
  std::jthread sockets_;
};

AsioServer::~AsioServer() {
  context_.stop();
  if (sockets_.joinable()) sockets_.join();
  while (!connections_.empty()) (*connections_.begin())->close();
  thread_->close();
}

Status why_not(const std::string& host, uint16_t port, const error_code& error) {
  const std::string flags = fmt::format("--host {} --port {}", host, port);
  if (error == asio::error::address_in_use)
    return unavailable(flags +
                       ": another program listens there, perhaps an earlier `outrider serve`; stop it, "
                       "or choose another port (0: any that is free)");
  if (error == asio::error::access_denied)
    return invalid_argument(flags + ": ports below 1024 need privileges; choose a higher one");
  return invalid_argument(
      fmt::format("{}: cannot listen there: {}; name an address of this machine", flags, error.message()));
}

Status AsioServer::listen(const std::string& host, uint16_t port) {
  error_code error;
  const auto found =
      tcp::resolver(context_).resolve(host, std::to_string(port), tcp::resolver::passive, error);
  if (error || found.empty()) return why_not(host, port, error);
  const tcp::endpoint endpoint = found.begin()->endpoint();
  acceptor_.open(endpoint.protocol(), error);
  if (!error) acceptor_.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor_.bind(endpoint, error);
  if (!error) acceptor_.listen(kBacklog, error);
  if (error) return why_not(host, port, error);
  const tcp::endpoint at = acceptor_.local_endpoint();
  const std::string name = at.address().to_string();
  address_ = fmt::format("http://{}:{}", at.address().is_v6() ? "[" + name + "]" : name, at.port());
  return {};
}

void AsioServer::run() {
  accept();
  sockets_ = start_thread([this] {
    set_thread_role("http");
    const auto work = asio::make_work_guard(context_);
    context_.run();
  });
}

void AsioServer::accept() {
  acceptor_.async_accept([this](const error_code& error, tcp::socket socket) {
    if (!acceptor_.is_open()) return;
    if (!error) {
      admit(std::move(socket));
      return accept();
    }
    // No descriptors are left, most likely: the client keeps waiting, and an immediate retry would fail
    // again.
    accept_timer_.expires_after(kAcceptPause);
    accept_timer_.async_wait([this](const error_code& cancelled) {
      if (!cancelled && acceptor_.is_open()) accept();
    });
  });
}

// Clients that get a refusal with Retry-After stay for a moment too; beyond twice the limit they are closed
// without a word.
void AsioServer::admit(tcp::socket socket) {
  const auto limit = static_cast<size_t>(options_.limits.connections);
  const bool is_room = connections_.size() < limit || make_room();
  if (!is_room && connections_.size() >= 2 * limit) return;
  const auto connection = std::make_shared<HttpConnection>(std::move(socket), options_, *this, thread_);
  connections_.insert(connection);
  if (is_room)
    connection->start();
  else
    connection->refuse();
}

bool AsioServer::make_room() {
  const auto latest = HttpConnection::Clock::now() - kPatience;
  std::shared_ptr<HttpConnection> idlest;
  for (const auto& connection : connections_) {
    const auto since = connection->idle_since();
    if (since && *since < latest && (!idlest || *since < *idlest->idle_since())) idlest = connection;
  }
  if (idlest) idlest->close();
  return idlest != nullptr;
}

void AsioServer::drain(std::chrono::milliseconds limit) {
  auto drained = std::make_shared<std::promise<void>>();
  auto done = drained->get_future();
  thread_->post([this, drained] {
    drained_ = drained;
    error_code ignored;
    acceptor_.close(ignored);
    accept_timer_.cancel();
    for (const auto& connection : std::vector(connections_.begin(), connections_.end())) connection->finish();
    tell_if_drained();
  });
  done.wait_for(limit);
}

void AsioServer::tell_if_drained() {
  if (!drained_) return;
  for (const auto& connection : connections_)
    if (connection->is_answering()) return;
  std::exchange(drained_, nullptr)->set_value();
}

}  // namespace

Result<std::unique_ptr<HttpServer>> HttpServer::start(const std::string& host, uint16_t port,
                                                      HttpOptions options, HttpHandler handler) {
  auto server = std::make_unique<AsioServer>(std::move(options), std::move(handler));
  RETURN_IF_ERROR(server->listen(host, port));
  server->run();
  return std::unique_ptr<HttpServer>(std::move(server));
}

}  // namespace outrider
