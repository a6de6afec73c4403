#include "proto/spec/yaml_scalar.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <limits>
#include <map>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "proto/spec/names.h"

namespace ampd {
namespace {

absl::Status Expected(absl::string_view what, const YamlNode& node) {
  return absl::InvalidArgumentError(absl::StrCat("expected ", what, ", got ", Describe(node)));
}

bool IsDigits(absl::string_view text) {
  if (text.empty()) return false;
  for (char c : text) {
    if (!absl::ascii_isdigit(static_cast<unsigned char>(c))) return false;
  }
  return true;
}

// Integers are read exactly; only those written with a point or an exponent go through a double, where they must be
// exact as well.
template <typename T>
absl::StatusOr<T> ToInteger(const YamlNode& node, const char* what) {
  if (node.kind != YamlNode::Kind::kScalar) return Expected(what, node);
  absl::string_view digits = node.scalar;
  if (!digits.empty() && (digits[0] == '-' || digits[0] == '+')) digits.remove_prefix(1);
  if (IsDigits(digits)) {
    if (digits.size() > 1 && digits[0] == '0') {
      return absl::InvalidArgumentError(
          absl::StrCat("expected ", what, ", got ", Describe(node), "; leading zeros are ambiguous"));
    }
    T value;
    if (absl::SimpleAtoi(node.scalar, &value)) return value;
  } else {
    constexpr double kExact = 9007199254740992.0;  // 2^53
    double real;
    if (!LooksLikeNumber(node.scalar) || !absl::SimpleAtod(node.scalar, &real)) return Expected(what, node);
    if (std::floor(real) != real) return Expected(what, node);
    const double low = static_cast<double>(std::numeric_limits<T>::min());
    const double high = static_cast<double>(std::numeric_limits<T>::max());
    if (std::fabs(real) <= kExact && real >= low && real <= high) return static_cast<T>(real);
  }
  return absl::InvalidArgumentError(absl::StrCat(Describe(node), " is out of range, ", std::numeric_limits<T>::min(),
                                                 " to ", std::numeric_limits<T>::max()));
}

}  // namespace

absl::StatusOr<int64_t> ScalarToInt64(const YamlNode& node) { return ToInteger<int64_t>(node, "an integer"); }
absl::StatusOr<uint64_t> ScalarToUint64(const YamlNode& node) { return ToInteger<uint64_t>(node, "an integer"); }
absl::StatusOr<int32_t> ScalarToInt32(const YamlNode& node) { return ToInteger<int32_t>(node, "an integer"); }
absl::StatusOr<uint32_t> ScalarToUint32(const YamlNode& node) { return ToInteger<uint32_t>(node, "an integer"); }

absl::StatusOr<double> ScalarToDouble(const YamlNode& node) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (node.kind != YamlNode::Kind::kScalar) return Expected("a number", node);
  const std::string& text = node.scalar;
  if (text == "NaN" || text == ".nan" || text == ".NaN") return std::numeric_limits<double>::quiet_NaN();
  if (text == "Infinity" || text == ".inf" || text == "+.inf") return kInfinity;
  if (text == "-Infinity" || text == "-.inf") return -kInfinity;
  double value;
  if (!LooksLikeNumber(text) || !absl::SimpleAtod(text, &value)) return Expected("a number", node);
  if (std::isinf(value)) return absl::InvalidArgumentError(absl::StrCat(Describe(node), " is out of range"));
  return value;
}

absl::StatusOr<float> ScalarToFloat(const YamlNode& node) {
  absl::StatusOr<double> value = ScalarToDouble(node);
  if (!value.ok()) return value.status();
  if (std::isfinite(*value) && std::fabs(*value) > FLT_MAX) {
    return absl::InvalidArgumentError(absl::StrCat(Describe(node), " is out of range"));
  }
  return static_cast<float>(*value);
}

absl::StatusOr<bool> ScalarToBool(const YamlNode& node) {
  if (node.kind == YamlNode::Kind::kScalar && node.plain) {
    if (absl::EqualsIgnoreCase(node.scalar, "true")) return true;
    if (absl::EqualsIgnoreCase(node.scalar, "false")) return false;
  }
  return Expected("true or false", node);
}

absl::StatusOr<std::string> ScalarToString(const YamlNode& node) {
  if (node.kind != YamlNode::Kind::kScalar) return Expected("a string", node);
  const bool is_bool = absl::EqualsIgnoreCase(node.scalar, "true") || absl::EqualsIgnoreCase(node.scalar, "false");
  if (node.plain && (is_bool || LooksLikeNumber(node.scalar))) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected a string, got ", Describe(node), "; write \"", node.scalar, "\" in quotes"));
  }
  return node.scalar;
}

absl::StatusOr<std::string> ScalarToBytes(const YamlNode& node) {
  std::string bytes;
  if (node.kind != YamlNode::Kind::kScalar ||
      (!absl::Base64Unescape(node.scalar, &bytes) && !absl::WebSafeBase64Unescape(node.scalar, &bytes))) {
    return Expected("base64", node);
  }
  return bytes;
}

namespace {

// As DidYouMean(); `names` may have what other programs call a dtype by another name.
std::string MeantValue(const std::string& given, const std::vector<std::string>& names) {
  static const auto& dtypes = *new std::map<std::string, std::string>{
      {"bfloat16", "BF16"}, {"float16", "FP16"}, {"float32", "FP32"}, {"half", "FP16"}};
  const auto dtype = dtypes.find(absl::AsciiStrToLower(given));
  const bool is_known = dtype != dtypes.end() && std::find(names.begin(), names.end(), dtype->second) != names.end();
  return is_known ? absl::StrCat("; did you mean ", dtype->second, "?") : DidYouMean(given, names);
}

}  // namespace

absl::StatusOr<int> ScalarToEnum(const YamlNode& node, const google::protobuf::EnumDescriptor& type) {
  std::vector<std::string> names;
  for (int i = 0; i < type.value_count(); ++i) {
    const auto* value = type.value(i);
    const bool by_number = node.plain && node.scalar == absl::StrCat(value->number());
    if (node.kind == YamlNode::Kind::kScalar && (absl::EqualsIgnoreCase(node.scalar, value->name()) || by_number)) {
      return value->number();
    }
    // The zero value says "not given": nobody means it.
    if (value->number() != 0) names.push_back(value->name());
  }
  const std::string all = absl::StrCat("one of ", absl::StrJoin(names, ", "));
  if (node.kind != YamlNode::Kind::kScalar) return Expected(all, node);
  return absl::InvalidArgumentError(
      absl::StrCat("no such value ", Quoted(node.scalar), MeantValue(node.scalar, names), " (", all, ")"));
}

}  // namespace ampd
