// The reference of the job file, for people.
#ifndef AMPD_CLIENT_SCHEMA_MARKDOWN_H_
#define AMPD_CLIENT_SCHEMA_MARKDOWN_H_

#include <string>

#include "google/protobuf/descriptor.h"

namespace ampd::client {

// Every message and enum that a file of this message may have, as Markdown (GitHub's), from the comments: a section for
// each of its fields that is a message, in it tables of fields with their types, defaults and meanings. What several
// fields have stands where the first of them is. `message` knows its comments (JobSpecWithComments). `introduction` is
// Markdown, behind the title.
std::string MarkdownOf(const google::protobuf::Descriptor& message, const std::string& title,
                       const std::string& introduction);

}  // namespace ampd::client

#endif  // AMPD_CLIENT_SCHEMA_MARKDOWN_H_
