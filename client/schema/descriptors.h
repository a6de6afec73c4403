// The job file's messages with the comments of their protos, which generated code leaves out.
#ifndef AMPD_CLIENT_SCHEMA_DESCRIPTORS_H_
#define AMPD_CLIENT_SCHEMA_DESCRIPTORS_H_

#include <string>

#include "google/protobuf/descriptor.h"

namespace ampd::client {

// ampd.v1.JobSpec, of a pool whose descriptors know their comments. Lives as long as the program. Thread-safe.
const google::protobuf::Descriptor& JobSpecWithComments();

// What is written above a message, an enum, a value, a field or a oneof, else behind it: paragraphs apart by an empty
// line, each on one line; empty where nothing is.
template <typename AnyDescriptor>
std::string CommentOf(const AnyDescriptor& descriptor);

// What is written between the field before and this one, apart from the comments of both: about the fields from here
// on.
std::string CommentAbove(const google::protobuf::FieldDescriptor& field);

}  // namespace ampd::client

#endif  // AMPD_CLIENT_SCHEMA_DESCRIPTORS_H_
