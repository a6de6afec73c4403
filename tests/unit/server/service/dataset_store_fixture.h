// A store of uploaded datasets in a folder of its own.
#ifndef AMPD_TESTS_UNIT_SERVER_SERVICE_DATASET_STORE_FIXTURE_H_
#define AMPD_TESTS_UNIT_SERVER_SERVICE_DATASET_STORE_FIXTURE_H_

#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "proto/spec/dataset_path.h"
#include "proto/spec/resolve.h"
#include "server/service/dataset_store.h"

namespace ampd {

inline bool SaysWhenToComeBack(const absl::Status& status) {
  return status.GetPayload("type.googleapis.com/google.rpc.RetryInfo").has_value();
}

inline std::vector<std::string> Fields(const absl::Status& status) {
  std::vector<std::string> fields;
  for (const FieldViolation& violation : FieldViolationsOf(status)) fields.push_back(violation.field);
  return fields;
}

inline v1::DatasetFile FileOf(const std::string& path, const std::string& bytes) {
  v1::DatasetFile file;
  file.set_path(path);
  file.set_size_bytes(static_cast<int64_t>(bytes.size()));
  file.set_sha256(Sha256Hex(bytes));
  return file;
}

class DatasetStoreTest : public testing::Test {
 protected:
  DatasetStoreTest() : folder_(absl::StrCat(testing::TempDir(), "/dataset_store_test_", getpid())) {
    std::filesystem::remove_all(folder_);
    Open();
  }
  ~DatasetStoreTest() override { std::filesystem::remove_all(folder_); }

  // As a daemon that starts anew, after one that may have been killed: nothing is told to the one before.
  void Open(DatasetLimits limits = {}) {
    limits.all = std::make_shared<ByteBudget>(all_bytes_);
    budget_ = limits.all;
    limits.entry_bytes = entry_bytes_;
    limits.shortage = [this] { return shortage_; };
    DatasetStore::Options options{.folder = folder_, .limits = limits};
    options.bytes_per_user = bytes_per_user_;
    options.datasets_per_user = datasets_per_user_;
    options.log = [this](const std::string& text) { logged_.push_back(text); };
    options.sync_folder = [this](const std::string& path) { return sync_ ? sync_(path) : SyncFolder(path); };
    store_ = DatasetStore::Open(std::move(options)).value();
  }

  static absl::Status Send(DatasetStore::Upload& upload, const std::string& path, const std::string& bytes) {
    if (absl::Status status = upload.BeginFile(FileOf(path, bytes), 0); !status.ok()) return status;
    return upload.Append(0, bytes);
  }
  absl::StatusOr<v1::Dataset> Make(const std::string& name,
                                   const std::vector<std::pair<std::string, std::string>>& files) {
    auto upload = store_->Begin(name, "");
    if (!upload.ok()) return upload.status();
    for (const auto& [path, bytes] : files) {
      if (absl::Status status = Send(**upload, path, bytes); !status.ok()) return status;
    }
    return (*upload)->Commit();
  }
  std::string Content(const std::string& name, const std::string& path) const {
    std::ifstream file(absl::StrCat(DatasetFilesFolder(folder_, name), "/", path), std::ios::binary);
    return std::string((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  }
  int64_t Received(const std::string& name, const std::string& path) const {
    const v1::Dataset dataset = store_->Get(name).value();
    for (const v1::DatasetFile& file : dataset.files()) {
      if (file.path() == path) return file.received_bytes();
    }
    return -1;
  }
  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const v1::Dataset& dataset : store_->List()) {
      names.push_back(absl::StrCat(dataset.name(), dataset.committed() ? "" : " unfinished"));
    }
    return names;
  }
  absl::Status Delete(const std::string& name, const std::optional<std::string>& owner = std::nullopt) {
    auto deletion = store_->BeginDeletion(name, owner);
    return deletion.ok() ? (*deletion)->Finish() : deletion.status();
  }

  const std::string folder_;
  int64_t all_bytes_ = 1 << 20;
  int64_t bytes_per_user_ = 0;
  int64_t entry_bytes_ = 0;
  size_t datasets_per_user_ = 1000;
  std::shared_ptr<ByteBudget> budget_;
  std::vector<std::string> logged_;
  std::string shortage_;
  // In place of SyncFolder.
  std::function<absl::Status(const std::string&)> sync_;
  std::unique_ptr<DatasetStore> store_;
};

}  // namespace ampd

#endif  // AMPD_TESTS_UNIT_SERVER_SERVICE_DATASET_STORE_FIXTURE_H_
