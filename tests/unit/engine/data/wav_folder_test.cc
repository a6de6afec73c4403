#include "engine/data/wav_folder.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <set>

#include "engine/data/length_buckets.h"
#include "engine/data/loader.h"
#include "engine/data/log_mel.h"
#include "engine/data/path.h"
#include "engine/data/sample_cache.h"
#include "engine/data/transcripts.h"
#include "engine/data/transform.h"
#include "engine/data/wav.h"
#include "gmock/gmock.h"
#include "tests/unit/engine/data/data_folder.h"

namespace ampd::data {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::FloatNear;
using ::testing::HasSubstr;
using ::testing::Pointwise;

std::string Chunk(const std::string& name, const std::string& bytes) {
  return name + LittleEndian(bytes.size(), 4) + bytes + std::string(bytes.size() % 2, '\0');
}

std::string Format(int tag, int channels, int rate, int bits) {
  return LittleEndian(tag, 2) + LittleEndian(channels, 2) + LittleEndian(rate, 4) +
         LittleEndian(static_cast<uint64_t>(rate) * channels * bits / 8, 4) + LittleEndian(channels * bits / 8, 2) +
         LittleEndian(bits, 2);
}

std::string Extensible(int tag, int channels, int rate, int bits) {
  return Format(0xFFFE, channels, rate, bits) + LittleEndian(22, 2) + LittleEndian(bits, 2) + LittleEndian(0, 4) +
         LittleEndian(tag, 2) + std::string("\0\0\0\0\x10\0\x80\0\0\xAA\0\x38\x9B\x71", 14);
}

std::string Wav(const std::string& format, const std::string& samples, const std::string& other = "") {
  const std::string chunks = "WAVE" + Chunk("fmt ", format) + other + Chunk("data", samples);
  return "RIFF" + LittleEndian(chunks.size(), 4) + chunks;
}

std::string Pcm16(const std::vector<int>& values) {
  std::string bytes;
  for (int v : values) bytes += LittleEndian(static_cast<uint64_t>(v), 2);
  return bytes;
}

std::string Floats(const std::vector<float>& values) {
  return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
}

// `count` samples that are no silence.
std::string Tone(int count, int rate = 8000) {
  std::vector<int> values;
  for (int t = 0; t < count; ++t)
    values.push_back(static_cast<int>(8000 * std::sin(t * 0.3) + 3000 * std::sin(t * 1.1)));
  return Wav(Format(1, 1, rate, 16), Pcm16(values));
}

class WavTest : public DataFolder {
 protected:
  absl::StatusOr<std::vector<float>> Samples(const std::string& bytes) {
    Write("a.wav", bytes);
    const auto file = OpenBeneath("a.wav", roots_);
    if (!file.ok()) return file.status();
    const auto header = ReadWavHeader(**file);
    if (!header.ok()) return header.status();
    return ReadWavSamples(**file, *header);
  }
  std::string Refusal(const std::string& bytes) { return Samples(bytes).status().ToString(); }
};

TEST_F(WavTest, ReadsEveryEncoding) {
  EXPECT_THAT(*Samples(Wav(Format(1, 1, 8000, 8), std::string("\x80\x00\xff\xc0", 4))),
              ElementsAre(0, -1, 127.0f / 128, 0.5));
  EXPECT_THAT(*Samples(Wav(Format(1, 1, 8000, 16), Pcm16({0, -32768, 32767, 16384}))),
              ElementsAre(0, -1, 32767.0f / 32768, 0.5));
  EXPECT_THAT(*Samples(Wav(Format(1, 1, 8000, 24), std::string("\0\0\x80\0\0\x40\xff\xff\xff", 9))),
              ElementsAre(-1, 0.5, -1.0f / 8388608));
  EXPECT_THAT(*Samples(Wav(Format(1, 1, 8000, 32), std::string("\0\0\0\x80\0\0\0\x40", 8))), ElementsAre(-1, 0.5));
  EXPECT_THAT(*Samples(Wav(Format(3, 1, 8000, 32), Floats({0.25f, -3}))), ElementsAre(0.25, -3));
  EXPECT_THAT(*Samples(Wav(Extensible(1, 2, 8000, 16), Pcm16({8192, 16384, -32768, 0}))), ElementsAre(0.375, -0.5));
  EXPECT_THAT(*Samples(Wav(Extensible(3, 1, 8000, 32), Floats({0.5f}))), ElementsAre(0.5));
}

TEST_F(WavTest, PassesOverOtherChunksAndAnOddEnd) {
  const std::string other = Chunk("LIST", "odd") + Chunk("fact", "abcd");
  EXPECT_THAT(*Samples(Wav(Format(1, 1, 8000, 16), Pcm16({16384}), other) + "trailing"), ElementsAre(0.5));
  EXPECT_THAT(*Samples(Wav(Format(1, 1, 8000, 16), Pcm16({16384}) + "x")), ElementsAre(0.5));
}

TEST_F(WavTest, RefusesOthersByName) {
  EXPECT_THAT(Refusal(""), AllOf(HasSubstr("a.wav: is no WAVE file"), HasSubstr("DATA_LOSS")));
  EXPECT_THAT(Refusal("RIFX....WAVE"), HasSubstr("does not begin with RIFF"));
  EXPECT_THAT(Refusal(Wav(Format(1, 1, 8000, 16), "")), HasSubstr("holds no samples"));
  EXPECT_THAT(Refusal(Wav(Format(1, 1, 8000, 12), "abc")), AllOf(HasSubstr("12 bits"), HasSubstr("UNIMPLEMENTED")));
  EXPECT_THAT(Refusal(Wav(Format(6, 1, 8000, 8), "abc")), HasSubstr("WAVE format 6"));
  EXPECT_THAT(Refusal(Wav(Format(3, 1, 8000, 16), "abcd")), HasSubstr("WAVE format 3 of 16 bits"));
  EXPECT_THAT(Refusal(Wav(Format(1, 0, 8000, 16), "abcd")), HasSubstr("has 0 channels"));
  EXPECT_THAT(Refusal(Wav(Format(1, 1, 0, 16), "abcd")), HasSubstr("at 0 Hz"));
  EXPECT_THAT(Refusal(Wav("short", "abcd")), HasSubstr("format of too few bytes"));
  EXPECT_THAT(Refusal(Wav(Format(0xFFFE, 1, 8000, 16), "abcd")), HasSubstr("extensible"));
  EXPECT_THAT(Refusal("RIFF    WAVE" + Chunk("data", "abcd")), HasSubstr("samples before their format"));
  EXPECT_THAT(Refusal("RIFF    WAVE" + Chunk("fmt ", Format(1, 1, 8000, 16))), HasSubstr("ends before"));
  const std::string whole = Wav(Format(1, 1, 8000, 16), Pcm16({1, 2, 3}));
  EXPECT_THAT(Refusal(whole.substr(0, whole.size() - 1)),
              HasSubstr("cut short: 6 bytes of samples are to follow, 5 do"));
  std::string many = "RIFF    WAVE";
  for (int i = 0; i < 1001; ++i) many += Chunk("junk", "");
  EXPECT_THAT(Refusal(many), HasSubstr("first 1000 chunks"));
  EXPECT_THAT(Refusal("RIFF    WAVEjunk\xff\xff\xff\xff"), HasSubstr("ends before"));
  for (float v : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    EXPECT_THAT(Refusal(Wav(Format(3, 1, 8000, 32), Floats({0, v}))), HasSubstr("sample 1 is not finite"));
  }
}

struct Expected {
  int64_t frame, band;
  double value;
};

std::vector<float> Chirp(int64_t count) {
  std::vector<float> samples;
  for (int64_t t = 0; t < count; ++t) {
    const double noise = 0.1 * static_cast<double>((t * 37) % 11 - 5) / 5;
    samples.push_back(static_cast<float>(0.5 * std::sin(static_cast<double>(t * t) * 0.0009) + noise));
  }
  return samples;
}

void ExpectFeatures(const v1::LogMel& spec, int64_t rate, int64_t frames, const std::vector<Expected>& expected) {
  const auto log_mel = LogMel::Create(spec, rate);
  ASSERT_TRUE(log_mel.ok()) << log_mel.status();
  const std::vector<float> samples = Chirp(1000);
  ASSERT_EQ(log_mel->Frames(1000), frames);
  std::vector<float> out(static_cast<size_t>(frames * log_mel->mels()));
  log_mel->Compute(samples, absl::MakeSpan(out));
  for (const Expected& e : expected) EXPECT_NEAR(out[e.frame * log_mel->mels() + e.band], e.value, 2e-6) << e.frame;
}

// Values of the definition in log_mel.h, by numpy.fft.rfft and numpy.interp in float64.
TEST(LogMelTest, IsWhatNumpyComputes) {
  ExpectFeatures({}, 8000, 11,
                 {{0, 0, 2.455599411},
                  {0, 39, -0.361198690},
                  {3, 7, 0.224726533},
                  {5, 20, 1.712399601},
                  {9, 13, -0.562855821},
                  {10, 0, -0.739715750},
                  {10, 39, -1.609800737}});
  v1::LogMel spec;
  spec.set_mels(12);
  spec.set_window_seconds(0.03);
  spec.set_hop_seconds(0.007);
  spec.set_low_hz(100);
  spec.set_high_hz(3000);
  ExpectFeatures(spec, 16000, 5, {{0, 0, 1.716401615}, {2, 11, 0.700955877}, {4, 5, -1.352407977}});
}

TEST(LogMelTest, EveryBandHasMeanZeroAndDeviationOne) {
  const auto log_mel = LogMel::Create({}, 8000);
  const std::vector<float> samples = Chirp(3000);
  const int64_t frames = log_mel->Frames(3000);
  std::vector<float> out(static_cast<size_t>(frames * 40));
  log_mel->Compute(samples, absl::MakeSpan(out));
  for (int64_t b = 0; b < 40; ++b) {
    double sum = 0, squares = 0;
    for (int64_t f = 0; f < frames; ++f) sum += out[f * 40 + b], squares += out[f * 40 + b] * out[f * 40 + b];
    EXPECT_NEAR(sum / frames, 0, 1e-6);
    EXPECT_NEAR(squares / frames, 1, 1e-5);
  }
}

TEST(LogMelTest, TakesSilenceAndShortSounds) {
  const auto log_mel = LogMel::Create({}, 8000);
  EXPECT_EQ(log_mel->Frames(1), 1);
  EXPECT_EQ(log_mel->Frames(200), 1);
  EXPECT_EQ(log_mel->Frames(279), 1);
  EXPECT_EQ(log_mel->Frames(280), 2);
  for (size_t count : {1, 150, 2000}) {
    const std::vector<float> silence(count, 0);
    std::vector<float> out(static_cast<size_t>(log_mel->Frames(static_cast<int64_t>(count)) * 40), 7);
    log_mel->Compute(silence, absl::MakeSpan(out));
    for (float v : out) EXPECT_NEAR(v, 0, 1e-12);
  }
}

TEST(LogMelTest, RefusesWhatMakesNoSense) {
  const auto refusal = [](void (*set)(v1::LogMel&), int64_t rate) {
    v1::LogMel spec;
    set(spec);
    return LogMel::Create(spec, rate).status().ToString();
  };
  EXPECT_THAT(refusal([](v1::LogMel& m) { m.set_mels(512); }, 8000), HasSubstr("band 0 of 512 lies between"));
  EXPECT_THAT(refusal([](v1::LogMel& m) { m.set_mels(0); }, 8000), HasSubstr("mels"));
  EXPECT_THAT(refusal([](v1::LogMel& m) { m.set_high_hz(5000); }, 8000), HasSubstr("half of the rate"));
  EXPECT_THAT(refusal([](v1::LogMel& m) { m.set_window_seconds(1e9); }, 8000), HasSubstr("window_seconds"));
  EXPECT_THAT(refusal([](v1::LogMel& m) { m.set_hop_seconds(1e-9); }, 8000), HasSubstr("hop_seconds"));
  EXPECT_THAT(refusal([](v1::LogMel&) {}, 1), HasSubstr("window_seconds"));
}

TEST(TranscriptsTest, Globs) {
  const auto matches = [](const char* pattern, const char* name) { return GlobMatchesName(pattern, name); };
  EXPECT_TRUE(matches("*.wav", "a.wav"));
  EXPECT_FALSE(matches("*.wav", "a.wave"));
  EXPECT_TRUE(matches("*_[0-4].wav", "7_jackson_3.wav"));
  EXPECT_FALSE(matches("*_[0-4].wav", "7_jackson_13.wav"));
  EXPECT_FALSE(matches("*_[0-4].wav", "7_jackson_5.wav"));
  EXPECT_TRUE(matches("?_[!ab]*", "1_c"));
  EXPECT_FALSE(matches("?_[!ab]*", "1_a"));
  EXPECT_TRUE(matches("[]x]", "]"));
  EXPECT_TRUE(matches("a[b", "a[b"));
  EXPECT_TRUE(matches("[a-]", "-"));
  EXPECT_FALSE(matches("", "a"));
  EXPECT_TRUE(matches("**", ""));
  EXPECT_FALSE(matches(("*" + std::string(100, 'a') + "*b").c_str(), std::string(200, 'a').c_str()));
}

TEST(TranscriptsTest, SpellsInAnyAlphabet) {
  v1::WavFolderDataset spec;
  EXPECT_EQ(Alphabet::Create(spec)->classes(), 29);
  EXPECT_THAT(*Alphabet::Create(spec)->Spell("Az '"), ElementsAre(3, 28, 1, 2));
  EXPECT_THAT(Alphabet::Create(spec)->Spell("a\nb").status().ToString(), HasSubstr("has '\\n'"));
  spec.set_alphabet("\xc3\xa4xy");
  EXPECT_THAT(*Alphabet::Create(spec)->Spell("yX\xc3\xa4"), ElementsAre(3, 2, 1));
  spec.set_alphabet("aba");
  EXPECT_THAT(Alphabet::Create(spec).status().ToString(), HasSubstr("has 'a' twice"));
}

class WavFolderTest : public DataFolder {
 protected:
  WavFolderTest() {
    std::filesystem::create_directory(root_ + "/f");
    std::filesystem::create_directory(root_ + "/f/folder.wav");
    Write("f/1_b_0.wav", Tone(600));
    Write("f/0_b_0.wav", Tone(280));
    Write("f/0_a_1.wav", Tone(1000));
    Write("f/notes.txt", "no sound");
    wav().set_path("f");
    (*wav().mutable_transcript_by_prefix())["0"] = "zero";
    (*wav().mutable_transcript_by_prefix())["1"] = "One";
    wav().mutable_log_mel()->set_mels(5);
  }
  v1::WavFolderDataset& wav() { return *spec_.mutable_wav_folder(); }
  std::string Refusal() { return Open(spec_).status().ToString(); }

