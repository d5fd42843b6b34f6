#include "start/flags/help_format.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <sstream>

namespace outrider {
namespace {

constexpr int kColumn = 30;          // where descriptions begin
constexpr size_t kManyOptions = 40;  // a command with more has a brief help

struct CommonOption {
  std::string_view name, text;  // its first long name, and a line about it
};
// The options of a brief help.
constexpr CommonOption kCommon[] = {
    {"help", "this help; --help=all explains every option"},
    {"config", "TOML file with options by their long names"},
    {"model", "target model: GGUF file, directory, or org/name in the hub's cache"},
    {"draft-model", "draft model with the same tokenizer; without one: plain decoding"},
    {"drafter", "what drafts instead: suffix or ngram of the text, or a draft head"},
    {"tensor-parallel-size", "ranks that the target is split over: 1, 2, 4 or 8"},
    {"threads", "threads for arithmetic; 0: chosen by the weights"},
    {"weight-format", "auto (as stored), bf16, int8, int4 or fp8"},
    {"device", "cpu, cuda or cuda:N; auto: cpu"},
    {"max-num-seqs", "sequences decoded together"},
    {"max-model-len", "longest text in tokens; 0: the model's, at most 8192"},
    {"layout", "under mpirun: roles by rank, e.g. coordinator=1,draft=1,target=2"},
    {"num-draft-workers", "draft workers in one process"},
    {"listen", "let draft workers join: tcp://127.0.0.1:PORT"},
    {"prompt", "text to continue; @FILE, or - for standard input"},
    {"prompt-file", "file with the text to continue"},
    {"prompts", "file of requests, one JSON object a line; - reads standard input"},
    {"output", "results as JSON lines; - is standard output"},
    {"overwrite", "replace an --output file that exists"},
    {"resume", "results of an earlier run, which are not generated again"},
    {"chat", "the prompt is a user's message for the model's chat template"},
    {"system", "the system message"},
    {"max-tokens", "tokens to generate at most"},
    {"generation-config", "auto: the model's own sampling defaults, where no flag is given"},
    {"temperature", "0: greedy"},
    {"top-k", "keep the k best tokens; 0: all"},
    {"top-p", "keep the best tokens with this much probability"},
    {"stop", "end before this text; may be repeated"},
    {"seed", "seed of the text"},
    {"structured-outputs-json", "the text is JSON of this schema, or @FILE"},
    {"num-speculative-tokens", "tokens of every draft; 0: none; default: chosen by measurement"},
    {"gamma-policy", "how long drafts get; `list` explains the policies"},
    {"speculative-tree", "off, best-first:NODES, sequoia:NODES, auto, or a shape"},
    {"speculative-config", "the drafter as vLLM's JSON"},
    {"compare-plain", "decode without drafts as well, and report the speed-up"},
    {"report", "write every metric here, as JSON"},
    {"quiet", "no progress and no report on standard error"},
    {"host", "address to listen on"},
    {"port", "0: any that is free"},
    {"served-model-name", "what clients call the model"},
    {"api-key-file", "file of keys, one of which clients must send"},
    {"chat-template", "file with a template, instead of the model's own"},
    {"input", "file of requests, as OpenAI's batches"}};

// Null: the option is not in a brief help.
const CommonOption* common_option(const CLI::Option* option) {
  const auto names = option->get_lnames();
  for (const CommonOption& common : kCommon)
    if (!names.empty() && names.front() == common.name) return &common;
  return nullptr;
}

// Options that --help lists: positional ones are those of the usage line, or flags as well.
std::vector<const CLI::Option*> flags_of(const CLI::App* app) {
  return app->get_options(
      [](const CLI::Option* option) { return option->nonpositional() && !option->get_group().empty(); });
}

// A footer's lines are laid out by hand: only lines that are too long are wrapped, below their own text.
std::string wrapped_lines(const std::string& text, int width) {
  std::istringstream lines(text);
  std::string out;
  for (std::string line; std::getline(lines, line);) {
    const size_t indent = std::min(line.find_first_not_of(' '), line.size());
    const int deeper = static_cast<int>(indent) + (indent > 0 ? 4 : 0);
    if (static_cast<int>(line.size()) <= width)
      out += line + "\n";
    else
      out += std::string(indent, ' ') + wrapped(line.substr(indent), width - deeper, deeper) + "\n";
  }
  return out;
}

class WrappedFormatter : public CLI::Formatter {
 public:
  WrappedFormatter(int width, HelpLength length) : width_(width), length_(length) { column_width(kColumn); }

