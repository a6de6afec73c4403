#include "proto/spec/yaml_tree.h"

#include <sstream>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "proto/spec/names.h"
#include "proto/spec/utf8.h"
#include "yaml-cpp/depthguard.h"
#include "yaml-cpp/eventhandler.h"
#include "yaml-cpp/exceptions.h"
#include "yaml-cpp/mark.h"
#include "yaml-cpp/parser.h"

namespace ampd {
namespace {

constexpr size_t kMaxBytes = 4 << 20;
constexpr int kMaxDepth = 64;
constexpr size_t kMaxNodes = 1 << 20;

absl::Status At(absl::string_view filename, int line, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(filename, ":", line, ": ", what));
}

int LineOf(const YAML::Mark& mark) { return mark.line + 1; }

absl::Status CheckText(absl::string_view text, absl::string_view filename) {
  if (text.size() > kMaxBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(filename, ": must be at most ", kMaxBytes, " bytes, is ", text.size()));
  }
  int line = 1;
  while (!text.empty()) {
    const size_t length = Utf8Length(text);
    if (length == 0) return At(filename, line, "not UTF-8 text");
    const char c = text[0];
    if (c == '\n') ++line;
    if (absl::ascii_iscntrl(static_cast<unsigned char>(c)) && c != '\n' && c != '\r' && c != '\t') {
      return At(filename, line, absl::StrCat("control character 0x", absl::Hex(c, absl::kZeroPad2)));
    }
    text.remove_prefix(length);
  }
  return absl::OkStatus();
}

// Builds the tree from the parser's events. After the first error nothing more is kept: the parser is only stopped by
// exceptions, and these events cost little.
class TreeBuilder : public YAML::EventHandler {
 public:
  explicit TreeBuilder(absl::string_view filename) : filename_(filename) {}

  absl::StatusOr<YamlNode> Finish() && {
    if (!status_.ok()) return status_;
    return std::move(root_);
  }
  const absl::Status& status() const { return status_; }

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    if (!Admit(mark, anchor, "")) return;
    YamlNode node;
    node.line = LineOf(mark);
    Put(std::move(node));
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override { Fail(LineOf(mark), "aliases are not supported"); }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    if (!Admit(mark, anchor, tag)) return;
    YamlNode node;
    node.kind = YamlNode::Kind::kScalar;
    node.line = LineOf(mark);
    node.plain = tag == "?" || tag.empty();
    node.scalar = value;
    Put(std::move(node));
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    Open(YamlNode::Kind::kSequence, mark, tag, anchor);
  }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    Open(YamlNode::Kind::kMap, mark, tag, anchor);
  }
  void OnSequenceEnd() override { Close(); }
  void OnMapEnd() override { Close(); }

 private:
  struct Level {
    YamlNode node;
    bool has_key = false;  // Of a map: the next node is the value of the last key.
  };

  void Fail(int line, absl::string_view what) {
    if (status_.ok()) status_ = At(filename_, line, what);
  }

  bool Admit(const YAML::Mark& mark, YAML::anchor_t anchor, const std::string& tag) {
    if (anchor != 0) Fail(LineOf(mark), "anchors are not supported");
    if (!tag.empty() && tag != "?" && tag != "!") Fail(LineOf(mark), "tags are not supported");
    if (++nodes_ > kMaxNodes) Fail(LineOf(mark), absl::StrCat("more than ", kMaxNodes, " values"));
    return status_.ok();
  }

  void Open(YamlNode::Kind kind, const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor) {
    if (!Admit(mark, anchor, tag)) return;
    if (stack_.size() >= kMaxDepth) return Fail(LineOf(mark), absl::StrCat("nested deeper than ", kMaxDepth));
    if (!stack_.empty() && stack_.back().node.kind == YamlNode::Kind::kMap && !stack_.back().has_key) {
      return Fail(LineOf(mark), "a key must be a name");
    }
    Level level;
    level.node.kind = kind;
    level.node.line = LineOf(mark);
    stack_.push_back(std::move(level));
  }

  void Close() {
    if (!status_.ok()) return;
    YamlNode node = std::move(stack_.back().node);
    stack_.pop_back();
    Put(std::move(node));
  }

  void Put(YamlNode node) {
    if (stack_.empty()) {
      root_ = std::move(node);
      return;
    }
    Level& level = stack_.back();
    if (level.node.kind == YamlNode::Kind::kMap && !level.has_key) return PutKey(&level, std::move(node));
    level.has_key = false;
    level.node.values.push_back(std::move(node));
  }

  void PutKey(Level* level, YamlNode key) {
    if (key.kind != YamlNode::Kind::kScalar) return Fail(key.line, "a key must be a name");
    level->has_key = true;
    level->node.keys.push_back(std::move(key));
  }

  std::string filename_;
  absl::Status status_;
  size_t nodes_ = 0;
  std::vector<Level> stack_;
  YamlNode root_;
};

}  // namespace

bool LooksLikeNumber(absl::string_view text) {
  // SimpleAtod also takes words such as "nan", hexadecimal and spaces around, which are strings here.
  double value;
  const bool in_digits = text.find_first_not_of("0123456789+-.eE") == absl::string_view::npos;
  return in_digits && absl::SimpleAtod(text, &value);
}

std::string Describe(const YamlNode& node) {
  switch (node.kind) {
    case YamlNode::Kind::kNull:
      return "null";
    case YamlNode::Kind::kSequence:
      return "a list";
    case YamlNode::Kind::kMap:
      return "a map";
    case YamlNode::Kind::kScalar:
      break;
  }
  if (node.plain && LooksLikeNumber(node.scalar)) return absl::StrCat("the number ", node.scalar);
  if (node.plain && (node.scalar == "true" || node.scalar == "false")) return node.scalar;
  return Quoted(node.scalar);
}

absl::StatusOr<YamlNode> ParseYamlTree(absl::string_view text, absl::string_view filename) {
  if (absl::Status status = CheckText(text, filename); !status.ok()) return status;
  TreeBuilder builder(filename);
  try {
    std::istringstream in{std::string(text)};
    YAML::Parser parser(in);
    parser.HandleNextDocument(builder);
    TreeBuilder rest(filename);
    if (builder.status().ok() && parser.HandleNextDocument(rest)) {
      return absl::InvalidArgumentError(absl::StrCat(filename, ": holds more than one document"));
    }
  } catch (const YAML::DeepRecursion&) {
    return absl::InvalidArgumentError(absl::StrCat(filename, ": nested deeper than ", kMaxDepth));
  } catch (const YAML::Exception& e) {
    return At(filename, LineOf(e.mark), e.msg);
  }
  return std::move(builder).Finish();
}

}  // namespace ampd