  v1::DatasetSpec spec_;
};

TEST_F(WavFolderTest, ReadsSoundsInTheOrderOfTheirNames) {
  const auto dataset = Open(spec_);
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  const DatasetInfo& info = (*dataset)->info();
  EXPECT_EQ(info.size, 3);
  EXPECT_THAT(info.input_shape, ElementsAre(11, 5));
  EXPECT_THAT(info.lengths, ElementsAre(11, 2, 6));
  EXPECT_EQ(info.label_count, 4);
  EXPECT_EQ(info.classes, 29);
  EXPECT_THAT(info.label_lengths, ElementsAre(4, 4, 3));
  std::vector<int32_t> labels(4);
  (*dataset)->ReadLabels(2, absl::MakeSpan(labels));
  EXPECT_THAT(labels, ElementsAre(17, 16, 7, -1));
  const std::vector<float> input = Input(**dataset, 1);
  EXPECT_NE(input[9], 0);
  for (size_t i = 10; i < input.size(); ++i) EXPECT_EQ(input[i], 0);
  // Of two frames each value is one deviation from the mean.
  for (size_t i = 0; i < 5; ++i) EXPECT_NEAR(std::fabs(input[i]), 1, 1e-5);
  EXPECT_TRUE((*dataset)->CheckFinite(0).ok());
}

TEST_F(WavFolderTest, DescribesWithoutReadingSamples) {
  for (int64_t limit : {0, 2}) {
    spec_.set_limit(limit);
    const auto opened = Open(spec_);
    const auto described = Describe(spec_);
    ASSERT_TRUE(opened.ok() && described.ok()) << opened.status() << described.status();
    const DatasetInfo& info = (*opened)->info();
    EXPECT_EQ(described->size, info.size);
    EXPECT_EQ(described->input_shape, info.input_shape);
    EXPECT_EQ(described->lengths, info.lengths);
    EXPECT_EQ(described->label_lengths, info.label_lengths);
    EXPECT_EQ(described->label_count, info.label_count);
  }
}

TEST_F(WavFolderTest, ALimitTakesOneOfEachTranscriptInTurn) {
  spec_.set_limit(2);
  const auto dataset = Open(spec_);
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  ASSERT_EQ((*dataset)->size(), 2);
  EXPECT_EQ((*dataset)->SampleName(0), "f/0_a_1.wav");
  EXPECT_EQ((*dataset)->SampleName(1), "f/1_b_0.wav");
  EXPECT_THAT((*dataset)->info().lengths, ElementsAre(11, 6));
  EXPECT_THAT((*dataset)->info().label_lengths, ElementsAre(4, 3));
  std::vector<int32_t> labels(4);
  (*dataset)->ReadLabels(1, absl::MakeSpan(labels));
  EXPECT_THAT(labels, ElementsAre(17, 16, 7, -1));
  const std::vector<float> input = Input(**dataset, 1);
  for (size_t i = 6 * 5; i < input.size(); ++i) EXPECT_EQ(input[i], 0);
}

TEST_F(WavFolderTest, ChoosesFilesByTheirNames) {
  wav().add_include("0_*");
  wav().add_include("1_*");
  wav().add_exclude("*_a_*");
  EXPECT_EQ(Describe(spec_)->size, 2);
  wav().add_exclude("*_b_*");
  EXPECT_THAT(Refusal(), AllOf(HasSubstr("f: none of its 5 files is included"), HasSubstr("NOT_FOUND")));
}

TEST_F(WavFolderTest, ReadsTranscriptsFromAFile) {
  wav().clear_transcript_by_prefix();
  wav().set_transcripts("said.tsv");
  Write("said.tsv", "0_a_1.wav\tzero a\r\n0_b_0\tb\n\n1_b_0.wav\t\nother\tx\n");
  const auto dataset = Open(spec_);
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_THAT((*dataset)->info().label_lengths, ElementsAre(6, 1, 0));
  // A byte order mark is no part of the first name.
  Write("said.tsv",
        "\xef\xbb\xbf"
        "0_a_1\tzero a\n0_b_0\tb\n1_b_0\tc\n");
  EXPECT_THAT((*Open(spec_))->info().label_lengths, ElementsAre(6, 1, 1));
  Write("said.tsv", std::string("\xff\xfe"
                                "0\0\t\0",
                                6));
  EXPECT_THAT(Refusal(), HasSubstr("said.tsv: is UTF-16 text; save it as UTF-8"));
  Write("said.tsv", "0_a_1.wav\tzero\n");
  EXPECT_THAT(Refusal(), HasSubstr("0_b_0.wav: has no transcript in said.tsv"));
  Write("said.tsv", "0_a_1.wav\tzero\nzero\n");
  EXPECT_THAT(Refusal(), HasSubstr("said.tsv: line 2 has no tab"));
  Write("said.tsv", "a\tb\na\tc");
  EXPECT_THAT(Refusal(), HasSubstr("line 2 names a file a second time"));
  wav().set_transcripts("../x");
  EXPECT_THAT(Refusal(), HasSubstr("PERMISSION_DENIED"));
}

TEST_F(WavFolderTest, RefusesWhatDoesNotFit) {
  (*wav().mutable_transcript_by_prefix())["1"] = "1";
  EXPECT_THAT(Refusal(), AllOf(HasSubstr("f/1_b_0.wav"), HasSubstr("\"1\" has '1', which the alphabet has not")));
  (*wav().mutable_transcript_by_prefix())["1"] = "one";
  Write("f/1_b_0.wav", Tone(600, 16000));
  EXPECT_THAT(Refusal(), HasSubstr("f/1_b_0.wav: is of 16000 Hz, but f/0_a_1.wav of 8000"));
  Write("f/1_b_0.wav", Wav(Format(7, 1, 8000, 8), "abc"));
  EXPECT_THAT(Refusal(), HasSubstr("f/1_b_0.wav: WAVE format 7"));
  wav().set_path("f/notes.txt");
  EXPECT_THAT(Refusal(), HasSubstr("is not a folder"));
  wav().set_path("nowhere");
  EXPECT_THAT(Refusal(), HasSubstr("nowhere: no such folder"));
}

TEST_F(WavFolderTest, DamagedFilesAreNamedWhenTheyAreRead) {
  const std::string whole = Tone(600);
  Write("f/1_b_0.wav", whole.substr(0, whole.size() - 100));
  Write("f/0_b_0.wav", Wav(Format(3, 1, 8000, 32), Floats(std::vector<float>(300, NAN))));
  const auto dataset = Open(spec_);
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_THAT((*dataset)->info().lengths, ElementsAre(11, 2, 11));
  EXPECT_EQ(Describe(spec_)->lengths, (*dataset)->info().lengths);
  EXPECT_TRUE((*dataset)->CheckFinite(0).ok());
  EXPECT_THAT((*dataset)->CheckFinite(1).ToString(), HasSubstr("f/0_b_0.wav: sample 0 is not finite"));
  EXPECT_THAT((*dataset)->CheckFinite(2).ToString(), AllOf(HasSubstr("DATA_LOSS: f/1_b_0.wav: is cut short")));
  for (const char* name : {"f/0_a_1.wav", "f/0_b_0.wav", "f/1_b_0.wav"}) Write(name, "");
  EXPECT_THAT(Refusal(), HasSubstr("all 3 files are damaged, the first: f/0_a_1.wav: is no WAVE file"));
}

TEST_F(WavFolderTest, HostileBytesDoNoHarm) {
  wav().add_include("1_b_0.wav");
  Torment("f/1_b_0.wav", Wav(Extensible(1, 2, 8000, 16), Pcm16({8192, 16384, -32768, 0}), Chunk("LIST", "odd")), spec_);
}

// What replaces a damaged sound in training is the next one that is whole and not too long; an evaluation leaves it
// out.
TEST_F(WavFolderTest, DamagedSoundsAreReplacedByOnesThatFit) {
  // Whole by its header.
  Write("f/0_b_0.wav", Wav(Format(3, 1, 8000, 32), Floats(std::vector<float>(280, NAN))));
  v1::DataSpec data;
  *data.mutable_train() = spec_;
  *data.mutable_eval() = spec_;
  data.set_max_corrupt_ratio(0.4);
  EXPECT_EQ(DescribeDataset(data, roots_, false)->max_damaged, 1);
  const auto dataset = OpenDataset(data, roots_, false);
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_EQ((*dataset)->info().max_damaged, 1);
  const auto transform = Transform::Create({}, **dataset);
  ASSERT_TRUE(transform.ok()) << transform.status();
  LoaderOptions options;
  options.batch_size = 1;
  options.target_width = 29;
  options.spelled_labels = true;
  options.shuffle = false;
  // The damaged one, of two frames, is in the first bucket; the one behind it fits the second alone.
  options.buckets = {2, 8, 16};
  auto loader = Loader::CreateTraining(**dataset, *transform, options);
  ASSERT_TRUE(loader.ok()) << loader.status();
  EXPECT_THAT((*loader)->Next().status().ToString(), HasSubstr("no whole sample is as short"));
  options.buckets = {8, 16};
  loader = Loader::CreateTraining(**dataset, *transform, options);
  const Batch& batch = **(*loader)->Next();
  EXPECT_THAT(batch.samples, ElementsAre(2));
  EXPECT_EQ(batch.inputs.shape(), (Shape{1, 8, 5}));
  loader = Loader::CreateEvaluation(**dataset, *transform, options);
  int64_t valid = 0;
  for (int i = 0; i < 3; ++i) {
    const auto next = (*loader)->Next();
    ASSERT_TRUE(next.ok()) << next.status();
    valid += (*next)->valid;
    (*loader)->Release(*next);
  }
  EXPECT_EQ(valid, 2);
}

// Of sounds whose headers are damaged nobody knows how long they are: as many as max_corrupt_ratio allows cost nothing.
TEST_F(WavFolderTest, SoundsWithoutALengthAreReplacedByAnyOther) {
  Write("f/0_b_0.wav", "damaged");
  Write("f/0_c_0.wav", "damaged");
  // None is short.
  Write("f/1_b_0.wav", Tone(900));
  v1::DataSpec data;
  *data.mutable_train() = spec_;
  data.set_max_corrupt_ratio(0.5);
  const auto dataset = OpenDataset(data, roots_, false);
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_THAT((*dataset)->info().lengths, ElementsAre(11, 11, 11, 9));
  EXPECT_EQ(DescribeDataset(data, roots_, false)->lengths, (*dataset)->info().lengths);
  const auto transform = Transform::Create({}, **dataset);
  ASSERT_TRUE(transform.ok()) << transform.status();
  LoaderOptions options;
  options.batch_size = 1;
  options.target_width = 29;
  options.spelled_labels = true;
  options.shuffle = false;
  options.buckets = *LengthBuckets((*dataset)->info().lengths, {}, {});
  auto loader = Loader::CreateTraining(**dataset, *transform, options);
  ASSERT_TRUE(loader.ok()) << loader.status();
  std::set<int64_t> seen;
  for (int i = 0; i < 8; ++i) {
    const auto batch = (*loader)->Next();
    ASSERT_TRUE(batch.ok()) << batch.status();
    seen.insert((*batch)->samples.begin(), (*batch)->samples.end());
    (*loader)->Release(*batch);
  }
  EXPECT_EQ(seen, (std::set<int64_t>{0, 3}));
  // Of what a limit leaves.
  data.mutable_train()->set_limit(2);
  EXPECT_THAT(DescribeDataset(data, roots_, false)->lengths, ElementsAre(11, 9));
  Write("f/0_a_1.wav", "damaged");
  EXPECT_THAT(DescribeDataset(data, roots_, false)->lengths, ElementsAre(9, 9));
}

// Labels of two sets are padded alike.
TEST_F(WavFolderTest, LoadsBatchesForCtc) {
  const auto dataset = Open(spec_);
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  const auto transform = Transform::Create({}, **dataset);
  ASSERT_TRUE(transform.ok()) << transform.status();
  LoaderOptions options;
  options.batch_size = 3;
  options.target_width = 29;
  options.buckets = {16};
  options.spelled_labels = true;
  options.label_places = 6;
  const auto loader = Loader::CreateEvaluation(**dataset, *transform, options);
  ASSERT_TRUE(loader.ok()) << loader.status();
  const Batch& batch = **(*loader)->Next();
  EXPECT_EQ(batch.inputs.shape(), (Shape{3, 16, 5}));
  EXPECT_THAT(batch.labels.as<int32_t>().subspan(12, 6), ElementsAre(17, 16, 7, -1, -1, -1));
  EXPECT_THAT(batch.lengths.as<int32_t>(), ElementsAre(11, 2, 6));
  EXPECT_THAT(batch.label_lengths.as<int32_t>(), ElementsAre(4, 4, 3));
}

// What a loader hands out: batches of training, and of an evaluation.
struct Heard {
  std::vector<int64_t> samples;
  std::vector<float> inputs;
  std::vector<int32_t> lengths;
  bool operator==(const Heard& other) const {
    return samples == other.samples && inputs == other.inputs && lengths == other.lengths;
  }
};

std::vector<Heard> Hear(Loader& loader, int batches) {
  std::vector<Heard> heard;
  for (int i = 0; i < batches; ++i) {
    const auto batch = loader.Next();
    EXPECT_TRUE(batch.ok()) << batch.status();
    if (!batch.ok()) return heard;
    const auto inputs = (*batch)->inputs.as<float>();
    const auto lengths = (*batch)->lengths.as<int32_t>();
    heard.push_back({(*batch)->samples, {inputs.begin(), inputs.end()}, {lengths.begin(), lengths.end()}});
    loader.Release(*batch);
  }
  return heard;
}

class WavCacheTest : public WavFolderTest {
 protected:
  WavCacheTest() {
    *data_.mutable_train() = spec_;
    *data_.mutable_eval() = spec_;
    options_.batch_size = 2;
    options_.target_width = 29;
    options_.spelled_labels = true;
    options_.seed = 4;
    options_.buckets = {8, 16};
  }

