// Constants of a node, by name: strides, an epsilon, a dropout rate.
#ifndef AMPD_ENGINE_IR_ATTRIBUTES_H_
#define AMPD_ENGINE_IR_ATTRIBUTES_H_

#include <cstdint>
#include <initializer_list>
#include <map>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/string_view.h"

namespace ampd::ir {

// A bool is stored as the integer 0 or 1.
using Attribute = std::variant<int64_t, double, std::vector<int64_t>, std::string>;

// Small ordered map. A getter for an absent name, or one of another type, returns its fallback; the op's shape rule
// (engine/ops) is where missing and wrong attributes become errors.
class Attributes {
 public:
  Attributes() = default;
  Attributes(std::initializer_list<std::pair<const std::string, Attribute>> items) : items_(items) {}

  void Set(const std::string& name, Attribute value) { items_[name] = std::move(value); }
  bool Has(absl::string_view name) const { return items_.count(std::string(name)) > 0; }
  int64_t Int(absl::string_view name, int64_t fallback = 0) const { return Get<int64_t>(name, fallback); }
  bool Bool(absl::string_view name) const { return Int(name) != 0; }
  double Double(absl::string_view name, double fallback = 0) const { return Get<double>(name, fallback); }
  std::vector<int64_t> Ints(absl::string_view name) const { return Get<std::vector<int64_t>>(name, {}); }
  std::string String(absl::string_view name) const { return Get<std::string>(name, ""); }

  const std::map<std::string, Attribute>& items() const { return items_; }
  bool operator==(const Attributes& other) const { return items_ == other.items_; }

 private:
  template <typename T>
  T Get(absl::string_view name, T fallback) const {
    auto it = items_.find(std::string(name));
    if (it == items_.end() || !std::holds_alternative<T>(it->second)) return fallback;
    return std::get<T>(it->second);
  }
  std::map<std::string, Attribute> items_;
};

}  // namespace ampd::ir

#endif  // AMPD_ENGINE_IR_ATTRIBUTES_H_
