// The MPI that is installed, and whether this process was started by it. MPI is not initialised.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <set>

#include "hw/isolated.h"
#include "hw/probes/probes.h"

namespace hetero::hw {
namespace {

constexpr double library_timeout_s = 10;

std::optional<std::string> find_in_path(const std::string& program) {
    const char* variable = std::getenv("PATH");
    const std::string path = variable != nullptr ? variable : "";
    for (std::size_t at = 0; at <= path.size();) {
        const std::size_t end = std::min(path.find(':', at), path.size());
        const std::string candidate = path.substr(at, end - at) + "/" + program;
        if (end > at && ::access(candidate.c_str(), X_OK) == 0) return candidate;
        at = end + 1;
    }
    return std::nullopt;
}

// MPI_Get_library_version may be called before MPI_Init (MPI 3.1, section 8.1.1). Name of the library, newline,
// version.
std::string library_version() {
    const Library lib({"libmpi.so.40", "libmpi.so.12", "libmpich.so.12"});
    auto* get_version = lib.symbol<int(char*, int*)>("MPI_Get_library_version");
    if (get_version == nullptr) return "";
    char text[8192 + 1] = "";  // MPI_MAX_LIBRARY_VERSION_STRING of MPICH, the longest
    int length = 0;
    if (get_version(text, &length) != 0) return "";
    const std::string version(text);
    return lib.name() + "\n" + version.substr(0, version.find('\n'));
}

// Components of Open MPI that carry messages, as its own ompi_info lists them: "mca:btl:tcp:version:...". One a line.
std::string transports() {
    std::FILE* list = ::popen("ompi_info --parsable 2>/dev/null", "r");
    if (list == nullptr) return "";
    std::set<std::string> names;
    char line[4096];
    while (std::fgets(line, sizeof line, list) != nullptr) {
        for (const std::string_view framework : {"pml", "btl", "mtl"}) {
            const std::string head = fmt::format("mca:{}:", framework);
            const std::string_view text(line);
            if (!text.starts_with(head)) continue;
            const std::string_view name = text.substr(head.size(), text.find(':', head.size()) - head.size());
            if (name != "base" && name != "monitoring") names.insert(fmt::format("{}/{}", framework, name));
        }
    }
    ::pclose(list);
    std::string out;
    for (const std::string& name : names) out += name + "\n";
    return out;
}

std::optional<std::int64_t> environment_integer(std::initializer_list<const char*> names) {
    for (const char* name : names) {
        const char* text = std::getenv(name);
        if (text == nullptr || *text == '\0') continue;
        char* end = nullptr;
        const long value = std::strtol(text, &end, 10);
        if (*end == '\0' && value >= 0) return value;
    }
    return std::nullopt;
}

}  // namespace

Json probe_mpi(const Context& context) {
    Json section;
    if (context.recorded()) {
        for (const char* field : {"launcher", "library", "library_version", "transports", "ranks", "rank"})
            put_unknown(section, field, not_recorded);
        return section;
    }
    auto launcher = find_in_path("mpirun");
    if (!launcher) launcher = find_in_path("mpiexec");
    put(section, "launcher", launcher, "neither mpirun nor mpiexec is in PATH");
    const auto answer = run_isolated(library_version, library_timeout_s);
    const std::size_t line = answer ? answer->find('\n') : std::string::npos;
    if (line == std::string::npos) {
        const std::string reason = answer ? "no libmpi is installed" : "the MPI library " + answer.error().message;
        put_unknown(section, "library", reason);
        put_unknown(section, "library_version", reason);
    } else {
        section["library"] = answer->substr(0, line);
        section["library_version"] = answer->substr(line + 1);
    }
    const auto listed = run_isolated(transports, library_timeout_s);
    const Json names = listed ? Json(split_words(*listed)) : Json::array();
    put(section, "transports", names.empty() ? std::nullopt : std::optional(names),
        listed ? "ompi_info lists none: not Open MPI, or not in PATH" : "ompi_info " + listed.error().message);
    const char* reason = "not started by mpirun or srun";
    put(section, "ranks", environment_integer({"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS"}), reason);
    put(section, "rank", environment_integer({"OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"}), reason);
    return section;
}

}  // namespace hetero::hw
