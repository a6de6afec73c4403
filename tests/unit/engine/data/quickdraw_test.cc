#include "engine/data/quickdraw.h"

#include <filesystem>

#include "gmock/gmock.h"
#include "tests/unit/engine/data/data_folder.h"

namespace ampd::data {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class QuickDrawTest : public DataFolder {
 protected:
  QuickDrawTest() {
    std::filesystem::create_directory(root_ + "/qd");
    spec_.mutable_quickdraw()->set_path("qd");
  }

  // Row r is filled with `first` + r.
  static std::string Rows(int rows, int first, const std::string& width = "784") {
    std::string values;
    for (int r = 0; r < rows; ++r) values += std::string(784, static_cast<char>(first + r));
    return NpyFileBytes(
        "{'descr': '|u1', 'fortran_order': False, 'shape': (" + std::to_string(rows) + ", " + width + "), }\n", values);
  }

  v1::DatasetSpec spec_;
};

TEST_F(QuickDrawTest, TakesRowsOfEveryClass) {
  Write("qd/cat.npy", Rows(5, 10));
  Write("qd/ant.npy", Rows(4, 50));
  Write("qd/notes.txt", "no class");
  const auto all = Open(spec_);
  ASSERT_TRUE(all.ok()) << all.status();
  EXPECT_EQ((*all)->size(), 9);
  EXPECT_EQ((*all)->info().input_shape, (Shape{28, 28, 1}));
  EXPECT_EQ(Input(**all, 0), std::vector<float>(784, 50));
  EXPECT_EQ((*all)->ReadLabel(3), 0);
  EXPECT_EQ((*all)->ReadLabel(4), 1);
  spec_.mutable_quickdraw()->add_classes("cat");
  spec_.mutable_quickdraw()->add_classes("ant");
  spec_.mutable_quickdraw()->set_skip_per_class(1);
  spec_.mutable_quickdraw()->set_samples_per_class(2);
  const auto some = Open(spec_);
  ASSERT_TRUE(some.ok()) << some.status();
  EXPECT_EQ((*some)->size(), 4);
  EXPECT_EQ(Describe(spec_)->size, 4);
  EXPECT_EQ(Input(**some, 1), std::vector<float>(784, 12));
  EXPECT_EQ(Input(**some, 2), std::vector<float>(784, 51));
  EXPECT_EQ((*some)->ReadLabel(2), 1);
}

TEST_F(QuickDrawTest, AClassWhoseNameIsNoUtf8IsNamed) {
  Write("qd/cat.npy", Rows(1, 10));
  Write("qd/caf\xe9.npy", Rows(1, 10));
  EXPECT_EQ(Open(spec_).status().message(),
            "qd: the name of file 'caf\\xe9.npy' is no UTF-8, as a class's name must be: rename it");
  spec_.mutable_quickdraw()->add_classes("cat");
  EXPECT_TRUE(Open(spec_).ok()) << Open(spec_).status();
}

TEST_F(QuickDrawTest, ALimitTakesOneOfEachClassInTurn) {
  Write("qd/ant.npy", Rows(4, 50));
  Write("qd/bee.npy", Rows(1, 80));
  Write("qd/cat.npy", Rows(5, 10));
  spec_.set_limit(6);
  const auto dataset = Open(spec_);
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  ASSERT_EQ((*dataset)->size(), 6);
  EXPECT_EQ(Describe(spec_)->size, 6);
  EXPECT_EQ((*dataset)->info().classes, 3);
  const std::vector<std::pair<float, int32_t>> expected = {{50, 0}, {51, 0}, {52, 0}, {80, 1}, {10, 2}, {11, 2}};
  for (int64_t i = 0; i < 6; ++i) {
    EXPECT_EQ(Input(**dataset, i), std::vector<float>(784, expected[static_cast<size_t>(i)].first)) << i;
    EXPECT_EQ((*dataset)->ReadLabel(i), expected[static_cast<size_t>(i)].second) << i;
  }
  // Of what the others leave.
  spec_.mutable_quickdraw()->add_classes("cat");
  spec_.mutable_quickdraw()->add_classes("ant");
  spec_.mutable_quickdraw()->set_skip_per_class(1);
  spec_.mutable_quickdraw()->set_samples_per_class(2);
  spec_.set_limit(3);
  const auto some = Open(spec_);
  ASSERT_TRUE(some.ok()) << some.status();
  EXPECT_EQ((*some)->size(), 3);
  EXPECT_EQ(Input(**some, 1), std::vector<float>(784, 12));
  EXPECT_EQ(Input(**some, 2), std::vector<float>(784, 51));
}

TEST_F(QuickDrawTest, RefusesWhatDoesNotFit) {
  const auto error = [&] { return std::string(Open(spec_).status().message()); };
  EXPECT_THAT(error(), HasSubstr("no .npy files"));
  Write("qd/a.npy", Rows(3, 0));
  spec_.mutable_quickdraw()->set_skip_per_class(3);
  EXPECT_THAT(error(), AllOf(HasSubstr("qd/a.npy"), HasSubstr("holds 3 drawings")));
  spec_.mutable_quickdraw()->set_skip_per_class(1);
  spec_.mutable_quickdraw()->set_samples_per_class(3);
  EXPECT_THAT(error(), HasSubstr("samples_per_class 3"));
  spec_.mutable_quickdraw()->set_skip_per_class(INT64_MAX);
  EXPECT_THAT(error(), HasSubstr("holds 3 drawings"));
  spec_.mutable_quickdraw()->set_skip_per_class(0);
  Write("qd/a.npy", Rows(3, 0, "783"));
  EXPECT_THAT(error(), HasSubstr("u1 [n, 784]"));
  spec_.mutable_quickdraw()->add_classes("../a");
  EXPECT_THAT(error(), HasSubstr("no file's name"));
  spec_.mutable_quickdraw()->set_classes(0, "b");
  EXPECT_EQ(Open(spec_).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(QuickDrawTest, RefusesTruncatedFiles) {
  const std::string bytes = Rows(2, 1);
  for (size_t n : {size_t{0}, size_t{9}, size_t{40}, bytes.size() - 784, bytes.size() - 1}) {
    Write("qd/a.npy", bytes.substr(0, n));
    EXPECT_FALSE(Open(spec_).ok()) << n;
    // Which looks at headers and sizes alone.
    EXPECT_EQ(Describe(spec_).ok(), n == bytes.size() - 1) << n;
  }
  Write("qd/a.npy", bytes + "x");
  EXPECT_FALSE(Open(spec_).ok());
}

}  // namespace
}  // namespace ampd::data
