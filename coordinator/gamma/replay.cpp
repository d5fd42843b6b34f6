#include <algorithm>
#include <fstream>
#include <memory>

#include "base/parse_number.h"
#include "base/printable.h"
#include "coordinator/gamma/policies.h"

namespace outrider {
namespace {

constexpr size_t kMaxGammas = 1 << 20;
constexpr size_t kMaxBytes = size_t{16} << 20;  // of the file: a device may have no end
constexpr size_t kTold = 40;                    // characters of a wrong value that an error shows

class ReplayGamma : public GammaPolicy {
 public:
  explicit ReplayGamma(std::shared_ptr<const std::vector<int32_t>> gammas) : gammas_(std::move(gammas)) {}
  int32_t next(const GammaContext&) override {
    const int32_t gamma = (*gammas_)[at_];
    if (at_ + 1 < gammas_->size()) ++at_;
    return gamma;
  }
  void update(const RoundOutcome&) override {}

 private:
  std::shared_ptr<const std::vector<int32_t>> gammas_;  // shared by all sequences
  size_t at_ = 0;
};

bool is_separator(char c) { return c == ',' || c == '[' || c == ']' || c == ' ' || c == '\t' || c == '\r'; }

// Appends the numbers of one line; a '#' starts a comment.
Status read_line(std::string_view line, std::vector<int32_t>* gammas) {
  line = line.substr(0, line.find('#'));
  while (!line.empty()) {
    if (is_separator(line.front())) {
      line.remove_prefix(1);
      continue;
    }
    size_t end = 0;
    while (end < line.size() && !is_separator(line[end])) ++end;
    const std::string_view word = line.substr(0, end);
    const auto gamma = parse_number<int32_t>(word);
    if (!gamma || *gamma < 0 || *gamma > 1024)
      return malformed(
          fmt::format("'{}' is not a draft length in 0..1024", printable(word.substr(0, kTold))));
    gammas->push_back(*gamma);
    line.remove_prefix(end);
  }
  return {};
}

// A JSON array of integers and plain lines of integers read the same way.
Result<std::vector<int32_t>> read_gamma_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return not_found(fmt::format("{}: cannot be opened", path));
  std::string text(kMaxBytes + 1, 0);
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  if (text.size() > kMaxBytes)
    return malformed(fmt::format("{}: more than {} MiB; a file has draft lengths", path, kMaxBytes >> 20));
  std::vector<int32_t> gammas;
  std::string_view left = text;
  for (int number = 1; !left.empty(); ++number) {
    const std::string_view line = left.substr(0, left.find('\n'));
    left.remove_prefix(std::min(left.size(), line.size() + 1));
    RETURN_IF_ERROR(read_line(line, &gammas).in(fmt::format("{}:{}", path, number)));
    if (gammas.size() > kMaxGammas)
      return malformed(fmt::format("{}:{}: more than {} draft lengths", path, number, kMaxGammas));
  }
  if (gammas.empty())
    return malformed(fmt::format("{}: holds no draft length; write one integer per line", path));
  return gammas;
}

}  // namespace

Result<GammaPolicyFactory> replay_gamma_from(const GammaArguments& arguments) {
  ASSIGN_OR_RETURN(std::vector<int32_t> gammas, read_gamma_file(arguments.find("file")->second));
  const auto shared = std::make_shared<const std::vector<int32_t>>(std::move(gammas));
  return GammaPolicyFactory([shared] { return std::make_unique<ReplayGamma>(shared); });
}

}  // namespace outrider
