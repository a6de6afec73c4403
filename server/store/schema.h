// The database's schema, one step of SQL a version.
#ifndef AMPD_SERVER_STORE_SCHEMA_H_
#define AMPD_SERVER_STORE_SCHEMA_H_

#include <vector>

namespace ampd {

// Entry i brings a database of version i to version i + 1. Entries are never changed once released, only added.
const std::vector<const char*>& SchemaMigrations();

}  // namespace ampd

#endif  // AMPD_SERVER_STORE_SCHEMA_H_
