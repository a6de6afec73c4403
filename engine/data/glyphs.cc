// Everything here is IEEE 754 addition, multiplication, division and square root in float, compiled without contraction
// to fused multiply-add (see CMakeLists.txt), so that the bytes are the same on every machine.
#include "engine/data/glyphs.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "engine/core/rng.h"
#include "engine/core/status.h"

namespace ampd::data {
namespace {

constexpr int64_t kPixels = kGlyphSide * kGlyphSide;
constexpr int64_t kDefaultSamples = 10000;
// 205 MB; larger sets are drawn as they are read.
constexpr int64_t kMaxCached = int64_t{1} << 18;
constexpr int kSegmentsPerStroke = 7;

struct Point {
  float x;
  float y;
};

// A quadratic Bezier curve from one point to another, by indices into the glyph's points; control -1 is a straight
// line.
struct Stroke {
  int from;
  int control;
  int to;
};

// A digit in the unit square, x to the right and y down. Strokes that share a point stay joined when it is moved.
struct GlyphShape {
  std::vector<Point> points;
  std::vector<Stroke> strokes;
};

const std::array<GlyphShape, kGlyphClasses>& Shapes() {
  static const auto* shapes = new std::array<GlyphShape, kGlyphClasses>{{
      {{{.5f, .08f}, {.8f, .08f}, {.78f, .5f}, {.8f, .92f}, {.5f, .92f}, {.2f, .92f}, {.22f, .5f}, {.2f, .08f}},
       {{0, 1, 2}, {2, 3, 4}, {4, 5, 6}, {6, 7, 0}}},
      {{{.34f, .26f}, {.55f, .08f}, {.55f, .92f}}, {{0, -1, 1}, {1, -1, 2}}},
      {{{.25f, .28f}, {.28f, .06f}, {.52f, .08f}, {.86f, .1f}, {.7f, .44f}, {.6f, .64f}, {.24f, .92f}, {.78f, .92f}},
       {{0, 1, 2}, {2, 3, 4}, {4, 5, 6}, {6, -1, 7}}},
      {{{.26f, .12f},
        {.78f, .0f},
        {.7f, .3f},
        {.66f, .46f},
        {.45f, .47f},
        {.8f, .5f},
        {.74f, .72f},
        {.66f, 1.f},
        {.24f, .86f}},
       {{0, 1, 2}, {2, 3, 4}, {4, 5, 6}, {6, 7, 8}}},
      {{{.6f, .08f}, {.2f, .62f}, {.82f, .62f}, {.62f, .34f}, {.62f, .92f}}, {{0, -1, 1}, {1, -1, 2}, {3, -1, 4}}},
      {{{.74f, .08f}, {.3f, .08f}, {.27f, .46f}, {.82f, .32f}, {.76f, .68f}, {.7f, 1.f}, {.24f, .86f}},
       {{0, -1, 1}, {1, -1, 2}, {2, 3, 4}, {4, 5, 6}}},
      {{{.68f, .08f},
        {.28f, .25f},
        {.26f, .66f},
        {.26f, .93f},
        {.5f, .92f},
        {.77f, .92f},
        {.74f, .67f},
        {.7f, .45f},
        {.48f, .48f},
        {.3f, .5f}},
       {{0, 1, 2}, {2, 3, 4}, {4, 5, 6}, {6, 7, 8}, {8, 9, 2}}},
      {{{.24f, .1f}, {.78f, .1f}, {.55f, .45f}, {.44f, .92f}}, {{0, -1, 1}, {1, 2, 3}}},
      {{{.5f, .08f},
        {.78f, .08f},
        {.72f, .3f},
        {.7f, .46f},
        {.5f, .48f},
        {.3f, .46f},
        {.28f, .28f},
        {.24f, .08f},
        {.8f, .5f},
        {.77f, .72f},
        {.74f, .94f},
        {.5f, .92f},
        {.24f, .94f},
        {.23f, .72f},
        {.22f, .5f}},
       {{0, 1, 2}, {2, 3, 4}, {4, 5, 6}, {6, 7, 0}, {4, 8, 9}, {9, 10, 11}, {11, 12, 13}, {13, 14, 4}}},
      {{{.74f, .36f},
        {.72f, .58f},
        {.5f, .56f},
        {.26f, .54f},
        {.26f, .32f},
        {.28f, .07f},
        {.52f, .08f},
        {.76f, .1f},
        {.74f, .7f},
        {.56f, .92f}},
       {{0, 1, 2}, {2, 3, 4}, {4, 5, 6}, {6, 7, 0}, {0, 8, 9}}},
  }};
  return *shapes;
}

float Between(RngSequence& rng, float low, float high) { return low + rng.NextUniform() * (high - low); }

// Ink from 0 (none) to 1, pixel by pixel.
class Canvas {
 public:
  // Draws a line with round ends; pixel (i, j) is the square around (i + 0.5, j + 0.5).
  void Line(Point a, Point b, float half_width, float ink) {
    const float reach = half_width + 1.0f;
    const int x0 = Clamp(std::min(a.x, b.x) - reach), x1 = Clamp(std::max(a.x, b.x) + reach);
    const int y0 = Clamp(std::min(a.y, b.y) - reach), y1 = Clamp(std::max(a.y, b.y) + reach);
    for (int y = y0; y <= y1; ++y) {
      for (int x = x0; x <= x1; ++x) {
        const float d = Distance({static_cast<float>(x) + 0.5f, static_cast<float>(y) + 0.5f}, a, b);
        const float cover = std::clamp(half_width + 0.5f - d, 0.0f, 1.0f) * ink;
        float& pixel = ink_[static_cast<size_t>(y * kGlyphSide + x)];
        pixel = std::max(pixel, cover);
      }
    }
  }
  float ink(int64_t pixel) const { return ink_[static_cast<size_t>(pixel)]; }

