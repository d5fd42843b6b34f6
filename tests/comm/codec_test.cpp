#include "comm/codec.h"

#include <gtest/gtest.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "base/bit_codes.h"
#include "comm/q_rows.h"
#include "tests/comm/random_messages.h"
#include "tests/support/mutations.h"

namespace outrider {
namespace {

constexpr uint64_t kCluster = 5;
constexpr FrameInfo kInfo{.cluster = kCluster, .generation = Generation(9), .sequence_number = 1};
constexpr size_t kTypes = std::variant_size_v<Message>;

using Bytes = std::vector<std::byte>;

Bytes frame_of(const Message& message) { return encode(message, kInfo).value(); }

// Makes a changed frame pass its checksum, so that the fields behind it are what is tested.
void reseal(Bytes& frame) {
  const uint64_t length = frame.size() - kFrameHeaderBytes;
  std::memcpy(frame.data() + 8, &length, sizeof length);
  Bytes covered(frame.begin(), frame.begin() + 40);
  covered.insert(covered.end(), frame.begin() + kFrameHeaderBytes, frame.end());
  const uint64_t checksum = XXH64(covered.data(), covered.size(), 0);
  std::memcpy(frame.data() + 40, &checksum, sizeof checksum);
}

template <class T>
void poke(Bytes& frame, size_t offset, T value) {
  ASSERT_LE(offset + sizeof value, frame.size());
  std::memcpy(frame.data() + offset, &value, sizeof value);
}

std::string error_of(const Bytes& frame) {
  const auto decoded = decode(frame, kCluster);
  return decoded.ok() ? "" : decoded.status().message();
}

TEST(Codec, RoundTripsEveryType) {
  RandomMessages random(1);
  for (size_t type = 0; type < kTypes; ++type)
    for (int repeat = 0; repeat < 50; ++repeat) {
      const Message message = random.of_type(type);
      const Bytes frame = frame_of(message);
      const auto decoded = decode(frame, kCluster);
      ASSERT_TRUE(decoded.ok()) << kMessageNames[type] << ": " << decoded.status().message();
      ASSERT_EQ(decoded->message.index(), type);
      EXPECT_EQ(decoded->info.generation, kInfo.generation);
      EXPECT_EQ(decoded->info.sequence_number, kInfo.sequence_number);
      // Every field is on the wire, so equal frames mean equal messages; the next test checks single fields.
      EXPECT_EQ(frame_of(decoded->message), frame);
    }
}

// An entry whose list of states is empty takes fewer bytes than one whose list of rows is.
TEST(Codec, TheShortestEntriesFillAFrame) {
  const StepPlan plan{.entries = std::vector<PlanEntry>(20, PlanEntry{.q_kind = QKind::kHidden})};
  const auto decoded = decode(frame_of(plan), kCluster);
  ASSERT_TRUE(decoded.ok()) << decoded.status().message();
  EXPECT_EQ(std::get<StepPlan>(decoded->message).entries.size(), 20u);
}

TEST(Codec, FieldsKeepTheirValues) {
  Draft draft{.sequence = SequenceId(11),
              .epoch = Epoch(2),
              .round = Round(3),
              .base = Position(40),
              .ids = {TokenId(7), TokenId(-1)},
              .parents = {-1, 0},
              .prefix_hash = 99,
              .q_kind = QKind::kSparse,
              .q = {{.ids = {1, 5}, .weights = {3, 4}, .sum = 7}, {.ids = {}, .weights = {1}, .sum = 1}},
              .eos = true,
              .ingest_ns = -5,
              .draft_ns = 6};
  const auto decoded = decode(frame_of(draft), kCluster);
  ASSERT_TRUE(decoded.ok());
  const Draft& got = std::get<Draft>(decoded->message);
  EXPECT_EQ(got.sequence, draft.sequence);
  EXPECT_EQ(got.epoch, draft.epoch);
  EXPECT_EQ(got.round, draft.round);
  EXPECT_EQ(got.base, draft.base);
  EXPECT_EQ(got.ids, draft.ids);
  EXPECT_EQ(got.parents, draft.parents);
  EXPECT_EQ(got.prefix_hash, draft.prefix_hash);
  EXPECT_EQ(got.q_kind, draft.q_kind);
  ASSERT_EQ(got.q.size(), 2u);
  EXPECT_EQ(got.q[0].ids, draft.q[0].ids);
  EXPECT_EQ(got.q[0].weights, draft.q[0].weights);
  EXPECT_EQ(got.q[1].sum, 1u);
  EXPECT_TRUE(got.eos);
  EXPECT_EQ(got.ingest_ns, -5);
  EXPECT_EQ(got.draft_ns, 6);

  SamplingParams sampling;
  sampling.rule = Rule::kToken;
  sampling.temperature = 0.7f;
  sampling.top_k = 5;
  sampling.top_p = 0.9f;
  sampling.min_p = 0.1f;
  sampling.logit_bias = {{TokenId(3), -1.5f}};
  sampling.seed = Seed{~uint64_t{0}};
  sampling.logprobs = 2;
  const Message open =
      Open{.sequence = SequenceId(1), .ids = {TokenId(1)}, .prompt_length = 1, .sampling = sampling};
  EXPECT_EQ(std::get<Open>(decode(frame_of(open), kCluster)->message).sampling, sampling);
}

QRow round_trip(const QRow& row) {
  Draft draft;
  draft.q.push_back(row);
  return std::get<Draft>(decode(frame_of(draft), kCluster).value().message).q[0];
}

size_t wire_bytes(const QRow& row) {
  Draft without, with;
  with.q.push_back(row);
  return frame_of(with).size() - frame_of(without).size();
}

QRow with_sum(QRow row) {
  row.sum = sum_of(row);
  return row;
}

TEST(Codec, QRowsArePackedAndKeepTheirValues) {
  const QRow rows[] = {
      // Entry: 6 in the Rice code of parameter 2 (01, 0 and the low bits 10), 1 in Elias' gamma code (0).
      {.ids = {6}, .weights = {9}},
      // 10 ids for each: parameter 3. 0, 1 unit: 5 bits; 8, 3 units: 8 bits; 10, 5 units: 10 bits.
      {.ids = {0, 9, 20}, .weights = {40, 120, 200}, .rest = 2, .id_end = 30},
      {.ids = {0, 1, 127, 255, 128'255}, .weights = {1, 1, 2047, 1u << 31, 3u << 20}},
      {.ids = {5, 6}, .weights = {UINT32_MAX, UINT32_MAX}, .rest = UINT32_MAX, .id_end = 1u << 20},
      {.ids = {}, .weights = {0, UINT32_MAX, 4097}},
      {.ids = {}, .weights = {0, 1, 2047, 1u << 31, 3u << 20}},
      {.ids = {}, .weights = {}}};
  const size_t bytes[] = {1 + 1 + 1 + 1 + 1, 1 + 1 + 1 + 1 + 3, 1 + 3 + 1 + 1 + 27, 1 + 3 + 5 + 5 + 6,
                          1 + 1 + 1 + 3 * 4, 1 + 1 + 1 + 5 * 2, 1 + 1 + 1};
  for (size_t i = 0; i < std::size(rows); ++i) {
    const QRow row = with_sum(rows[i]), got = round_trip(row);
    EXPECT_EQ(got.ids, row.ids);
    EXPECT_EQ(got.weights, row.weights);
    EXPECT_EQ(got.sum, row.sum);
    EXPECT_EQ(got.rest, row.rest);
    EXPECT_EQ(got.id_end, row.id_end);
    EXPECT_EQ(wire_bytes(row), bytes[i]) << i;
  }
}

// A plan with one row of q. Behind the row come the entry's worker, next gamma and round, stop rule, tree and
// prompt_logprobs, how many masks there are, and how many states the plan asks for, exports and imports of
// blocks.
constexpr ptrdiff_t kAfterRow = 8 + 4 + 4 + (1 + 4 + 4) + 1 + 4 + 8 + 1 + 8 + 8 + 8;
Bytes plan_with(const QRow& row) {
  StepPlan plan;
  PlanEntry& entry = plan.entries.emplace_back();
  entry.draft.assign(
      8, TokenId(1));  // so that the entry is not too short for one, whatever is cut off behind the row
  entry.q.push_back(row);
  return frame_of(plan);
}

// The bits of a sparse row's entries, one by one.
std::vector<bool> plain_bits(const QRow& row, uint64_t id_end, uint32_t unit) {
  std::vector<bool> bits;
  const auto put = [&](uint32_t ones, uint32_t number, int count) {
    bits.insert(bits.end(), ones, true);
    bits.push_back(false);
    for (int i = 0; i < count; ++i) bits.push_back(number >> i & 1);
  };
  const int k = gap_parameter(id_end, row.ids.size());
  uint32_t next = 0;
  for (size_t i = 0; i < row.ids.size(); ++i) {
    const uint32_t gap = row.ids[i] - next, units = row.weights[i] / unit;
    put(gap >> k, gap, k);
    put(static_cast<uint32_t>(std::bit_width(units) - 1), units, std::bit_width(units) - 1);
    next = row.ids[i] + 1;
  }
  return bits;
}

TEST(Codec, PacksEntriesOfAnyLengthBitForBit) {
  std::mt19937_64 rng(8);
  for (int turn = 0; turn < 300; ++turn) {
    QRow row;
    const int most_gap = 1 + static_cast<int>(rng() % 12), most_weight = 1 + static_cast<int>(rng() % 32);
    const auto up_to = [&](int bits) {
      return static_cast<uint32_t>(rng() >> 32 >> (32 - rng() % bits - 1));
    };
    uint32_t next = 0;
    for (size_t i = 0, count = 1 + rng() % 200; i < count; ++i) {
      row.ids.push_back(next + (rng() % 50 == 0 ? 3000 : up_to(most_gap)));
      next = row.ids.back() + 1;
      row.weights.push_back(std::max(1u, up_to(most_weight)));
    }
    row.weights.back() = 1;  // the unit
    row.sum = sum_of(row);
    Draft draft;
    draft.q = {row, {.ids = {6}, .weights = {9}, .sum = 9}, row};
    const auto got = decode(frame_of(draft), kCluster);
    ASSERT_TRUE(got.ok());
    for (const size_t at : {0, 2}) {
      ASSERT_EQ(std::get<Draft>(got->message).q[at].ids, row.ids);
      ASSERT_EQ(std::get<Draft>(got->message).q[at].weights, row.weights);
    }
    const Bytes frame = plan_with(row);
    const auto bits = plain_bits(row, next, 1);
    const size_t begin = frame.size() - static_cast<size_t>(kAfterRow) - (bits.size() + 7) / 8;
    for (size_t i = 0; i < (bits.size() + 7) / 8 * 8; ++i)
      ASSERT_EQ((static_cast<int>(frame[begin + i / 8]) >> i % 8 & 1) == 1, i < bits.size() && bits[i]) << i;
  }
}

TEST(Codec, SendsNoRowThatIsNotWellFormed) {
  for (const QRow& row : {QRow{.ids = {3, 3}, .weights = {1, 1}}, QRow{.ids = {4, 3}, .weights = {1, 1}},
                          QRow{.ids = {3}, .weights = {0}}, QRow{.ids = {3}, .weights = {1, 1}},
                          QRow{.ids = {3}, .weights = {1}, .rest = 1, .id_end = 3},
                          QRow{.ids = {3}, .weights = {1}, .rest = 0, .id_end = 9}}) {
    Draft draft;
    draft.q.push_back(row);
    const auto refused = encode(draft, kInfo);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.status().message(), "draft: a row of q that is not well-formed");
  }
}

std::string error_of_row(std::initializer_list<int> row, ptrdiff_t bytes_after = kAfterRow) {
  Bytes frame = plan_with({});
  const Bytes after(frame.end() - kAfterRow, frame.end() - kAfterRow + bytes_after);
  frame.erase(frame.end() - kAfterRow - 3, frame.end());  // an empty row
  for (const int byte : row) frame.push_back(static_cast<std::byte>(byte));
  frame.insert(frame.end(), after.begin(), after.end());
  reseal(frame);
  return error_of(frame);
}

TEST(Codec, RefusesHostileRows) {
  const auto fails = [](std::initializer_list<int> row, const char* what) {
    EXPECT_EQ(error_of_row(row), std::string("step_plan: ") + what);
  };
  const auto is_cut_short = [](std::initializer_list<int> row) {
    EXPECT_EQ(error_of_row(row, 0), "step_plan: cut short");
  };
  // One id, 6, of 7; rest 0; unit 9.
  const Bytes frame = plan_with({.ids = {6}, .weights = {9}, .sum = 9});
  const int good[] = {1, 7, 0, 9, 0b01001};
  for (size_t i = 0; i < 5; ++i)
    ASSERT_EQ(frame[frame.size() - static_cast<size_t>(kAfterRow) - 5 + i], static_cast<std::byte>(good[i]));
  fails({1, 7, 0, 9, 0b11111111, 0b11111111}, "a number beyond its bound");                 // the gap
  fails({1, 7, 0, 9, 0b01101}, "a number beyond its bound");                                // id 7 of 7
  fails({1, 7, 0, 9, 0b11111001, 0xff, 0xff, 0xff, 0xff, 0}, "a number beyond its bound");  // the weight
  fails({1, 7, 0, 9, 0b00001001 | 0x80}, "bits that mean nothing");
  fails({1, 8, 0, 9, 0b01100}, "a row of q in the wrong form");    // the last id is not 7
  fails({1, 7, 0, 0, 0b01001}, "a weight of more than 32 bits");   // unit 0
  fails({1, 7, 0, 9, 0b0011001}, "a row of q in the wrong form");  // 2 units of 9 are 1 of 18
  const auto is_too_long = [](std::initializer_list<int> row) {    // with so little behind it
    EXPECT_EQ(error_of_row(row, 8), "step_plan: more elements than the frame can hold");
  };
  is_too_long({8, 7, 0, 9, 0, 0, 0, 0});                                 // 8 ids below 7
  is_too_long({60, 100, 0, 9, 0, 0});                                    // 60 entries in 10 bytes
  fails({1, 0x81, 0x80, 0x40, 0, 9, 0}, "a token id beyond the limit");  // of a million
  fails({1, 7, 0x80, 0x80, 0x80, 0x80, 0x10, 9, 0b01001}, "a weight of more than 32 bits");  // the rest
  fails({2, 3, 1, 1, 0b0011}, "a token id beyond the end");
  // Nothing behind the row, and not all bits of a gap (of a million ids) or of a weight.
  is_cut_short({2, 0x80, 0x80, 0x40, 1, 1, 0x01, 0xff});
  is_cut_short({1, 0x80, 0x80, 0x40, 1, 1, 0, 0});
  is_cut_short({1, 7, 0x81, 0x80, 0x40, 1, 0b11111001, 0b00001111});
}

Draft with_states(std::vector<HiddenRow> rows) {
  return {.q_kind = QKind::kHidden, .hidden = std::move(rows)};
}

TEST(Codec, HiddenStatesArePackedAndKeepTheirValues) {
  const std::vector<HiddenRow> lists[] = {{{.scale = 0.5f, .max = -3.25f, .codes = {1, -1, 1}}},
                                          {{.scale = 1.5f, .max = 0, .codes = {15, -15, 1, -3, 5}},
                                           {.scale = 0, .max = 7, .codes = {1, 3, 5, 7, 9}}},
                                          {{.scale = 0x1p-126f, .max = 1e38f, .codes = {127, -127, 1}}},
                                          {}};
  // One byte for each count; bits and width; scale, maximum and 3 * 1, 5 * 4 or 3 * 7 bits.
  const size_t bytes[] = {1 + 2 + (6 + 1), 1 + 2 + 2 * (6 + 3), 1 + 2 + (6 + 3), 1};
  const size_t empty = frame_of(Draft{}).size() - sizeof(uint64_t);  // without the count of q
  for (size_t i = 0; i < std::size(lists); ++i) {
    const Bytes frame = frame_of(with_states(lists[i]));
    EXPECT_EQ(frame.size(), empty + bytes[i]) << i;
    const auto got = std::get<Draft>(decode(frame, kCluster).value().message).hidden;
    ASSERT_EQ(got.size(), lists[i].size());
    for (size_t r = 0; r < got.size(); ++r) {
      EXPECT_EQ(got[r].scale, lists[i][r].scale);
      EXPECT_EQ(got[r].max, lists[i][r].max);
      EXPECT_EQ(got[r].codes, lists[i][r].codes);
    }
  }
}

TEST(Codec, AChainIsOneFlag) {
  Draft draft{.ids = {TokenId(1), TokenId(2), TokenId(3)}};
  const size_t chain = frame_of(draft).size();
  draft.parents = {-1, -1, 0};
  EXPECT_EQ(frame_of(draft).size(), chain + 3 * sizeof(int32_t));
  draft.parents.pop_back();
  EXPECT_FALSE(encode(draft, kInfo).ok()) << "two parents of three nodes";

  Verdict verdict{.accepted_count = 2};
  const size_t without = frame_of(StepResult{.verdicts = {verdict}}).size();
  verdict.path = {0, 2};
  const Bytes frame = frame_of(StepResult{.verdicts = {verdict}});
  EXPECT_EQ(frame.size(), without + 2 * sizeof(int32_t));
  EXPECT_EQ(std::get<StepResult>(decode(frame, kCluster).value().message).verdicts[0].path, verdict.path);
  verdict.accepted_count = -1;
  EXPECT_FALSE(encode(StepResult{.verdicts = {verdict}}, kInfo).ok());

  Propose propose;
  const size_t plain = frame_of(propose).size();
  propose.tree = {.widths = {4, 2, 1}, .node_price = 0.5f};
  const auto got = std::get<Propose>(decode(frame_of(propose), kCluster).value().message);
  EXPECT_EQ(got.tree, propose.tree);
  EXPECT_GT(frame_of(propose).size(), plain);
}

TEST(Codec, SendsNoHiddenStateThatIsNotWellFormed) {
  const HiddenRow good{.scale = 1, .codes = {1}};
  for (const HiddenRow& bad :
       {HiddenRow{.scale = 1, .codes = {2}}, HiddenRow{.scale = 1, .codes = {-128}}, HiddenRow{.scale = 1},
        HiddenRow{.scale = 0.1f, .codes = {1}}, HiddenRow{.scale = INFINITY, .codes = {1}},
        HiddenRow{.scale = 1, .max = INFINITY, .codes = {1}}, HiddenRow{.scale = 1, .codes = {1, 1}}}) {
    const auto refused = encode(with_states({good, bad}), kInfo);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.status().message(), "draft: a state that is not well-formed");
  }
  EXPECT_FALSE(encode(Draft{.hidden = {good}}, kInfo).ok());
  EXPECT_FALSE(encode(Draft{.q_kind = QKind::kHidden, .q = {{}}}, kInfo).ok());
}

TEST(Codec, RefusesHostileHiddenStates) {
  StepPlan plan;
  plan.entries.push_back({.q_kind = QKind::kHidden, .hidden = {{.scale = 1, .codes = {15, -15, 3}}}});
  const Bytes good = frame_of(plan);
  const size_t rows = good.size() - static_cast<size_t>(kAfterRow) - (1 + 1 + 1 + 2 + 4 + 2);
  ASSERT_EQ(good[rows], std::byte{1});
  ASSERT_EQ(good[rows + 1], std::byte{4});
  using Poke = std::pair<size_t, int>;
  const auto fails = [&](const std::vector<Poke>& bytes, const char* what) {
    Bytes frame = good;
    for (const auto& [at, byte] : bytes) frame[rows + at] = static_cast<std::byte>(byte);
    reseal(frame);
    EXPECT_EQ(error_of(frame), std::string("step_plan: ") + what);
  };
  fails({Poke{0, 30}}, "more elements than the frame can hold");
  fails({Poke{1, 8}}, "codes of so many bits");
  fails({Poke{1, 0}}, "codes of so many bits");
  fails({Poke{2, 0}}, "more elements than the limit");
  fails({Poke{1, 7}, Poke{2, 127}}, "more elements than the frame can hold");
  fails({Poke{3, 0x80}, Poke{4, 0x7f}}, "a number that is not finite");  // the scale
  fails({Poke{7, 0x80}, Poke{8, 0x7f}}, "a number that is not finite");  // the maximum
  fails({Poke{9, 0x77}, Poke{10, 0x08}}, "states in the wrong form");    // -1, -1, 1: a bit is enough
  fails({Poke{10, 0xff}}, "bits that mean nothing");
}

TEST(Codec, MatchesTheWorkedExample) {
  const Bytes frame = frame_of(Heartbeat{Generation(7)});
  const uint8_t expected[] = {0x4f, 0x54, 0x52, 0x44, 1, 0, 2, 0, 8, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0,
                              0,    0,    0,    0,    9, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0};
  ASSERT_EQ(frame.size(), 56u);
  EXPECT_EQ(std::memcmp(frame.data(), expected, sizeof expected), 0);
  const uint64_t generation = 7;
  EXPECT_EQ(std::memcmp(frame.data() + kFrameHeaderBytes, &generation, sizeof generation), 0);
}

TEST(Codec, ReusesTheBuffer) {
  Bytes buffer(1000);
  const std::byte* storage = buffer.data();
  const auto frame = encode(Heartbeat{Generation(7)}, kInfo, std::move(buffer));
  EXPECT_EQ(frame->data(), storage);
  EXPECT_EQ(*frame, frame_of(Heartbeat{Generation(7)}));
}

TEST(Codec, RefusesEveryTruncation) {
  RandomMessages random(2);
  for (size_t type = 0; type < kTypes; ++type) {
    const Bytes frame = frame_of(random.of_type(type));
    for (size_t size = 0; size < frame.size(); ++size) {
      Bytes cut(frame.begin(), frame.begin() + static_cast<ptrdiff_t>(size));
      EXPECT_FALSE(decode(cut, kCluster).ok()) << kMessageNames[type] << " cut to " << size;
      if (size < kFrameHeaderBytes) continue;
      reseal(cut);
      EXPECT_FALSE(decode(cut, kCluster).ok()) << kMessageNames[type] << " cut to " << size << ", resealed";
    }
    Bytes longer = frame;
    longer.push_back(std::byte{0});
    EXPECT_FALSE(decode(longer, kCluster).ok());
    reseal(longer);
    EXPECT_EQ(error_of(longer), std::string(kMessageNames[type]) + ": bytes follow the last field");
  }
}

TEST(Codec, RefusesEveryFlippedByte) {
  RandomMessages random(3);
  for (size_t type = 0; type < kTypes; ++type) {
    const Bytes frame = frame_of(random.of_type(type));
    for (size_t at = 0; at < frame.size(); ++at)
      for (const uint8_t flip : {0x01, 0x80, 0xff}) {
        Bytes damaged = frame;
        damaged[at] ^= std::byte{flip};
        EXPECT_FALSE(decode(damaged, kCluster).ok()) << kMessageNames[type] << " byte " << at;
      }
  }
}

bool has_text_for_people(const Message& message) {
  return std::holds_alternative<Hello>(message) || std::holds_alternative<Welcome>(message) ||
         std::holds_alternative<Failure>(message);
}

// A sender that computes checksums can put anything anywhere: nothing may crash, and what is accepted must be
// a message that encodes to the very same bytes; or, where text was made printable, to bytes that stay.
TEST(Codec, SurvivesResealedDamage) {
  RandomMessages random(4);
  std::mt19937_64 engine(5);
  int accepted = 0;
  for (int repeat = 0; repeat < 20; ++repeat)
    for (size_t type = 0; type < kTypes; ++type) {
      const Bytes frame = frame_of(random.of_type(type));
      for (size_t at = kFrameHeaderBytes; at < frame.size(); ++at) {
        Bytes damaged = frame;
        damaged[at] = static_cast<std::byte>(engine());
        reseal(damaged);
        const auto decoded = decode(damaged, kCluster);
        if (!decoded.ok()) continue;
        ++accepted;
        const auto* hello = std::get_if<Hello>(&decoded->message);
        if (hello && hello->protocol_version != kProtocolVersion) continue;  // the rest is not read
        const auto again = encode(decoded->message, kInfo);
        ASSERT_TRUE(again.ok()) << again.status().message();
        if (!has_text_for_people(decoded->message)) {
          EXPECT_EQ(*again, damaged);
          continue;
        }
        const auto printed = decode(*again, kCluster);
        ASSERT_TRUE(printed.ok()) << printed.status().message();
        EXPECT_EQ(*encode(printed->message, kInfo), *again);
      }
    }
  EXPECT_GT(accepted, 0);
}

// Frames of one type with pieces of another, lengths that lie, and elements too many.
TEST(Fuzz, WireFrames) {
  RandomMessages random(6);
  std::vector<std::string> good;
  for (size_t type = 0; type < kTypes; ++type)
    for (int repeat = 0; repeat < 3; ++repeat) {
      const Bytes frame = frame_of(random.of_type(type));
      good.emplace_back(reinterpret_cast<const char*>(frame.data()), frame.size());
    }
  testing::Mutations mutations(
      9, std::move(good),
      {std::string(8, '\xff'), std::string(4, '\0'), "\x80\x80\x80\x80\x10", "\x01", "\x7f"});
  testing::fuzz(5'000, [&] {
    const std::string text = mutations.next();
    Bytes frame(text.size());
    std::memcpy(frame.data(), text.data(), text.size());
    if (frame.size() >= kFrameHeaderBytes && mutations.below(8) != 0) reseal(frame);
    const auto decoded = decode(frame, kCluster);
    if (decoded.ok()) (void)encode(decoded->message, kInfo);
  });
}

TEST(Codec, RefusesForeignHeaders) {
  const Bytes good = frame_of(Heartbeat{Generation(7)});
  Bytes frame = good;
  poke<uint32_t>(frame, 0, 0x12345678);
  EXPECT_EQ(error_of(frame), "frame: wrong magic");
  frame = good;
  poke<uint16_t>(frame, 4, 2);
  EXPECT_EQ(error_of(frame), "frame: unknown version 2");
  frame = good;
  poke<uint16_t>(frame, 6, kTypes);
  reseal(frame);
  EXPECT_EQ(error_of(frame), fmt::format("frame: unknown message type {}", kTypes));
  frame = good;
  poke<uint64_t>(frame, 8, ~uint64_t{0});
  EXPECT_EQ(error_of(frame), "frame: length and size differ");
  EXPECT_FALSE(decode(good, kCluster + 1).ok());
  EXPECT_TRUE(decode(good, kCluster).ok());
  EXPECT_FALSE(decode(good, kCluster, WireLimits{.frame_bytes = good.size() - 1}).ok());
}

TEST(Codec, ChecksCountsBeforeAllocating) {
  const Message propose = Propose{};
  constexpr size_t kCommittedCount = kFrameHeaderBytes + 8 + 4 + 4 + 4;
  for (const uint64_t count : {uint64_t{1} << 60, ~uint64_t{0}, (uint64_t{1} << 62) + 1}) {
    Bytes frame = frame_of(propose);
    poke(frame, kCommittedCount, count);
    reseal(frame);
    EXPECT_EQ(error_of(frame), "propose: more elements than the limit");
  }
  // Within the limit, beyond the bytes that are there: refused as well, so 12 bytes cannot ask for megabytes.
  Bytes frame = frame_of(propose);
  poke(frame, kCommittedCount, uint64_t{1} << 20);
  reseal(frame);
  EXPECT_EQ(error_of(frame), "propose: more elements than the frame can hold");
  // A count that is too large inside nested lists: StepPlan.entries[0].q.
  StepPlan plan;
  plan.entries.emplace_back();
  frame = frame_of(plan);
  poke(frame, frame.size() - static_cast<size_t>(kAfterRow) - 8, uint64_t{4000});
  reseal(frame);
  EXPECT_EQ(error_of(frame), "step_plan: more elements than the frame can hold");
}

TEST(Codec, RefusesBadNumbers) {
  constexpr size_t kTemperature = kFrameHeaderBytes + 8 + 8 + 4 + 1;
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    Bytes frame = frame_of(Open{});
    poke(frame, kTemperature, bad);
    reseal(frame);
    EXPECT_EQ(error_of(frame), "open: a number that is not finite");
    Open open;
    open.sampling.temperature = bad;
    const auto refused = encode(open, kInfo);
    EXPECT_FALSE(refused.ok());
    EXPECT_EQ(refused.status().code(), StatusCode::kInvalidArgument);
  }
  Bytes frame = frame_of(Open{});
  poke<uint8_t>(frame, kTemperature - 1, static_cast<uint8_t>(kRuleCount));  // one more than the last
  reseal(frame);
  EXPECT_EQ(error_of(frame), "open: an enumeration out of range");
  frame = frame_of(Welcome{});
  poke<uint8_t>(frame, kFrameHeaderBytes, 2);
  reseal(frame);
  EXPECT_EQ(error_of(frame), "welcome: a flag that is neither 0 nor 1");
}

