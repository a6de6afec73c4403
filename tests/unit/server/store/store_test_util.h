#ifndef AMPD_TESTS_UNIT_SERVER_STORE_STORE_TEST_UTIL_H_
#define AMPD_TESTS_UNIT_SERVER_STORE_STORE_TEST_UTIL_H_

#include <gtest/gtest.h>
#include <sqlite3.h>
#include <stdlib.h>

#include <filesystem>
#include <future>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "server/store/checksum_vfs.h"
#include "server/store/store.h"

namespace ampd {

// A folder that goes with the object.
class TempDir {
 public:
  TempDir() {
    std::string path = (std::filesystem::temp_directory_path() / "ampd-test-XXXXXX").string();
    EXPECT_NE(mkdtemp(path.data()), nullptr);
    path_ = path;
  }
  ~TempDir() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// A 26-character id that sorts by `n`.
inline std::string TestId(int n) { return absl::StrFormat("01h%023d", n); }

inline v1::JobEvent TestEvent(uint64_t sequence, const std::string& text = "x") {
  v1::JobEvent event;
  event.set_first_sequence(sequence);
  event.set_sequence(sequence);
  event.mutable_log()->set_text(text);
  return event;
}

// Creates job `n` with one event.
inline JobWrite CreateWrite(int n) {
  JobWrite write;
  write.create = true;
  write.record.submit_sequence = n;
  write.record.job.set_id(TestId(n));
  write.record.job.mutable_spec()->set_name(absl::StrCat("job ", n));
  write.record.job.mutable_plan()->set_parameters(n);
  write.record.job.set_state(v1::Job::QUEUED);
  write.record.job.set_last_sequence(1);
  write.events = {TestEvent(1)};
  return write;
}

// Appends event `sequence` to job `n`.
inline JobWrite EventWrite(int n, uint64_t sequence, const std::string& text = "x") {
  JobWrite write = CreateWrite(n);
  write.create = false;
  write.record.job.clear_spec();
  write.record.job.clear_plan();
  write.record.job.set_last_sequence(sequence);
  write.events = {TestEvent(sequence, text)};
  return write;
}

// Another connection to the database in `dir`, whose changes to a closed one leave the checksums right.
inline sqlite3* OpenRaw(const std::string& dir) {
  sqlite3* db = nullptr;
  EXPECT_EQ(sqlite3_open_v2((dir + "/ampd.db").c_str(), &db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, ChecksumVfs()),
            SQLITE_OK);
  return db;
}

inline absl::Status WriteAndWait(Store& store, JobWrite write) {
  std::promise<absl::Status> done;
  store.Write(std::move(write), [&done](const absl::Status& status) { done.set_value(status); });
  return done.get_future().get();
}

}  // namespace ampd

#endif  // AMPD_TESTS_UNIT_SERVER_STORE_STORE_TEST_UTIL_H_