 private:
  static int Clamp(float v) { return static_cast<int>(std::clamp(v, 0.0f, static_cast<float>(kGlyphSide - 1))); }
  static float Distance(Point p, Point a, Point b) {
    const float dx = b.x - a.x, dy = b.y - a.y;
    const float length2 = dx * dx + dy * dy;
    float t = length2 > 0 ? ((p.x - a.x) * dx + (p.y - a.y) * dy) / length2 : 0.0f;
    t = std::clamp(t, 0.0f, 1.0f);
    const float ex = p.x - (a.x + t * dx), ey = p.y - (a.y + t * dy);
    return std::sqrt(ex * ex + ey * ey);
  }

  std::array<float, kPixels> ink_{};
};

// The shape's points moved each on its own, then together by a random affine map, in pixels.
std::vector<Point> Distort(const GlyphShape& shape, RngSequence& rng) {
  constexpr float kWobble = 0.045f;
  const float size_x = 20.0f * Between(rng, 0.68f, 1.12f), size_y = 20.0f * Between(rng, 0.74f, 1.1f);
  const float turn = Between(rng, -0.3f, 0.3f), slant = Between(rng, -0.25f, 0.25f);
  const float centre = static_cast<float>(kGlyphSide) / 2;
  const float shift_x = centre + Between(rng, -3.2f, 3.2f), shift_y = centre + Between(rng, -2.6f, 2.6f);
  std::vector<Point> points;
  for (const Point& p : shape.points) {
    const float x = (p.x - 0.5f + Between(rng, -kWobble, kWobble)) * size_x;
    const float y = (p.y - 0.5f + Between(rng, -kWobble, kWobble)) * size_y;
    points.push_back({x + (slant - turn) * y + shift_x, y + turn * x + shift_y});
  }
  return points;
}

void DrawStroke(Canvas& canvas, Point a, Point control, Point b, float half_width, float ink) {
  Point last = a;
  for (int i = 1; i <= kSegmentsPerStroke; ++i) {
    const float t = static_cast<float>(i) / kSegmentsPerStroke, s = 1.0f - t;
    const Point next = {s * s * a.x + 2.0f * s * t * control.x + t * t * b.x,
                        s * s * a.y + 2.0f * s * t * control.y + t * t * b.y};
    canvas.Line(last, next, half_width, ink);
    last = next;
  }
}

void DrawDigit(Canvas& canvas, const GlyphShape& shape, RngSequence& rng) {
  const std::vector<Point> points = Distort(shape, rng);
  const float half_width = Between(rng, 0.55f, 1.5f);
  for (const Stroke& stroke : shape.strokes) {
    const Point a = points[static_cast<size_t>(stroke.from)], b = points[static_cast<size_t>(stroke.to)];
    if (stroke.control < 0) {
      canvas.Line(a, b, half_width, 1.0f);
    } else {
      DrawStroke(canvas, a, points[static_cast<size_t>(stroke.control)], b, half_width, 1.0f);
    }
  }
}

// Short stray lines, fainter than the digit.
void DrawClutter(Canvas& canvas, RngSequence& rng) {
  const uint64_t lines = rng.NextBelow(4);
  for (uint64_t i = 0; i < lines; ++i) {
    const Point a = {Between(rng, 0.0f, kGlyphSide), Between(rng, 0.0f, kGlyphSide)};
    const Point b = {a.x + Between(rng, -7.0f, 7.0f), a.y + Between(rng, -7.0f, 7.0f)};
    canvas.Line(a, b, Between(rng, 0.4f, 1.0f), Between(rng, 0.3f, 0.8f));
  }
}

class GlyphsDataset : public Dataset {
 public:
  GlyphsDataset(DatasetInfo info, uint64_t seed) : Dataset(std::move(info)), seed_(seed) {
    if (size() > kMaxCached) return;
    cache_.resize(static_cast<size_t>(size() * kPixels));
    for (int64_t i = 0; i < size(); ++i) {
      DrawGlyph(seed_, i, absl::MakeSpan(cache_).subspan(static_cast<size_t>(i * kPixels), kPixels));
    }
  }

