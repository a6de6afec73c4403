#include "engine/data/npy.h"

#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/strip.h"
#include "engine/core/half.h"
#include "engine/core/status.h"

namespace ampd::data {
namespace {

constexpr absl::string_view kMagic = "\x93NUMPY";
constexpr uint32_t kMaxHeader = 1 << 16;
constexpr size_t kMaxRank = 32;
constexpr const char* kDTypes = "u1, u2, u4, i1, i2, i4, i8, f2, f4, f8, little-endian";

// Reads the Python dict literal that an .npy header is; knows no more of Python than that needs.
class HeaderParser {
 public:
  HeaderParser(absl::string_view text, absl::string_view name) : text_(text), name_(name) {}

  absl::StatusOr<NpyHeader> Parse() {
    if (!Accept('{')) return Bad("'{'");
    while (!Accept('}')) {
      AMPD_ASSIGN_OR_RETURN(const absl::string_view key, String());
      if (!Accept(':')) return Bad("':'");
      AMPD_RETURN_IF_ERROR(Value(key));
      if (!Accept(',') && Peek() != '}') return Bad("',' or '}'");
    }
    if (Peek() != '\0') return Bad("the end");
    if (!has_descr_ || !has_order_ || !has_shape_) return Bad("descr, fortran_order and shape");
    if (fortran_ && header_.shape.size() > 1) {
      return absl::UnimplementedError(
          absl::StrCat(name_, ": the array is in Fortran order; save numpy.ascontiguousarray(array) instead"));
    }
    return header_;
  }

 private:
  char Peek() {
    text_ = absl::StripLeadingAsciiWhitespace(text_);
    return text_.empty() ? '\0' : text_.front();
  }
  bool Accept(char c) {
    if (Peek() != c || c == '\0') return false;
    text_.remove_prefix(1);
    return true;
  }
  absl::Status Bad(absl::string_view expected) const {
    return absl::DataLossError(absl::StrCat(name_, ": damaged .npy header: ", expected, " expected, ",
                                            text_.empty() ? "its end" : "other text", " found"));
  }

  absl::StatusOr<absl::string_view> String() {
    const char quote = Peek();
    if (quote != '\'' && quote != '"') return Bad("a string");
    const size_t end = text_.find(quote, 1);
    if (end == absl::string_view::npos) return Bad("the end of a string");
    const absl::string_view value = text_.substr(1, end - 1);
    text_.remove_prefix(end + 1);
    return value;
  }

  absl::Status Value(absl::string_view key) {
    if (key == "descr" && !has_descr_) {
      has_descr_ = true;
      return Descr();
    }
    if (key == "fortran_order" && !has_order_) {
      has_order_ = true;
      return Order();
    }
    if (key == "shape" && !has_shape_) {
      has_shape_ = true;
      return ShapeTuple();
    }
    return Bad("descr, fortran_order and shape, once each,");
  }

  absl::Status Descr() {
    if (Peek() == '[') return UnsupportedType("a structured type");
    AMPD_ASSIGN_OR_RETURN(const absl::string_view descr, String());
    static constexpr std::array<absl::string_view, 10> kKnown = {"u1", "u2", "u4", "i1", "i2",
                                                                 "i4", "i8", "f2", "f4", "f8"};
    for (absl::string_view known : kKnown) {
      const bool one_byte = known[1] == '1';
      if (!absl::EndsWith(descr, known) || descr.size() != 3) continue;
      if (descr[0] != '<' && !(one_byte && absl::StrContains("|=>", descr[0]))) continue;
      header_.kind = known[0];
      header_.element_size = known[1] - '0';
      return absl::OkStatus();
    }
    return UnsupportedType(absl::StrCat("'", descr.substr(0, 32), "'"));
  }

  absl::Status UnsupportedType(absl::string_view descr) const {
    return absl::UnimplementedError(
        absl::StrCat(name_, ": arrays of dtype ", descr, " are not supported; supported are ", kDTypes));
  }

  absl::Status Order() {
    fortran_ = absl::StartsWith(text_ = absl::StripLeadingAsciiWhitespace(text_), "True");
    if (absl::ConsumePrefix(&text_, "True") || absl::ConsumePrefix(&text_, "False")) return absl::OkStatus();
    return Bad("True or False");
  }

