// User errors are reported before anything is generated: exit code 2, a message that names the cause and the
// remedy, nothing on standard output and no new file.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "comm/transport.h"
#include "tests/support/program.h"
#include "tests/support/source_dir.h"

namespace outrider::testing {
namespace {

using Arguments = std::vector<std::string>;
constexpr std::chrono::seconds kSoon{20};  // a fraction of a second without sanitizers

// `says`: parts of the message, in any order.
void expect_refused(const Outcome& run, const Arguments& says) {
  EXPECT_EQ(run.code, 2) << run.describe();
  EXPECT_EQ(run.out, "") << run.describe();
  EXPECT_NE(run.err.find("outrider: "), std::string::npos) << run.describe();
  for (const std::string& part : says)
    EXPECT_NE(run.err.find(part), std::string::npos) << "missing: " << part << "\n" << run.describe();
  EXPECT_LT(run.err.size(), 2000u) << "a message is a line or two";
}

struct BadFlags {
  std::string name;
  Arguments arguments;
  Arguments says;
};

void PrintTo(const BadFlags& bad, std::ostream* out) { *out << bad.name; }

class BadFlagsTest : public ::testing::TestWithParam<BadFlags> {};

TEST_P(BadFlagsTest, AreRefused) {
  const TemporaryDirectory dir;
  Arguments arguments{"--prompt", "x", "--max-tokens", "8"};
  arguments.insert(arguments.end(), GetParam().arguments.begin(), GetParam().arguments.end());
  expect_refused(generate(arguments, {.directory = dir.path(), .limit = kSoon}), GetParam().says);
  EXPECT_EQ(dir.entries(), Arguments{}) << "a file was left behind";
}

const std::string kDraft = demo_draft();

INSTANTIATE_TEST_SUITE_P(
    Table, BadFlagsTest,
    ::testing::ValuesIn(std::vector<BadFlags>{
        BadFlags{"gamma_above_limit", {"-g", "65", "--output", "o"}, {"-g 65: must be 0 to 64"}},
        BadFlags{
            "gamma_negative", {"--num-speculative-tokens", "-1"}, {"--num-speculative-tokens -1", "0 to 64"}},
        BadFlags{"gamma_text", {"--num-speculative-tokens", "five"}, {"--num-speculative-tokens", "five"}},
        BadFlags{"greedy_with_temperature",
                 {"--rule", "greedy", "--temperature", "0.5"},
                 {"--rule greedy", "0.5", "drop"}},
        BadFlags{"rule", {"--rule", "nonsense"}, {"--rule nonsense", "invariant"}},
        BadFlags{"q_format_number", {"--q-format", "budget:x"}, {"--q-format budget:x", "at least 16"}},
        BadFlags{"q_format_budget", {"--q-format", "budget:3"}, {"--q-format budget:3", "at least 16"}},
        BadFlags{"q_format_bits", {"--q-format", "hidden:8"}, {"--q-format hidden:8", "3 to 7"}},
        BadFlags{"q_format_head", {"--q-format", "hidden"}, {"--q-format hidden", "--draft-model"}},
        BadFlags{"q_format_text", {"--q-format", "thick"}, {"--q-format thick", "dense"}},
        BadFlags{
            "tree_shape", {"--speculative-tree", "9,1"}, {"--speculative-tree 9,1", "best-first", "1 to 8"}},
        BadFlags{"tree_nodes", {"--speculative-tree", "best-first:65"}, {"best-first:65", "64 nodes"}},
        BadFlags{"tree_too_many", {"--speculative-tree", "8,8,8"}, {"--speculative-tree 8,8,8", "64 nodes"}},
        BadFlags{"tree_rule",
                 {"--speculative-tree", "2,1", "--rule", "token", "--temperature", "0.5"},
                 {"--speculative-tree 2,1", "--rule token", "specinfer", "--speculative-tree off"}},
        BadFlags{"tree_of_chance",
                 {"--speculative-tree", "best-first:8", "--rule", "swor", "--temperature", "0.5"},
                 {"--speculative-tree best-first:8", "--rule swor", "sequoia:NODES", "4,2,1"}},
        BadFlags{"tree_orphan",
                 {"--speculative-tree", "[[0],[1,0]]"},
                 {"--speculative-tree", "[1,0] is listed without its parent"}},
        BadFlags{"tree_sibling",
                 {"--speculative-tree", "[[0],[2]]"},
                 {"--speculative-tree", "[2] is listed without its better sibling"}},
        BadFlags{"tree_twice", {"--speculative-tree", "[[0],(0,)]"}, {"[0] is listed twice"}},
        BadFlags{"tree_rank", {"--speculative-tree", "[[0],[0,-1]]"}, {"[0,-1]", "counted from 0"}},
        BadFlags{"tree_text", {"--speculative-tree", "[[0],"}, {"--speculative-tree [[0],"}},
        BadFlags{
            "tree_file", {"--speculative-tree", "@/nowhere/tree"}, {"--speculative-tree", "/nowhere/tree"}},
        BadFlags{"tree_sequoia", {"--speculative-tree", "sequoia:0"}, {"sequoia:0", "sequoia:NODES"}},
        BadFlags{"tp_three", {"--tensor-parallel-size", "3"}, {"--tensor-parallel-size 3", "1, 2, 4 or 8"}},
        BadFlags{"dp_zero", {"--data-parallel-size", "0"}, {"--data-parallel-size 0", "must be 1 to 64"}},
        BadFlags{"dp_record",
                 {"--drafter", "ngram", "--dp", "2", "--record-rounds", "/tmp/rounds.jsonl"},
                 {"--record-rounds", "use one group"}},
        BadFlags{"draft_tp_three",
                 {"--draft-tensor-parallel-size", "3", "--draft-model", kDraft},
                 {"--draft-tensor-parallel-size 3", "1, 2, 4 or 8"}},
        BadFlags{"draft_tp_without_model",
                 {"--draft-tensor-parallel-size", "2", "--drafter", "suffix"},
                 {"--draft-tensor-parallel-size 2", "--draft-model"}},
        BadFlags{"draft_vocab_negative",
                 {"--draft-vocab-size", "-1", "--draft-model", kDraft},
                 {"--draft-vocab-size -1", "negative"}},
        BadFlags{"draft_window_negative",
                 {"--draft-window", "-1", "--draft-model", kDraft},
                 {"--draft-window -1", "0 to"}},
        BadFlags{"draft_sinks_negative",
                 {"--draft-sinks", "-1", "--draft-model", kDraft},
                 {"--draft-sinks -1", "0 to"}},
        BadFlags{"draft_sinks_without_window",
                 {"--draft-sinks", "8", "--draft-model", kDraft},
                 {"--draft-sinks 8", "--draft-window"}},
        BadFlags{"preflight_timeout_alone",
                 {"--preflight-timeout", "5"},
                 {"--preflight-timeout 5", "add --preflight"}},
        BadFlags{"context_of_one", {"--max-model-len", "1"}, {"--max-model-len 1", "2 tokens at least"}},
        BadFlags{"draft_window_without_model",
                 {"--draft-window", "64", "--drafter", "suffix"},
                 {"--draft-window 64", "--draft-model"}},
        BadFlags{"draft_vocab_of_one_token",
                 {"--draft-vocab-size", "1", "--draft-model", kDraft},
                 {"--draft-vocab-size 1", "id 0"}},
        BadFlags{"draft_vocab_without_model",
                 {"--draft-vocab-size", "100", "--drafter", "suffix"},
                 {"--draft-vocab-size 100", "--draft-model"}},
        BadFlags{"draft_vocab_with_hidden_q",
                 {"--draft-vocab-size", "100", "--draft-model", kDraft, "--q-format", "hidden"},
                 {"--draft-vocab-size", "--q-format hidden", "drop one"}},
        BadFlags{"dspark_is_dflash", {"--drafter", "dspark"}, {"--drafter dflash needs --draft-model"}},
        BadFlags{"two_drafters",
                 {"--draft-model", kDraft, "--drafter", "ngram"},
                 {"--drafter ngram", "--draft-model", "drop"}},
        BadFlags{"guesser_without_model",
                 {"--drafter", "ngram", "--draft-drafter", "suffix"},
                 {"--draft-drafter suffix", "--draft-model"}},
        BadFlags{"history_negative",
                 {"--drafter", "suffix", "--draft-history-tokens", "-1"},
                 {"--draft-history-tokens -1", "must be 0 to"}},
        BadFlags{"unload_negative", {"--unload-drafter", "-1"}, {"--unload-drafter -1", "must be 0 to"}},
        BadFlags{"lookahead_without_tree",
                 {"--drafter", "lookahead"},
                 {"--drafter lookahead", "--speculative-tree best-first"}},
        BadFlags{"lookahead_ngram",
                 {"--drafter", "lookahead", "--speculative-tree", "best-first:8", "--lookahead-ngram", "1"},
                 {"--lookahead-ngram 1", "must be 2 to"}},
        BadFlags{"drafter_unknown", {"--drafter", "oracle"}, {"--drafter", "oracle", "ngram"}},
        BadFlags{"drafter_without_model", {"--drafter", "model"}, {"--drafter model", "--draft-model"}},
        BadFlags{"link_unit", {"--emulate-link", "delay=1"}, {"--emulate-link: delay=1", "delay=1ms"}},
        BadFlags{"link_key", {"--emulate-link", "latency=1ms"}, {"--emulate-link", "'latency'", "delay"}},
        BadFlags{"length_text", {"-g", "abc"}, {"outrider: -g abc: must be a whole number\n"}},
        BadFlags{"length_missing", {"-g"}, {"outrider: -g needs a value: a whole number\n"}},
        BadFlags{"length_huge", {"-g", "99999999999999999999"}, {"-g 99999999999999999999: is out of range"}},
        BadFlags{
            "temperature_text", {"--temperature=warm"}, {"outrider: --temperature warm: must be a number\n"}},
        BadFlags{"switch_text", {"--ignore-eos=perhaps"}, {"--ignore-eos perhaps: must be true or false"}},
        BadFlags{"seed_text", {"-s", "abc"}, {"outrider: -s abc: must be 0 to 18446744073709551615"}},
        BadFlags{"pipeline_unknown",
                 {"--pipeline", "x"},
                 {"--pipeline x: must be one of lockstep, ahead, fanout, auto"}},
        BadFlags{"two_models", {"-m", "other"}, {"--model is given more than once"}},
        BadFlags{"policy_unknown", {"--gamma-policy", "fixd"}, {"'fixd'", "'fixed'", "list"}},
        BadFlags{
            "length_and_policy", {"-g", "3", "--gamma-policy", "ewma"}, {"--gamma-policy ewma", "drop one"}},
        BadFlags{"policy_key", {"--gamma-policy", "fixed:gama=3"}, {"'gama'", "'gamma'"}},
        BadFlags{"policy_value", {"--gamma-policy", "fixed:gamma=x"}, {"gamma", "x"}},
        BadFlags{"bias_garbage", {"--logit-bias", "garbage"}, {"--logit-bias garbage", "ID:V"}},
        BadFlags{"bias_outside", {"--logit-bias", "99999:1"}, {"--logit-bias", "99999", "4095"}},
        BadFlags{"bias_nan", {"--logit-bias", "5:nan"}, {"--logit-bias 5:nan", "ID:V"}},
        BadFlags{"temperature_nan", {"--temperature", "nan"}, {"--temperature nan", "0 to 100"}},
        BadFlags{"temperature_negative", {"--temperature", "-1"}, {"--temperature -1", "0 to 100"}},
        BadFlags{"top_p", {"--top-p", "0"}, {"--top-p 0", "above 0"}},
        BadFlags{"top_k", {"--top-k", "-2"}, {"--top-k -2"}},
        BadFlags{"min_p", {"--min-p", "2"}, {"--min-p 2"}},
        BadFlags{"repetition", {"--repetition-penalty", "0"}, {"--repetition-penalty 0"}},
        BadFlags{"presence", {"--presence-penalty", "inf"}, {"--presence-penalty inf"}},
        BadFlags{"max_tokens", {"--max-tokens", "0"}, {"--max-tokens 0", "at least 1"}},
        BadFlags{"max_tokens_float", {"--max-tokens", "1.5"}, {"--max-tokens", "1.5"}},
        BadFlags{"max_tokens_huge", {"--max-tokens", "99999999999"}, {"--max-tokens", "99999999999"}},
        BadFlags{"logprobs", {"--logprobs", "1000"}, {"--logprobs 1000", "0 to 100"}},
        BadFlags{"stop_empty", {"--stop="}, {"--stop"}},
        BadFlags{"seed", {"--seed", "-1"}, {"--seed", "-1"}},
        BadFlags{"seed_huge", {"--seed", "18446744073709551616"}, {"--seed", "18446744073709551616"}},
        BadFlags{"max_num_seqs", {"--max-num-seqs", "0"}, {"--max-num-seqs 0", "1 to 256"}},
        BadFlags{"max_model_len", {"--max-model-len", "100000"}, {"--max-model-len 100000", "512"}},
        BadFlags{"threads", {"--threads", "-1"}, {"--threads -1", "0 to 1024"}},
        BadFlags{"isa", {"--isa", "mmx"}, {"--isa mmx", "scalar"}},
        BadFlags{"weight_format", {"--weight-format", "int3"}, {"--weight-format int3", "int4"}},
        BadFlags{"kv_dtype", {"--kv-dtype", "int3"}, {"--kv-dtype int3", "bf16"}},
        BadFlags{"unknown_flag",
                 {"--num-speculatve-tokens", "3"},
                 {"--num-speculatve-tokens", "did you mean --num-speculative-tokens?"}},
        BadFlags{"unknown_flag_far", {"--zzzzqqqq"}, {"--zzzzqqqq", "--help"}},
        BadFlags{"stray_word", {"upon", "a", "time"}, {"\"upon\"", "quotes"}},
        BadFlags{"value_missing", {"--seed"}, {"--seed"}},
        BadFlags{"listen_port_above_all",
                 {"--listen", "tcp://127.0.0.1:99999"},
                 {"--listen", "tcp://127.0.0.1:99999", "0 to 65535"}},
        BadFlags{"listen_port_negative", {"--listen", "tcp://127.0.0.1:-1"}, {"--listen", "0 to 65535"}},
        BadFlags{"listen_port_text", {"--listen", "tcp://127.0.0.1:http"}, {"--listen", "0 to 65535"}},
        BadFlags{"listen_port_missing", {"--listen", "tcp://127.0.0.1"}, {"--listen", "0 to 65535"}},
        BadFlags{"both_prompts", {"--prompts", "p.jsonl"}, {"--prompt", "--prompts", "drop one"}},
        BadFlags{"compare_without_drafter", {"--compare-plain"}, {"--compare-plain", "--draft-model"}},
        BadFlags{"turns_without_compare", {"--compare-turns", "5"}, {"--compare-turns", "--compare-plain"}},
        BadFlags{"turns_with_listen",
                 {"--compare-plain", "--compare-turns", "5", "--listen", "tcp://127.0.0.1:*"},
                 {"--compare-turns", "--listen"}},
        BadFlags{"compare_with_joining_groups",
                 {"--compare-plain", "--listen-targets", "tcp://127.0.0.1:*"},
                 {"--compare-plain", "--listen-targets"}},
        BadFlags{"output_directory_missing",
                 {"--output", "/no/such/dir/o.jsonl"},
                 {"--output /no/such/dir/o.jsonl", "cannot be written", "directory"}},
        BadFlags{"one_file_for_two",
                 {"--output", "o", "--report", "./o"},
                 {"--report ./o: is the file of --output too", "choose another"}},
        BadFlags{"output_is_directory", {"--output", "/tmp"}, {"--output", "/tmp", "is a directory"}},
        BadFlags{"report_directory_missing",
                 {"--report", "/no/such/dir/r.json", "--output", "o"},
                 {"--report", "/no/such/dir/r.json", "directory"}},
        BadFlags{"trace_directory_missing",
                 {"--trace", "/no/such/dir/t.json", "--output", "o"},
                 {"--trace", "/no/such/dir/t.json", "directory"}},
        BadFlags{"chat_without_template", {"--chat"}, {"--model", "chat template", "plain text"}}}),
    [](const auto& test) { return test.param.name; });

TEST(BadInput, MissingModel) {
  expect_refused(outrider_program({"generate", "--prompt", "x"}, {.limit = kSoon}),
                 {"--model is missing", "GGUF file", "directory", "org/name"});
}

TEST(BadInput, MissingPrompt) { expect_refused(generate({}, {.limit = kSoon}), {"--prompt", "--prompts"}); }

TEST(BadInput, NoCommand) {
  expect_refused(outrider_program({}, {.limit = kSoon}), {"generate", "doctor", "--help"});
  expect_refused(outrider_program({"genrate"}, {.limit = kSoon}), {"genrate", "did you mean generate?"});
  expect_refused(outrider_program({"simulate", "plam"}, {.limit = kSoon}),
                 {"there is no simulate plam; did you mean plan?"});
}

TEST(BadInput, PromptThatIsNotUtf8) {
  expect_refused(generate({"--prompt", "caf\xe9"}, {.limit = kSoon}), {"--prompt", "UTF-8", "byte 3"});
}

TEST(BadInput, PromptLongerThanTheContext) {
  std::string words;
  for (int i = 0; i < 600; ++i) words += "word ";
  expect_refused(generate({"--prompt", words}, {.limit = kSoon}), {"tokens", "512; shorten it\n"});
  expect_refused(
      generate({"--prompt", "one two three four five six", "--max-model-len", "4"}, {.limit = kSoon}),
      {"the context 4", "--max-model-len"});
}

TEST(BadInput, PromptsFileMissingOrADirectoryOrEmpty) {
  const TemporaryDirectory dir;
  expect_refused(generate({"--prompts", dir / "none.jsonl"}, {.limit = kSoon}),
                 {"--prompts", "none.jsonl", "cannot be read"});
  expect_refused(generate({"--prompts", dir.path()}, {.limit = kSoon}), {"--prompts", "cannot be read"});
  expect_refused(generate({"--prompts", dir.write("e.jsonl", "")}, {.limit = kSoon}),
                 {"--prompts", "e.jsonl", "no requests"});
  expect_refused(generate({"--prompts", dir.write("b.jsonl", "\n \n")}, {.limit = kSoon}),
                 {"b.jsonl", "no requests"});
}

struct BadLine {
  std::string name;
  std::string line;
  Arguments says;
};

void PrintTo(const BadLine& bad, std::ostream* out) { *out << bad.name; }

class BadLineTest : public ::testing::TestWithParam<BadLine> {};

// A good line first: nothing of it may be generated either.
TEST_P(BadLineTest, IsRefusedWithItsNumber) {
  const TemporaryDirectory dir;
  const std::string file =
      dir.write("in.jsonl", "{\"prompt\": \"fine\"}\n\n" + GetParam().line + "\n{\"prompt\": \"also\"}\n");
  const Outcome run = generate({"--prompts", file, "--output", dir / "out.jsonl"}, {.limit = kSoon});
  expect_refused(run, GetParam().says);
  EXPECT_NE(run.err.find("in.jsonl:3: "), std::string::npos) << run.describe();
  EXPECT_EQ(dir.entries(), Arguments{"in.jsonl"}) << "a file was left behind";
}

TEST(BadPrompts, AreNotReplacedByTheirResults) {
  const TemporaryDirectory dir;
  const std::string requests = "{\"prompt\": \"fine\"}\n", file = dir.write("in.jsonl", requests);
  std::filesystem::create_symlink("in.jsonl", dir / "link");
  for (const char* output : {"in.jsonl", "link"}) {
    expect_refused(
        generate({"--prompts", file, "--output", output}, {.directory = dir.path(), .limit = kSoon}),
        {std::string("--output ") + output + ": is the file of --prompts too"});
    EXPECT_EQ(read_file(file), requests);
  }
}

// A report, or another file that is written, in place of one that the command reads.
TEST(BadOutputs, NeverReplaceAnInput) {
  const TemporaryDirectory dir;
  std::filesystem::create_directory(dir / "model");
  const auto file = [&](const char* name) { return dir.write(name, "precious").string(); };
  const std::string config = file("model/config.json"), text = file("text.txt"), gguf = file("m.gguf"),
                    record = file("rounds.jsonl"), keys = file("keys");
  for (const auto& [arguments, says] : std::vector<std::pair<Arguments, std::string>>{
           {{"generate", dir / "model", "Hi", "--report", config},
            "--report " + config + ": is the file of --model too"},
           {{"generate", dir / "model", "-f", text, "--trace", text}, "is the file of --prompt-file too"},
           {{"perplexity", gguf, "--file", text, "--report", gguf}, "is the file of --model too"},
           {{"perplexity", gguf, "--file", text, "--report", text}, "is the file of --file too"},
           {{"simulate", "replay", record, "--report", record}, "is the file of"},
           {{"simulate", "replay", record, "--html", record}, "is the file of"},
           {{"serve", gguf, "--api-key-file", keys, "--report", keys},
            "is the file of --api-key-file too"}}) {
    const Outcome run = outrider_program(arguments, {.limit = kSoon});
    EXPECT_EQ(run.code, 2) << run.describe();
    EXPECT_NE(run.err.find(says), std::string::npos) << run.describe();
  }
  for (const std::string& input : {config, text, gguf, record, keys}) EXPECT_EQ(read_file(input), "precious");
}

// A request may leave every parameter to the server.
TEST(BadDefaults, AreRefusedAtTheStart) {
  const std::string target = (source_dir() / "launch/demo_pair/target").string();
  for (const auto& [flag, value] : {std::pair{"--temperature", "-1"},
                                    {"--top-p", "7"},
                                    {"--top-k", "-5"},
                                    {"--min-p", "9"},
                                    {"--repetition-penalty", "0"}}) {
    const Outcome run = outrider_program({"serve", target, "--port", "0", flag, value}, {.limit = kSoon});
    EXPECT_EQ(run.code, 2) << run.describe();
    EXPECT_NE(run.err.find(fmt::format("{} {}: must be", flag, value)), std::string::npos) << run.describe();
  }
}

INSTANTIATE_TEST_SUITE_P(
    Table, BadLineTest,
    ::testing::ValuesIn(std::vector<BadLine>{
        BadLine{"unknown_key", R"({"promt": "x"})", {"\"promt\"", "did you mean \"prompt\"?"}},
        BadLine{
            "unknown_key_far", R"({"prompt": "x", "best_of_breed": 3})", {"\"best_of_breed\"", "max_tokens"}},
        BadLine{"unknown_key_short", R"({"prompt": "x", "n": 3})", {"\"n\"; known are prompt,"}},
        BadLine{"openai_key", R"({"prompt": "x", "max_token": 3})", {"\"max_token\"", "\"max_tokens\""}},
        BadLine{"prompt_number", R"({"prompt": 3})", {"\"prompt\"", "text"}},
        BadLine{"max_tokens_text",
                R"({"prompt": "x", "max_tokens": "8"})",
                {"\"max_tokens\"", "whole number", "\"8\""}},
        BadLine{"max_tokens_float",
                R"({"prompt": "x", "max_tokens": 8.5})",
                {"\"max_tokens\"", "whole number", "8.5"}},
        BadLine{"max_tokens_huge",
                R"({"prompt": "x", "max_tokens": 4294967297})",
                {"\"max_tokens\"", "4294967297"}},
        BadLine{"max_tokens_zero", R"({"prompt": "x", "max_tokens": 0})", {"\"max_tokens\" 0", "at least 1"}},
        BadLine{"seed_negative", R"({"prompt": "x", "seed": -2})", {"\"seed\"", "-2"}},
        BadLine{"temperature_text",
                R"({"prompt": "x", "temperature": "hot"})",
                {"\"temperature\"", "number", "hot"}},
        BadLine{"temperature_range",
                R"({"prompt": "x", "temperature": -0.5})",
                {"\"temperature\" -0.5", "0 to 100"}},
        BadLine{"temperature_nan", R"({"prompt": "x", "temperature": NaN})", {"not JSON", "column"}},
        BadLine{"temperature_overflow", R"({"prompt": "x", "temperature": 1e999})", {"not JSON", "1e999"}},
        BadLine{"temperature_float_overflow",
                R"({"prompt": "x", "temperature": 1e39})",
                {"\"temperature\" inf", "0 to 100"}},
        BadLine{"top_p", R"({"prompt": "x", "top_p": 1.5})", {"\"top_p\" 1.5", "at most 1"}},
        BadLine{"top_k", R"({"prompt": "x", "top_k": -2})", {"\"top_k\" -2"}},
        BadLine{"ignore_eos", R"({"prompt": "x", "ignore_eos": 1})", {"\"ignore_eos\"", "true or false"}},
        BadLine{"logprobs", R"({"prompt": "x", "logprobs": 101})", {"\"logprobs\" 101", "0 to 100"}},
        BadLine{"stop_number", R"({"prompt": "x", "stop": 5})", {"\"stop\"", "text"}},
        BadLine{"stop_empty", R"({"prompt": "x", "stop": [""]})", {"\"stop\"", "1 to 1024"}},
        BadLine{
            "stop_many",
            R"({"prompt": "x", "stop": ["1","2","3","4","5","6","7","8","9","a","b","c","d","e","f","g","h"]})",
            {"\"stop\"", "17", "at most 16"}},
        BadLine{"bias_list", R"({"prompt": "x", "logit_bias": [1]})", {"\"logit_bias\"", "object"}},
        BadLine{"bias_key", R"({"prompt": "x", "logit_bias": {"a": 1}})", {"\"logit_bias\" a: 1"}},
        BadLine{"bias_outside",
                R"({"prompt": "x", "logit_bias": {"4096": 1}})",
                {"\"logit_bias\"", "4096", "4095"}},
        BadLine{"rule_unknown", R"({"prompt": "x", "rule": "best"})", {"\"rule\" best", "invariant"}},
        BadLine{"rule_greedy",
                R"({"prompt": "x", "rule": "greedy", "temperature": 1})",
                {"\"rule\" greedy", "temperature is 1"}},
        BadLine{"id", R"({"prompt": "x", "id": {}})", {"\"id\"", "text or a whole number"}},
        BadLine{"prompt_and_messages",
                R"({"prompt": "x", "messages": [{"role": "user", "content": "y"}]})",
                {"either \"prompt\" or \"messages\""}},
        BadLine{"neither", R"({"seed": 1})", {"either \"prompt\" or \"messages\""}},
        BadLine{"messages_shape", R"({"messages": "hi"})", {"\"messages\"", "role"}},
        BadLine{"name",
                R"({"messages": [{"role": "user", "content": "y", "name": 1}]})",
                {"\"messages\"", "\"name\"", "text"}},
        BadLine{"continue_a_prompt",
                R"({"prompt": "x", "continue_final_message": true})",
                {"\"continue_final_message\" needs \"messages\""}},
        BadLine{"template_variables",
                R"({"messages": [{"role": "user", "content": "y"}], "chat_template_kwargs": 5})",
                {"\"chat_template_kwargs\"", "object"}},
        BadLine{"messages_without_template",
                R"({"messages": [{"role": "user", "content": "y"}]})",
                {"chat template", "prompt"}},
        BadLine{"twice", R"({"prompt": "x", "prompt": "y"})", {"\"prompt\"", "twice"}},
        BadLine{"cut", R"({"prompt": "x")", {"not JSON", "column 15"}},
        BadLine{"not_an_object", R"(["x"])", {"not a JSON object"}},
        BadLine{"bare_text", "Once upon a time", {"not JSON", "column 1", "each line is a whole request"}},
        BadLine{"not_utf8", "{\"prompt\": \"caf\xe9\"}", {"not JSON", "UTF-8"}},
        BadLine{"deep", "{\"prompt\": " + std::string(50, '[') + std::string(50, ']') + "}", {"nested"}},
        BadLine{
            "huge", "{\"prompt\": \"" + std::string(5 << 20, 'a') + "\"}", {"longer than 4194304 bytes"}}}),
    [](const auto& test) { return test.param.name; });

TEST(BadInput, LogLevelsAreTakenInAnyCaseAndNonsenseIsRefused) {
  expect_refused(outrider_program({"doctor"}, {.env = {{"OUTRIDER_LOG", "loud"}}}),
                 {"OUTRIDER_LOG=loud", "warning"});
  EXPECT_EQ(outrider_program({"doctor"}, {.env = {{"OUTRIDER_LOG", "WARN"}}}).code, 0);
}

TEST(BadInput, AGgufFileIsNotQuantised) {
  const TemporaryDirectory dir;
  expect_refused(
      outrider_program({"quantize", "--model", dir.write("m.gguf", "GGUF"), "--output", dir / "q"}),
      {"m.gguf", "GGUF", "original model"});
}

// The same flags may work later.
TEST(BadInput, ATakenPortIsNoBadFlag) {
  const auto taken = make_zmq_server("tcp://127.0.0.1:*").value();
  const Outcome run = generate({"--prompt", "x", "-n", "2", "--listen", taken->endpoint()}, {.limit = kSoon});
  EXPECT_EQ(run.code, 3) << run.describe();
  EXPECT_NE(run.err.find("--listen: endpoint " + taken->endpoint() + ": something else listens"),
            std::string::npos)
      << run.describe();
}

}  // namespace
}  // namespace outrider::testing
