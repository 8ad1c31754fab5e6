// The files of one command: none that it reads, and no other output, may be lost by writing an output.
#pragma once
#include <string>
#include <vector>

#include "base/result.h"

namespace hetero::tool {

// Paths as given. Empty ones and "-" name no file; of a folder that is read, the files of a model in it count.
struct Files {
    std::vector<std::string> read, written;
};

// usage where a written file is one of the others, whatever the two are called (links, "./"), there or not yet there.
Status check_files(const Files& files);

}  // namespace hetero::tool