  absl::Status ShapeTuple() {
    if (!Accept('(')) return Bad("'('");
    while (!Accept(')')) {
      Peek();
      size_t digits = 0;
      while (digits < text_.size() && absl::ascii_isdigit(text_[digits])) ++digits;
      int64_t extent = 0;
      if (digits == 0 || !absl::SimpleAtoi(text_.substr(0, digits), &extent)) return Bad("an extent");
      text_.remove_prefix(digits);
      header_.shape.push_back(extent);
      if (header_.shape.size() > kMaxRank) return Bad("at most 32 extents");
      if (!Accept(',') && Peek() != ')') return Bad("',' or ')'");
    }
    return absl::OkStatus();
  }

  absl::string_view text_;
  absl::string_view name_;
  NpyHeader header_;
  bool fortran_ = false;
  bool has_descr_ = false;
  bool has_order_ = false;
  bool has_shape_ = false;
};

template <typename T>
T Load(const uint8_t* bytes) {
  static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "numbers are read as they lie in the file");
  T value;
  std::memcpy(&value, bytes, sizeof(T));
  return value;
}

// What a stored value reads as, by which it is judged finite, and the exact value for who asks why it is not.
float AsFloat(float v) { return v; }
float AsFloat(Half v) { return ToFloat(v); }
float AsFloat(double v) { return static_cast<float>(v); }
double Exact(float v) { return v; }
double Exact(Half v) { return ToFloat(v); }
double Exact(double v) { return v; }

absl::StatusOr<uint64_t> Elements(const ByteSource& source, const NpyHeader& header) {
  return CheckedProduct(header.shape, source.name());
}

template <typename T>
absl::StatusOr<std::vector<float>> ReadFloats(ByteSource& source, const NpyHeader& header,
                                              std::vector<NonFinite>& non_finite) {
  AMPD_ASSIGN_OR_RETURN(const uint64_t elements, Elements(source, header));
  const uint64_t per_sample = header.shape.empty() ? 1 : elements / static_cast<uint64_t>(header.shape[0]);
  std::vector<float> values;
  values.reserve(elements);
  int64_t last = -1;
  AMPD_RETURN_IF_ERROR(
      ReadToEnd(source, elements * sizeof(T), "values", [&](absl::Span<const uint8_t> bytes) -> absl::Status {
        for (size_t at = 0; at + sizeof(T) <= bytes.size(); at += sizeof(T)) {
          const T value = Load<T>(bytes.data() + at);
          const int64_t sample = static_cast<int64_t>(values.size() / per_sample);
          values.push_back(AsFloat(value));
          if (std::isfinite(values.back()) || sample == last) continue;
          non_finite.push_back({sample, Exact(value), source.name()});
          last = sample;
        }
        return absl::OkStatus();
      }));
  return values;
}

template <typename T>
absl::StatusOr<std::vector<int32_t>> ReadIntegers(ByteSource& source, const NpyHeader& header) {
  AMPD_ASSIGN_OR_RETURN(const uint64_t elements, Elements(source, header));
  std::vector<int32_t> values;
  values.reserve(elements);
  AMPD_RETURN_IF_ERROR(
      ReadToEnd(source, elements * sizeof(T), "values", [&](absl::Span<const uint8_t> bytes) -> absl::Status {
        for (size_t at = 0; at + sizeof(T) <= bytes.size(); at += sizeof(T)) {
          const int64_t value = static_cast<int64_t>(Load<T>(bytes.data() + at));
          if (value < std::numeric_limits<int32_t>::min() || value > std::numeric_limits<int32_t>::max()) {
            return absl::DataLossError(
                absl::StrCat(source.name(), ": element ", values.size(), " is ", value, ", which is no class label"));
          }
          values.push_back(static_cast<int32_t>(value));
        }
        return absl::OkStatus();
      }));
  return values;
}

absl::Status WrongType(const ByteSource& source, const NpyHeader& header, absl::string_view wanted) {
  return absl::InvalidArgumentError(
      absl::StrCat(source.name(), ": dtype ", header.dtype(), " where ", wanted, " expected"));
}

}  // namespace

