#include "proto/spec/yaml_tree.h"

#include <algorithm>
#include <sstream>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
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

int LineOf(const YAML::Mark& mark) { return mark.line + 1; }

YamlError At(int line, absl::string_view what) { return {line, "", std::string(what)}; }

std::optional<YamlError> CheckText(absl::string_view text) {
  if (text.size() > kMaxBytes) {
    return At(0, absl::StrCat("must be at most ", kMaxBytes, " bytes, is ", text.size()));
  }
  int line = 1;
  while (!text.empty()) {
    const size_t length = Utf8Length(text);
    if (length == 0) return At(line, "not UTF-8 text");
    const char c = text[0];
    if (c == '\n') ++line;
    if (absl::ascii_iscntrl(static_cast<unsigned char>(c)) && c != '\n' && c != '\r' && c != '\t') {
      return At(line, absl::StrCat("control character 0x", absl::Hex(c, absl::kZeroPad2)));
    }
    text.remove_prefix(length);
  }
  return std::nullopt;
}

// Builds the tree from the parser's events. After the first error nothing more is kept: the parser is only stopped by
// exceptions, and these events cost little.
class TreeBuilder : public YAML::EventHandler {
 public:
  YamlNode& root() { return root_; }
  const std::optional<YamlError>& error() const { return error_; }
  // Where the last scalar begins if that is a quoted one, or a block; else 0.
  int last_quote() const { return last_quote_; }

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
    last_quote_ = tag == "!" ? LineOf(mark) : 0;
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
    if (!error_) error_ = At(line, what);
  }

  bool Admit(const YAML::Mark& mark, YAML::anchor_t anchor, const std::string& tag) {
    if (anchor != 0) Fail(LineOf(mark), "anchors are not supported");
    if (!tag.empty() && tag != "?" && tag != "!") Fail(LineOf(mark), "tags are not supported");
    if (++nodes_ > kMaxNodes) Fail(LineOf(mark), absl::StrCat("more than ", kMaxNodes, " values"));
    return !error_;
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
    if (error_) return;
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

  std::optional<YamlError> error_;
  size_t nodes_ = 0;
  int last_quote_ = 0;
  std::vector<Level> stack_;
  YamlNode root_;
};

std::optional<YamlError> ReadDocument(const std::string& text, TreeBuilder* builder) {
  try {
    std::istringstream in(text);
    YAML::Parser parser(in);
    parser.HandleNextDocument(*builder);
    TreeBuilder rest;
    if (!builder->error() && parser.HandleNextDocument(rest)) return At(0, "holds more than one document");
  } catch (const YAML::DeepRecursion&) {
    return At(0, absl::StrCat("nested deeper than ", kMaxDepth));
  } catch (const YAML::Exception& e) {
    return At(LineOf(e.mark), e.msg);
  }
  return std::nullopt;
}

// Whether the line, from 1, is indented with a tab.
bool HasTabIndent(absl::string_view text, int line) {
  for (; line > 1; --line) {
    const size_t end = text.find('\n');
    if (end == absl::string_view::npos) return false;
    text.remove_prefix(end + 1);
  }
  const size_t begin = std::min(text.find_first_not_of(" \t"), text.size());
  return absl::StrContains(text.substr(0, begin), '\t');
}

// Where a quote begins that goes on to the end of `text`, which was read with `read` and gave `error`; 0: there is
// none. yaml-cpp misses such an end behind a line's end, and takes all that follows as the text within the quote.
int LineOfOpenQuote(const std::string& text, const TreeBuilder& read, const std::optional<YamlError>& error) {
  if (error && error->what == YAML::ErrorMsg::EOF_IN_SCALAR) {
    TreeBuilder swallows;
    const std::optional<YamlError> again = ReadDocument(text + "\n", &swallows);
    return again && again->what == error->what ? 0 : swallows.last_quote();
  }
  // Without a line is what is said of the whole, such as that another document follows.
  if (read.last_quote() == 0 || (error && error->line == 0)) return 0;
  // The mark of a document's end has no place within quotes. The tree is not read with it: behind a block of text it
  // would change that.
  TreeBuilder marked;
  const std::optional<YamlError> refused = ReadDocument(text + "\n...\n", &marked);
  const auto mark_line = static_cast<int>(std::count(text.begin(), text.end(), '\n')) + 2;
  const bool open = refused && refused->what == YAML::ErrorMsg::DOC_IN_SCALAR && refused->line == mark_line;
  return open ? read.last_quote() : 0;
}

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

std::string ErrorText(absl::string_view filename, const YamlError& error) {
  std::string text = absl::StrCat(filename, ":");
  if (error.line > 0) absl::StrAppend(&text, error.line, ":");
  absl::StrAppend(&text, " ", error.path, error.path.empty() ? "" : ": ", error.what);
  return text;
}

std::optional<YamlError> ParseYamlTree(absl::string_view text, YamlNode* tree) {
  if (auto error = CheckText(text)) return error;
  const std::string whole(text);
  TreeBuilder builder;
  const std::optional<YamlError> error = ReadDocument(whole, &builder);
  if (!builder.error()) {
    const int line = LineOfOpenQuote(whole, builder, error);
    if (line > 0) return At(line, "a quote without its end");
  }
  // The parser takes it for text, and says what is wrong with that.
  if (error && HasTabIndent(text, error->line)) return At(error->line, "a tab; YAML indents with spaces");
  if (error) return error;
  if (!builder.error()) *tree = std::move(builder.root());
  return builder.error();
}

}  // namespace ampd
