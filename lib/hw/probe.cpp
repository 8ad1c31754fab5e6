#include "hw/probe.h"

#include <cmath>
#include <exception>

#include "hw/probes/probes.h"
#include "hw/profile.h"

namespace hetero::hw {
namespace {

// The sections of a profile, in order. Those that load foreign libraries in a child process come before those that
// start threads.
struct Section {
    const char* name;
    Probe probe;
};
constexpr Section sections[] = {
    {"host", probe_host},
    {"cpu", probe_cpu},
    {"topology", probe_topology},
    {"memory", probe_memory},
    {"limits", probe_limits},
    {"gpus", probe_gpus},
    {"mpi", probe_mpi},
    {"fabric", probe_fabric},
    {"process_copy", probe_process_copy},
    {"energy", probe_energy},
    {"clock", probe_clock},
    {"memory_bandwidth", probe_memory_bandwidth},
    {"compute", probe_compute},
    {"attention", probe_attention},
    {"kv_codecs", probe_kv_codecs},
    {"disk", probe_disk},
    {"shm", probe_shm},
};

}  // namespace

Result<ProfileTexts> probe(const ProbeOptions& options) {
    constexpr double max_seconds = 60;
    constexpr int max_threads = 4096;
    if (!(options.seconds_each > 0 && options.seconds_each <= max_seconds)) {
        return fail(Errc::usage, "a timed probe takes more than 0 and at most {} s, not {}", max_seconds,
                    options.seconds_each);
    }
    if (options.threads < 0 || options.threads > max_threads) {
        return fail(Errc::usage, "{} threads: 0 (all that may be used) to {}", options.threads, max_threads);
    }
    try {
        Context context{options, read_system_limits(options.root), 1};
        context.threads = options.threads > 0 ? options.threads : context.limits.threads();
        Json document;
        document["profile_schema"] = profile_schema;
        document["source"] = {{"kind", to_string(Origin::measured)}, {"note", "hw-probe"}, {"quick", options.quick}};
        document["threads_measured"] = context.threads;
        for (const Section& section : sections) {
            try {
                document[section.name] = section.probe(context);
            } catch (const std::exception& error) {
                put_unknown(document, section.name, error.what());
            }
        }
        if (options.stages) {
            HETERO_TRY(const std::string stages, options.stages());
            document["stages"] = Json::parse(stages);
        } else {
            put_unknown(document, "stages", context.recorded() ? not_recorded : "no model was given (--model)");
        }
        ProfileTexts profile;
        // Host names, paths and what drivers say need not be UTF-8.
        profile.json = document.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
        document = Json::parse(profile.json);
        profile.toml = to_toml(document);
        profile.summary = to_summary(document);
        return profile;
    } catch (const std::exception& error) {
        return fail(Errc::resource, "the profile could not be made: {}", error.what());
    }
}

}  // namespace hetero::hw