  std::shared_ptr<SampleCache> Cache(v1::CacheSpec::Kind kind, int64_t max_bytes) const {
    v1::CacheSpec spec;
    spec.set_kind(kind);
    spec.set_max_bytes(max_bytes);
    return *SampleCache::Create(spec, root_ + "/job/cache");
  }

  // As the definition says: the spectrogram of all of a file's samples, and zeros up to the bucket.
  std::vector<float> Computed(const std::string& name, int64_t time) const {
    const auto file = *OpenBeneath(name, roots_);
    const WavHeader header = *ReadWavHeader(*file);
    const LogMel log_mel = *LogMel::Create(data_.train().wav_folder().log_mel(), header.sample_rate);
    std::vector<float> values(static_cast<size_t>(time * 5));
    log_mel.Compute(*ReadWavSamples(*file, header), absl::MakeSpan(values));
    return values;
  }

  v1::DataSpec data_;
  LoaderOptions options_;
};

// Bit by bit, with any cache and any number of threads, in every epoch.
TEST_F(WavCacheTest, BatchesAreTheSameWithAnyCache) {
  std::vector<Heard> expected;
  for (const auto& [kind, max_bytes] : std::vector<std::pair<v1::CacheSpec::Kind, int64_t>>{
           {v1::CacheSpec::NONE, 0},
           {v1::CacheSpec::MEMORY, 1 << 20},
           {v1::CacheSpec::DISK, 1 << 20},
           // One sound of 6 frames, or of 2: not that of 11, and not all.
           {v1::CacheSpec::MEMORY, 6 * 5 * 4 + 64 + 3},
           {v1::CacheSpec::DISK, 6 * 5 * 4 + 64 + 3},
           {v1::CacheSpec::MEMORY, 0}}) {
    for (int threads : {1, 3}) {
      const auto cache = Cache(kind, max_bytes);
      const auto dataset = OpenDataset(data_, roots_, false, cache);
      ASSERT_TRUE(dataset.ok()) << dataset.status();
      const auto transform = Transform::Create({}, **dataset);
      ASSERT_TRUE(transform.ok()) << transform.status();
      options_.threads = threads;
      auto loader = Loader::CreateTraining(**dataset, *transform, options_);
      ASSERT_TRUE(loader.ok()) << loader.status();
      const std::vector<Heard> heard = Hear(**loader, 6);
      if (expected.empty()) expected = heard;
      EXPECT_EQ(heard, expected) << kind << " " << max_bytes << " " << threads;
      for (const Heard& batch : heard) {
        const int64_t time = static_cast<int64_t>(batch.inputs.size()) / (2 * 5);
        std::vector<float> inputs;
        for (int64_t i : batch.samples) {
          const std::vector<float> one = Computed((*dataset)->SampleName(i), time);
          inputs.insert(inputs.end(), one.begin(), one.end());
        }
        EXPECT_EQ(batch.inputs, inputs);
      }
      loader->reset();
      if (cache == nullptr) continue;
      EXPECT_LE(cache->bytes(), max_bytes);
      EXPECT_EQ(cache->bytes() > 0, max_bytes > 0);
    }
  }
}

// What later epochs hear is what the cache holds: the files are gone by then.
TEST_F(WavCacheTest, TheCacheServesLaterEpochs) {
  for (const auto kind : {v1::CacheSpec::MEMORY, v1::CacheSpec::DISK}) {
    const auto cache = Cache(kind, 1 << 20);
    const auto train = OpenDataset(data_, roots_, false, cache), eval = OpenDataset(data_, roots_, true, cache);
    ASSERT_TRUE(train.ok() && eval.ok()) << train.status() << eval.status();
    const auto transform = Transform::Create({}, **train);
    ASSERT_TRUE(transform.ok()) << transform.status();
    options_.threads = 2;
    const auto epoch = [&] {
      std::vector<Heard> heard;
      for (const Dataset* dataset : {train->get(), eval->get()}) {
        const auto loader = Loader::CreateEvaluation(*dataset, *transform, options_);
        EXPECT_TRUE(loader.ok()) << loader.status();
        for (Heard& batch : Hear(**loader, 2)) heard.push_back(std::move(batch));
      }
      return heard;
    };
    const std::vector<Heard> first = epoch();
    std::filesystem::rename(root_ + "/f", root_ + "/gone");
    EXPECT_EQ(epoch(), first);
    std::filesystem::rename(root_ + "/gone", root_ + "/f");
    EXPECT_EQ((*train)->damage().count() + (*eval)->damage().count(), 0);
    EXPECT_EQ(cache->bytes(), 2 * ((11 + 2 + 6) * 5 * 4 + 3 * 64));
    EXPECT_EQ((*train)->info().cache_bytes, cache->bytes() / 2);
    EXPECT_EQ(std::filesystem::exists(root_ + "/job/cache"), kind == v1::CacheSpec::DISK);
  }
}

// Of files that go, or are cut, while the job trains.
TEST_F(WavCacheTest, FilesThatGoAreDamaged) {
  data_.set_max_corrupt_ratio(0.5);
  const auto dataset = OpenDataset(data_, roots_, false);
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  std::filesystem::remove(root_ + "/f/0_b_0.wav");
  Write("f/1_b_0.wav", Tone(300));
  std::vector<float> out(static_cast<size_t>((*dataset)->info().input_elements()));
  EXPECT_TRUE((*dataset)->ReadSample(0, nullptr, absl::MakeSpan(out)).ok());
  const absl::Status gone = (*dataset)->ReadSample(1, nullptr, absl::MakeSpan(out));
  EXPECT_THAT(gone.ToString(), AllOf(HasSubstr("DATA_LOSS: f/0_b_0.wav: "), HasSubstr("no such file")));
  EXPECT_EQ((*dataset)->ReadSample(2, nullptr, absl::MakeSpan(out)).code(), absl::StatusCode::kDataLoss);
  // Longer: as it was described it could still be read.
  Write("f/1_b_0.wav", Tone(30000));
  EXPECT_THAT((*dataset)->ReadSample(2, nullptr, absl::MakeSpan(out)).ToString(),
              AllOf(HasSubstr("DATA_LOSS: f/1_b_0.wav: "), HasSubstr("changed")));
  EXPECT_TRUE((*dataset)->NoteDamage(1, gone).ok());
  EXPECT_THAT((*dataset)->damage().Take()[0].reason, HasSubstr("no such file"));
}

TEST(WavFolderRealData, SpokenDigits) {
  const std::vector<std::string> roots = {std::filesystem::absolute("../shared/data").string()};
  if (!std::filesystem::exists(roots[0] + "/fsdd")) GTEST_SKIP() << "no real data: " << roots[0] << "/fsdd is absent";
  v1::DatasetSpec spec;
  v1::WavFolderDataset& wav = *spec.mutable_wav_folder();
  wav.set_path("fsdd/recordings");
  wav.add_include("*_[0-4].wav");
  for (const char* digit :
       {"0 zero", "1 one", "2 two", "3 three", "4 four", "5 five", "6 six", "7 seven", "8 eight", "9 nine"}) {
    (*wav.mutable_transcript_by_prefix())[std::string(digit, 1)] = digit + 2;
  }
  const auto dataset = OpenDataset(spec, roots, true);
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_EQ((*dataset)->size(), 300);
  EXPECT_EQ((*dataset)->info().label_count, 5);
  for (int64_t i = 0; i < 300; ++i) EXPECT_TRUE((*dataset)->CheckFinite(i).ok());
}

}  // namespace
}  // namespace ampd::data
