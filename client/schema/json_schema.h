// The schema of a job file for editors and checkers.
#ifndef AMPD_CLIENT_SCHEMA_JSON_SCHEMA_H_
#define AMPD_CLIENT_SCHEMA_JSON_SCHEMA_H_

#include <string>

#include "google/protobuf/descriptor.h"

namespace ampd::client {

// JSON Schema (draft 2020-12) of what ParseYaml reads into a message of this type: unknown fields, nulls and two
// members of a oneof are refused, enums are taken in any case. Comments become descriptions. Ranges and what is
// required are the server's to check: the schema accepts a file that the server refuses, never the other way round (but
// for numbers in quotes of unusual form). Indented by two spaces, with a newline at the end.
std::string JsonSchemaOf(const google::protobuf::Descriptor& message, const std::string& title);

}  // namespace ampd::client

#endif  // AMPD_CLIENT_SCHEMA_JSON_SCHEMA_H_
