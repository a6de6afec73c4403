// Datasets as fuzz targets read them: opened, described, and every sample read.
#ifndef AMPD_TESTS_FUZZ_DATASETS_H_
#define AMPD_TESTS_FUZZ_DATASETS_H_

#include "ampd/v1/data.pb.h"

namespace ampd::fuzz {

// Opens the dataset, whose files lie in Folder(), and reads all of it. Ends the process when what is read breaks the
// dataset's own promises, or when describing and opening disagree.
void ReadDataset(const v1::DatasetSpec& spec);

}  // namespace ampd::fuzz

#endif  // AMPD_TESTS_FUZZ_DATASETS_H_
