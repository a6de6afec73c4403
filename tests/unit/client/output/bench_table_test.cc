#include "client/output/bench_table.h"

#include <gmock/gmock.h>

#include <algorithm>

#include "client/output/svg.h"

namespace ampd::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using v1::PrecisionSpec;

v1::BenchCell Cell(PrecisionSpec::Mode mode, int64_t batch, double seconds, int64_t index) {
  v1::BenchCell cell;
  cell.set_mode(mode);
  cell.set_batch_size(batch);
  cell.set_steps(30);
  cell.set_step_seconds(seconds);
  cell.set_speed_up(2);
  cell.set_samples_per_second(static_cast<double>(batch) / seconds);
  cell.set_index(index);
  return cell;
}

v1::BenchCell Failed(int64_t batch) {
  v1::BenchCell cell;
  cell.set_mode(PrecisionSpec::BF16);
  cell.set_batch_size(batch);
  cell.mutable_failure()->set_class_(v1::Failure::OUT_OF_MEMORY);
  cell.mutable_failure()->set_message("it takes 2, \"of\" 1");
  return cell;
}

TEST(BenchCells, MeasuresAgainAfterARewind) {
  BenchCells cells;
  for (int64_t i = 1; i <= 3; ++i) {
    v1::JobEvent event;
    *event.mutable_bench_cell() = Cell(PrecisionSpec::FP32, 8 * i, 1, i);
    cells.Observe(event);
  }
  v1::JobEvent rewound;
  rewound.mutable_rewound()->set_to_step(2);
  cells.Observe(rewound);
  ASSERT_EQ(cells.cells().size(), 2u);
  EXPECT_EQ(cells.cells()[1].index(), 2);
}

TEST(BenchTable, LeavesOutWhatNoCellHas) {
  const std::string table = BenchTable({Cell(PrecisionSpec::FP32, 32, 0.0125, 1), Failed(4096)});
  EXPECT_THAT(table, HasSubstr("ms/STEP"));
  EXPECT_THAT(table, HasSubstr("12.50"));
  EXPECT_THAT(table, HasSubstr("2.00x"));
  EXPECT_THAT(table, HasSubstr("OUT_OF_MEMORY: it takes 2"));
  EXPECT_THAT(table, Not(HasSubstr("MFU")));
  EXPECT_THAT(table, Not(HasSubstr("$/M")));
  EXPECT_THAT(BenchTable({}), HasSubstr("BATCH"));
}

TEST(BenchCsv, QuotesAndLeavesEmpty) {
  const std::string csv = BenchCsv({Cell(PrecisionSpec::FP32, 32, 0.0125, 1), Failed(4096)});
  EXPECT_THAT(csv, HasSubstr("mode,batch_size,size,steps,step_seconds,"));
  EXPECT_THAT(csv, HasSubstr("\r\nFP32,32,,30,0.0125,"));
  EXPECT_THAT(csv, HasSubstr("\r\nBF16,4096,,0,,,,,"));
  EXPECT_THAT(csv, HasSubstr(",\"OUT_OF_MEMORY: it takes 2, \"\"of\"\" 1\"\r\n"));
}

TEST(BenchJson, IsOneArray) {
  EXPECT_EQ(BenchJson({}), "[\n\n]\n");
  EXPECT_THAT(BenchJson({Cell(PrecisionSpec::BF16, 32, 0.5, 1)}), HasSubstr("\"mode\":\"BF16\""));
}

TEST(BenchSvg, BreaksLinesWhereThereIsNoFigure) {
  const std::string svg =
      BenchSvg("<job> & more", {Cell(PrecisionSpec::BF16, 32, 0.5, 1), Failed(64),
                                Cell(PrecisionSpec::BF16, 128, 0.6, 3), Cell(PrecisionSpec::BF16, 256, 0.7, 4)});
  EXPECT_THAT(svg, HasSubstr("&lt;job&gt; &amp; more"));
  EXPECT_THAT(svg, HasSubstr("no figures for BF16 at 64: OUT_OF_MEMORY"));
  const size_t path = svg.find("<path d=\"");
  ASSERT_NE(path, std::string::npos);
  const std::string data = svg.substr(path, svg.find('"', path + 9) - path);
  EXPECT_EQ(std::count(data.begin(), data.end(), 'M'), 2) << data;
  EXPECT_EQ(std::count(data.begin(), data.end(), 'L'), 1) << data;
  EXPECT_THAT(BenchSvg("nothing", {}), HasSubstr("</svg>"));
}

TEST(RoundTicks, AreRound) {
  EXPECT_THAT(RoundTicks(0, 2.3, false), ElementsAre(0, 0.5, 1, 1.5, 2, 2.5));
  EXPECT_THAT(RoundTicks(0.9, 30, true), ElementsAre(1, 2, 5, 10, 20));
  EXPECT_THAT(RoundTicks(1, 5000, true), ElementsAre(1, 10, 100, 1000));
}

}  // namespace
}  // namespace ampd::client
