// A prepared SQL statement: bind in order, step, read columns. The first error is kept and returned by Step.
#ifndef AMPD_SERVER_STORE_STATEMENT_H_
#define AMPD_SERVER_STORE_STATEMENT_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/message_lite.h"

struct sqlite3_stmt;

namespace ampd {

class Database;

class Statement {
 public:
  // `sql` must outlive `database` (a literal): the compiled form is cached by its address and shared, so two
  // statements of one text must not be alive at once.
  Statement(const Database& database, const char* sql);
  // Of a text that is made for the occasion: compiled anew, and not kept.
  struct Once {};
  Statement(const Database& database, absl::string_view sql, Once once);
  ~Statement();
  Statement(const Statement&) = delete;
  Statement& operator=(const Statement&) = delete;

  // Values of the parameters ?1, ?2, ... in the order of the calls.
  Statement& Int(int64_t value);
  Statement& Real(double value);
  Statement& Text(absl::string_view value);
  Statement& Blob(absl::string_view value);
  Statement& Null();

  // True: a row to read; false: done.
  absl::StatusOr<bool> Step();
  // Steps to the end, ignoring rows.
  absl::Status Run();

  // Columns of the row, from 0.
  int64_t IntAt(int column) const;
  double RealAt(int column) const;
  bool NullAt(int column) const;
  bool IsTextAt(int column) const;
  std::string BytesAt(int column) const;
  // Of its bytes.
  size_t SizeAt(int column) const;
  // DATA_LOSS, naming the database, when the column does not hold such a message.
  absl::Status ParseAt(int column, google::protobuf::MessageLite* message) const;

 private:
  void Check(int code);

  const Database& database_;
  sqlite3_stmt* statement_ = nullptr;
  bool is_own_ = false;
  int bound_ = 0;
  absl::Status status_;
};

}  // namespace ampd

#endif  // AMPD_SERVER_STORE_STATEMENT_H_