  std::string make_option(const CLI::Option* option, bool is_positional) const override {
    return entry(make_option_name(option, is_positional) + make_option_opts(option),
                 make_option_desc(option));
  }
  std::string make_subcommand(const CLI::App* command) const override {
    return entry(command->get_name(), command->get_description());
  }
  std::string make_description(const CLI::App* app) const override {
    return wrapped_lines(CLI::Formatter::make_description(app), width_);
  }
  std::string make_help(const CLI::App* app, std::string name, CLI::AppFormatMode mode) const override {
    if (!is_brief(app) || mode == CLI::AppFormatMode::Sub)
      return CLI::Formatter::make_help(app, std::move(name), mode);
    return make_description(app) + make_usage(app, std::move(name)) + brief_groups(app) + make_footer(app);
  }
  std::string make_footer(const CLI::App* app) const override {
    std::string text = CLI::Formatter::make_footer(app);
    if (const size_t examples = text.find("Example"); is_brief(app) && examples != std::string::npos)
      text = "\n" + text.substr(examples);
    return wrapped_lines(text, width_);
  }

 private:
  // Names are separated by commas without spaces; a list that is too long goes on in the next line.
  std::string names_of(std::string names) const {
    if (static_cast<int>(names.size()) + 2 <= width_) return "  " + names;
    for (size_t at = names.find(','); at != std::string::npos; at = names.find(',', at + 2))
      names.insert(at + 1, " ");
    return "  " + wrapped(names, width_ - 6, 6);
  }
  std::string entry(const std::string& names, const std::string& description) const {
    std::string out = names_of(names);
    const size_t last = out.size() - (out.rfind('\n') == std::string::npos ? 0 : out.rfind('\n') + 1);
    if (description.empty()) return out + "\n";
    out += last + 2 > kColumn ? "\n" + std::string(kColumn, ' ') : std::string(kColumn - last, ' ');
    return out + wrapped(description, width_ - kColumn, kColumn) + "\n";
  }

  bool is_brief(const CLI::App* app) const {
    return length_ == HelpLength::kBrief && flags_of(app).size() > kManyOptions;
  }
  std::string brief_groups(const CLI::App* app) const {
    std::string out;
    for (const std::string& group : app->get_groups()) {
      std::string entries;
      for (const CLI::Option* option : flags_of(app))
        if (option->get_group() == group && common_option(option)) entries += brief_entry(option);
      if (!entries.empty()) out += "\n" + group + ":\n" + entries;
    }
    const auto all = flags_of(app);
    const auto more = std::count_if(all.begin(), all.end(), [](const auto* o) { return !common_option(o); });
    return out + "\n" +
           wrapped_lines("`outrider " + app->get_name() + " --help=all` explains " + std::to_string(more) +
                             " more options, formats of files, and the OUTRIDER_ variable of each option.",
                         width_);
  }
  std::string brief_entry(const CLI::Option* option) const {
    const CommonOption& common = *common_option(option);
    std::string names = "--" + std::string(common.name);
    if (!option->get_snames().empty()) names = "-" + option->get_snames().front() + "," + names;
    if (!option->get_default_str().empty()) names += "=" + option->get_default_str();
    return entry(names, std::string(common.text));
  }

  int width_;
  HelpLength length_;
};

}  // namespace

int help_width() {
  winsize size{};
  int width = 100;
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
    width = size.ws_col;
  else if (const char* columns = std::getenv("COLUMNS"); columns && std::atoi(columns) > 0)
    width = std::atoi(columns);
  return std::clamp(width, 60, 140);
}

std::string wrapped(const std::string& text, int width, int indent) {
  std::string out;
  std::istringstream lines(text);
  bool first = true;
  for (std::string line; std::getline(lines, line);) {
    if (!first) out += "\n" + std::string(static_cast<size_t>(indent), ' ');
    first = false;
    std::istringstream words(line);
    int used = 0;
    for (std::string word; words >> word;) {
      const int length = static_cast<int>(word.size());
      if (used > 0 && used + 1 + length > width) {
        out += "\n" + std::string(static_cast<size_t>(indent), ' ');
        used = 0;
      } else if (used > 0) {
        out += " ";
        ++used;
      }
      out += word;
      used += length;
    }
  }
  return out;
}

std::shared_ptr<CLI::FormatterBase> help_formatter(int width, HelpLength length) {
  return std::make_shared<WrappedFormatter>(width, length);
}

std::vector<std::string> without_help_forms(int argc, const char* const* argv, HelpLength& length) {
  std::vector<std::string> words(argv, argv + argc);
  length = HelpLength::kBrief;
  if (words.size() > 1 && words[1] == "help") {
    words.erase(words.begin() + 1);
    if (words.back() == "all" || words.back() == "--all") {
      words.pop_back();
      length = HelpLength::kWhole;
    }
    words.emplace_back("--help");
  }
  for (std::string& word : words)
    if (word == "--help=all" || word == "--help-all") {
      word = "--help";
      length = HelpLength::kWhole;
    }
  return words;
}

}  // namespace outrider
