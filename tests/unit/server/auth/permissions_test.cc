#include "server/auth/permissions.h"

#include <gmock/gmock.h>

#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "ampd/v1/training_service.pb.h"

namespace ampd {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

const google::protobuf::ServiceDescriptor& Service() {
  return *v1::GetJobRequest::descriptor()->file()->FindServiceByName("TrainingService");
}

std::string PathOf(const google::protobuf::MethodDescriptor& method) {
  return absl::StrCat("/", method.service()->full_name(), "/", method.name());
}

TEST(PermissionsTest, EveryMethodHasARule) {
  std::set<std::string> paths;
  for (int i = 0; i < Service().method_count(); ++i) {
    const std::string path = PathOf(*Service().method(i));
    paths.insert(path);
    const MethodRule* rule = FindMethodRule(path);
    ASSERT_NE(rule, nullptr) << path;
    EXPECT_NE(rule->role, v1::ROLE_UNSPECIFIED) << path << " is open to everybody";
  }
  for (const MethodRule& rule : MethodRules()) {
    if (std::string(rule.path).find("/grpc.") == 0) continue;
    EXPECT_TRUE(paths.contains(rule.path)) << rule.path << " is no method";
  }
}

// Names of what a call is about are those of its messages.
TEST(PermissionsTest, RulesNameFieldsThatThereAre) {
  for (int i = 0; i < Service().method_count(); ++i) {
    const auto& method = *Service().method(i);
    const MethodRule& rule = *FindMethodRule(PathOf(method));
    if (rule.resource != nullptr) {
      EXPECT_NE(method.input_type()->FindFieldByName(rule.resource), nullptr) << rule.path;
    }
    if (rule.made != nullptr) {
      const std::string first = std::string(rule.made).substr(0, std::string(rule.made).find('.'));
      EXPECT_NE(method.output_type()->FindFieldByName(first), nullptr) << rule.path;
    }
  }
}

// By the verb alone, whatever the table says.
TEST(PermissionsTest, ViewersChangeNothingAndSubmittersNothingOfTheServers) {
  for (int i = 0; i < Service().method_count(); ++i) {
    const std::string name = Service().method(i)->name();
    const std::string path = PathOf(*Service().method(i));
    bool reads = false;
    for (const char* verb : {"Get", "List", "Watch", "Download", "Export"}) reads |= name.rfind(verb, 0) == 0;
    const bool servers = name.find("Drain") != std::string::npos || name.find("drain") != std::string::npos ||
                         name.find("Token") != std::string::npos;
    const auto may = [&](v1::Role role) { return CheckRole({"ann", role, "t"}, path).ok(); };
    EXPECT_EQ(may(v1::VIEWER), reads && !servers) << path;
    EXPECT_EQ(may(v1::SUBMITTER), !servers) << path;
    EXPECT_TRUE(may(v1::ADMIN)) << path;
    EXPECT_FALSE(may(v1::ROLE_UNSPECIFIED)) << path;
    EXPECT_EQ(FindMethodRule(path)->changes, !reads && name != "PlanJob") << path;
  }
}

TEST(PermissionsTest, HealthIsOpenReflectionIsNotAndTheUnknownIsRefused) {
  EXPECT_EQ(FindMethodRule("/grpc.health.v1.Health/Check")->role, v1::ROLE_UNSPECIFIED);
  EXPECT_EQ(FindMethodRule("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo")->role, v1::VIEWER);
  for (const char* path : {"/ampd.v1.TrainingService/EatJob", "/ampd.v1.Other/GetJob", "GetJob", ""}) {
    EXPECT_EQ(FindMethodRule(path), nullptr) << path;
    EXPECT_EQ(CheckRole({"root", v1::ADMIN, "t"}, path).code(), absl::StatusCode::kPermissionDenied) << path;
  }
  const absl::Status refused = CheckRole({"ann", v1::VIEWER, "t"}, "/ampd.v1.TrainingService/CreateJob");
  EXPECT_THAT(std::string(refused.message()), HasSubstr("CreateJob needs the role SUBMITTER; ann is VIEWER"));
}

}  // namespace
}  // namespace ampd