absl::StatusOr<NpyHeader> ParseNpyHeader(absl::string_view text, absl::string_view name) {
  return HeaderParser(text, name).Parse();
}

absl::StatusOr<NpyHeader> ReadNpyHeader(ByteSource& source) {
  std::array<uint8_t, 12> start = {};
  AMPD_RETURN_IF_ERROR(ReadExactly(source, absl::MakeSpan(start).subspan(0, 10), "the .npy header"));
  if (absl::string_view(reinterpret_cast<const char*>(start.data()), kMagic.size()) != kMagic) {
    return absl::DataLossError(absl::StrCat(source.name(), ": not a NumPy file: it does not start with \\x93NUMPY"));
  }
  const int major = start[6];
  if (major < 1 || major > 3 || start[7] != 0) {
    return absl::UnimplementedError(absl::StrCat(source.name(), ": .npy format version ", major, ".", start[7],
                                                 "; supported are 1.0, 2.0 and 3.0"));
  }
  uint32_t length = Load<uint16_t>(start.data() + 8);
  if (major > 1) {
    AMPD_RETURN_IF_ERROR(ReadExactly(source, absl::MakeSpan(start).subspan(10, 2), "the .npy header"));
    length = Load<uint32_t>(start.data() + 8);
  }
  if (length > kMaxHeader) {
    return absl::DataLossError(absl::StrCat(source.name(), ": damaged: an .npy header of ", length, " bytes"));
  }
  std::string text(length, '\0');
  const absl::Span<uint8_t> text_bytes(reinterpret_cast<uint8_t*>(text.data()), text.size());
  AMPD_RETURN_IF_ERROR(ReadExactly(source, text_bytes, "the .npy header"));
  AMPD_ASSIGN_OR_RETURN(NpyHeader header, ParseNpyHeader(text, source.name()));
  for (int64_t extent : header.shape) {
    if (extent > 0) continue;
    return absl::DataLossError(
        absl::StrCat(source.name(), ": an array of shape ", ShapeString(header.shape), " has no values"));
  }
  AMPD_ASSIGN_OR_RETURN(const uint64_t elements, Elements(source, header));
  const uint64_t encoded = elements * static_cast<uint64_t>(header.element_size);
  AMPD_RETURN_IF_ERROR(CheckPlausibleSize(source, encoded, elements * (header.is_byte() ? 1 : sizeof(float))));
  return header;
}

absl::StatusOr<std::vector<uint8_t>> ReadNpyBytes(ByteSource& source, const NpyHeader& header) {
  if (!header.is_byte()) return WrongType(source, header, "u1 is");
  AMPD_ASSIGN_OR_RETURN(const uint64_t elements, Elements(source, header));
  return ReadBytesToEnd(source, elements, "values");
}

absl::StatusOr<std::vector<float>> ReadNpyFloats(ByteSource& source, const NpyHeader& header,
                                                 std::vector<NonFinite>& non_finite) {
  if (header.kind != 'f') return WrongType(source, header, "f2, f4 or f8 is");
  if (header.element_size == 2) return ReadFloats<Half>(source, header, non_finite);
  if (header.element_size == 4) return ReadFloats<float>(source, header, non_finite);
  return ReadFloats<double>(source, header, non_finite);
}

absl::StatusOr<std::vector<int32_t>> ReadNpyIntegers(ByteSource& source, const NpyHeader& header) {
  if (header.kind == 'f') return WrongType(source, header, "integers are");
  const bool is_signed = header.kind == 'i';
  switch (header.element_size) {
    case 1:
      return is_signed ? ReadIntegers<int8_t>(source, header) : ReadIntegers<uint8_t>(source, header);
    case 2:
      return is_signed ? ReadIntegers<int16_t>(source, header) : ReadIntegers<uint16_t>(source, header);
    case 4:
      return is_signed ? ReadIntegers<int32_t>(source, header) : ReadIntegers<uint32_t>(source, header);
    default:
      return ReadIntegers<int64_t>(source, header);
  }
}

}  // namespace ampd::data