// Names and reasons reach terminals and logs.
TEST(Codec, TextOfAPeerArrivesPrintable) {
  const std::string evil = "a\x1b]0;owned\x07\nb\xff";
  const std::string shown = "a\\x1b]0;owned\\x07\\x0ab\xEF\xBF\xBD";
  const auto read = [](const Message& message) {
    const Bytes frame = frame_of(message);
    return decode(frame, kCluster).value().message;
  };
  EXPECT_EQ(std::get<Failure>(read(Failure{evil})).message, shown);
  EXPECT_EQ(std::get<Welcome>(read(Welcome{.reason = evil})).reason, shown);
  const Hello hello = std::get<Hello>(read(Hello{.model = {.name = evil, .isa = evil}}));
  EXPECT_EQ(hello.model.name, shown);
  EXPECT_EQ(hello.model.isa, shown);
  EXPECT_LE(std::get<Failure>(read(Failure{std::string(4096, '\n')})).message.size(), 4096u);
}

TEST(Codec, RefusesToSendWhatWouldBeRefused) {
  const auto too_long = encode(Failure{std::string(4097, 'x')}, kInfo);
  ASSERT_FALSE(too_long.ok());
  EXPECT_EQ(too_long.status().message(), "failure: more elements than the limit");
  EXPECT_TRUE(encode(Failure{std::string(4096, 'x')}, kInfo).ok());
  const auto too_big = encode(Failure{std::string(4096, 'x')}, kInfo, {}, WireLimits{.frame_bytes = 1000});
  EXPECT_FALSE(too_big.ok());
}

}  // namespace
}  // namespace outrider
