// Room that is kept in the state directory for the start of a daemon: SQLite cannot open a database without the file of
// its log's index, and a disk may have become full since the last daemon ended.
#ifndef AMPD_SERVER_STORE_RESERVE_H_
#define AMPD_SERVER_STORE_RESERVE_H_

#include <string>

namespace ampd {

// Makes the file where there is none and it fits. Whether it is there now.
bool KeepReserve(const std::string& state_dir);

// Gives the room back; whether there was any.
bool UseReserve(const std::string& state_dir);

}  // namespace ampd

#endif  // AMPD_SERVER_STORE_RESERVE_H_
