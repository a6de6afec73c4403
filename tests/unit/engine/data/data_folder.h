// A temporary data root, and bytes to put into it.
#ifndef AMPD_TESTS_UNIT_ENGINE_DATA_DATA_FOLDER_H_
#define AMPD_TESTS_UNIT_ENGINE_DATA_DATA_FOLDER_H_

#include <gtest/gtest.h>
#include <stdlib.h>
#include <zlib.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "engine/data/dataset.h"

namespace ampd::data {

class DataFolder : public ::testing::Test {
 protected:
  DataFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "ampd-data-XXXXXX").string();
    root_ = ::mkdtemp(pattern.data());
    roots_ = {root_};
  }
  ~DataFolder() override { std::filesystem::remove_all(root_); }

  void Write(const std::string& name, const std::string& bytes) const {
    std::ofstream(root_ + "/" + name, std::ios::binary | std::ios::trunc) << bytes;
  }

  absl::StatusOr<std::unique_ptr<Dataset>> Open(const v1::DatasetSpec& spec) const {
    return OpenDataset(spec, roots_, /*is_eval=*/false);
  }
  absl::StatusOr<DatasetInfo> Describe(const v1::DatasetSpec& spec) const {
    return DescribeDataset(spec, roots_, /*is_eval=*/false);
  }

  // Writes every proper prefix of `bytes`, each of which must be refused, and then `bytes` with every byte changed in
  // several ways, which must not do any harm, as `name`.
  void Torment(const std::string& name, const std::string& bytes, const v1::DatasetSpec& spec) const {
    for (size_t n = 0; n < bytes.size(); ++n) {
      Write(name, bytes.substr(0, n));
      EXPECT_FALSE(Open(spec).ok()) << name << " cut to " << n << " of " << bytes.size() << " bytes";
      (void)Describe(spec);
    }
    for (size_t n = 0; n < bytes.size(); ++n) {
      for (int flip : {0x01, 0x40, 0x80, 0xff}) {
        std::string damaged = bytes;
        damaged[n] = static_cast<char>(damaged[n] ^ flip);
        Write(name, damaged);
        if (const auto dataset = Open(spec); dataset.ok()) ReadEverything(**dataset);
        (void)Describe(spec);
      }
    }
    Write(name, bytes);
  }

  static void ReadEverything(const Dataset& dataset) {
    std::vector<float> input(static_cast<size_t>(dataset.info().input_elements()));
    std::vector<float> target(static_cast<size_t>(dataset.info().target_features));
    for (int64_t i = 0; i < dataset.size(); ++i) {
      dataset.ReadInput(i, absl::MakeSpan(input));
      if (dataset.info().target_kind == TargetKind::kFloat) {
        dataset.ReadTarget(i, absl::MakeSpan(target));
      } else {
        EXPECT_LT(dataset.ReadLabel(i), dataset.info().classes);
      }
      (void)dataset.CheckFinite(i);
    }
  }

  static std::vector<float> Input(const Dataset& dataset, int64_t i) {
    std::vector<float> input(static_cast<size_t>(dataset.info().input_elements()));
    dataset.ReadInput(i, absl::MakeSpan(input));
    return input;
  }

  std::string root_;
  std::vector<std::string> roots_;
};

// `value` as `bytes` bytes, least significant first.
inline std::string LittleEndian(uint64_t value, int bytes) {
  std::string s;
  for (int i = 0; i < bytes; ++i) s.push_back(static_cast<char>(value >> (8 * i)));
  return s;
}

// An IDX file of unsigned bytes.
inline std::string IdxFileBytes(const std::vector<uint32_t>& extents, const std::string& values) {
  std::string s("\0\0\x08", 3);
  s.push_back(static_cast<char>(extents.size()));
  for (uint32_t e : extents) {
    for (int shift = 24; shift >= 0; shift -= 8) s.push_back(static_cast<char>(e >> shift));
  }
  return s + values;
}

// A .npy file, version 1.0, with such a header.
inline std::string NpyFileBytes(const std::string& header, const std::string& values) {
  return std::string("\x93NUMPY\x01\x00", 8) + LittleEndian(header.size(), 2) + header + values;
}

inline std::string NpyFloats(const std::string& shape, const std::vector<float>& values) {
  return NpyFileBytes("{'descr': '<f4', 'fortran_order': False, 'shape': " + shape + ", }\n",
                      std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)));
}

// `plain` deflated; window bits as for deflateInit2 (31: gzip, -15: bare).
inline std::string Deflated(const std::string& plain, int window_bits) {
  z_stream z = {};
  deflateInit2(&z, 6, Z_DEFLATED, window_bits, 8, Z_DEFAULT_STRATEGY);
  std::string out(deflateBound(&z, plain.size()) + 64, '\0');
  z.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(plain.data()));
  z.avail_in = static_cast<uInt>(plain.size());
  z.next_out = reinterpret_cast<Bytef*>(out.data());
  z.avail_out = static_cast<uInt>(out.size());
  deflate(&z, Z_FINISH);
  out.resize(z.total_out);
  deflateEnd(&z);
  return out;
}

}  // namespace ampd::data

#endif  // AMPD_TESTS_UNIT_ENGINE_DATA_DATA_FOLDER_H_
