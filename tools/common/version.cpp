#include "common/version.h"

#include "common/build_info.h"
#include "kernels/api/device.h"
#include "kernels/api/ops.h"
#include "model/families/family.h"
#include "quant/codec.h"

namespace hetero::tool {
namespace {

// Those that --device may name here.
std::vector<std::string> devices() {
    std::vector<std::string> names = {"cpu"};
    const kernels::DeviceOps* cuda = kernels::cuda_ops();
    for (int i = 0; cuda != nullptr && i < cuda->device_count(); ++i) names.push_back(fmt::format("cuda:{}", i));
    return names;
}

}  // namespace

nlohmann::ordered_json version_document(const std::string& tool) {
    nlohmann::ordered_json document = {{"tool", tool},
                                       {"version", kVersion},
                                       {"schema", 1},
                                       {"build_type", kBuildType},
                                       {"compiler", kCompiler},
                                       {"system", kSystem},
                                       {"sanitizers", kSanitizers},
                                       {"devices", devices()}};
    document["endpoints"] = {"file", "pipe"};
    if (*kMpi != '\0') {
        document["endpoints"].push_back("mpi");
        document["mpi"] = kMpi;
    }
    auto& backends = document["backends"] = nlohmann::ordered_json::array();
    for (const kernels::Ops* const* backend = kernels::all_backends(); *backend != nullptr; ++backend) {
        backends.push_back({{"name", (*backend)->name},
                            {"supported", kernels::backend_supported(**backend)},
                            {"used", *backend == &kernels::ops()}});
    }
    auto& families = document["families"] = nlohmann::ordered_json::array();
    for (const model::Family* family : model::families()) families.push_back(family->name);
    auto& codecs = document["codecs"] = nlohmann::ordered_json::array();
    for (const quant::Codec* codec : quant::codecs()) codecs.push_back(codec->name());
    for (const LibraryVersion& library : kLibraries) document["libraries"][library.name] = library.version;
    return document;
}

}  // namespace hetero::tool