  void ReadInput(int64_t i, absl::Span<float> out) const override {
    if (!cache_.empty()) {
      std::copy_n(cache_.data() + i * kPixels, kPixels, out.data());
      return;
    }
    std::array<uint8_t, kPixels> pixels;
    DrawGlyph(seed_, i, absl::MakeSpan(pixels));
    std::copy(pixels.begin(), pixels.end(), out.data());
  }
  int32_t ReadLabel(int64_t i) const override { return static_cast<int32_t>(i % kGlyphClasses); }
  void ReadTarget(int64_t, absl::Span<float>) const override {}
  absl::Status CheckFinite(int64_t) const override { return absl::OkStatus(); }

 private:
  uint64_t seed_;
  // All samples, one after the other; empty for large sets.
  std::vector<uint8_t> cache_;
};

}  // namespace

void DrawGlyph(uint64_t seed, int64_t index, absl::Span<uint8_t> out) {
  RngSequence rng(seed, "data.glyphs", static_cast<uint64_t>(index));
  Canvas canvas;
  DrawDigit(canvas, Shapes()[static_cast<size_t>(index % kGlyphClasses)], rng);
  DrawClutter(canvas, rng);
  const float paper = Between(rng, 0.0f, 50.0f), contrast = Between(rng, 100.0f, 205.0f);
  const float noise = Between(rng, 10.0f, 60.0f);
  for (int64_t p = 0; p < kPixels; ++p) {
    // The sum of two uniforms: triangular, from -1 to 1.
    const uint32_t word = rng.NextWord();
    const float grain = static_cast<float>(static_cast<int32_t>((word >> 16) + (word & 0xffff)) - 0xffff) / 65535.0f;
    const float value = paper + contrast * canvas.ink(p) + noise * grain;
    out[static_cast<size_t>(p)] = static_cast<uint8_t>(std::clamp(value, 0.0f, 255.0f) + 0.5f);
  }
}

absl::StatusOr<DatasetInfo> DescribeGlyphs(const v1::GlyphsDataset& spec, bool, int64_t limit) {
  DatasetInfo info;
  info.name = "glyphs";
  info.byte_inputs = true;
  info.size = spec.has_samples() ? spec.samples() : kDefaultSamples;
  info.input_shape = {kGlyphSide, kGlyphSide, 1};
  info.classes = kGlyphClasses;
  if (info.size < 1) {
    return absl::InvalidArgumentError(absl::StrCat("glyphs.samples is ", info.size, "; it must be >= 1"));
  }
  if (limit > 0) info.size = std::min(info.size, limit);
  if (info.size <= kMaxCached) info.held_bytes = info.size * kPixels;
  return info;
}

absl::StatusOr<std::unique_ptr<Dataset>> OpenGlyphs(const v1::GlyphsDataset& spec, bool is_eval, int64_t limit) {
  AMPD_ASSIGN_OR_RETURN(DatasetInfo info, DescribeGlyphs(spec, is_eval, limit));
  const uint64_t seed = spec.has_seed() ? spec.seed() : (is_eval ? 2 : 1);
  return std::make_unique<GlyphsDataset>(std::move(info), seed);
}

}  // namespace ampd::data
