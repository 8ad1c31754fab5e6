#include "links.h"

#include <cstdlib>
#include <cstring>

#include "hw/fleet.h"
#include "hw/section.h"
#include "transport/group.h"
#include "transport/link_survey.h"

namespace hetero::tool {
namespace {

// The others of a machine leave it in peace while this one measures.
bool first_of_machine() {
    for (const char* name : {"OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"})
        if (const char* text = std::getenv(name); text != nullptr) return std::strcmp(text, "0") == 0;
    return true;
}

// What each rank gives, on rank 0.
Result<std::vector<std::string>> gather(const std::string& mine) {
    Communicator& all = transport::group();
    const std::uint64_t size = mine.size();
    const auto ranks = static_cast<std::size_t>(all.size());
    HETERO_TRY(const auto size_bytes,
               all.all_gather(std::as_bytes(std::span(&size, 1)), std::vector<std::size_t>(ranks, sizeof size)));
    std::vector<std::uint64_t> sizes(ranks);
    std::memcpy(sizes.data(), size_bytes.data(), size_bytes.size());
    HETERO_TRY(const auto bytes,
               all.gather(std::as_bytes(std::span(mine)), std::vector<std::size_t>(sizes.begin(), sizes.end())));
    std::vector<std::string> texts;
    std::size_t at = 0;
    for (std::size_t rank = 0; rank < ranks && all.is_root(); at += sizes[rank++])
        texts.emplace_back(reinterpret_cast<const char*>(bytes.data()) + at, sizes[rank]);
    return texts;
}

hw::Link profile_link(const transport::SurveyedLink& from) {
    hw::Link link;
    link.from_rank = from.from;
    link.to_rank = from.to;
    link.via = "mpi";
    if (from.latency_s > 0) link.latency_us = hw::rounded(from.latency_s * 1e6);
    for (const auto& [bytes, rate] : from.sizes) link.sizes.push_back({bytes, hw::rounded(rate / 1e9)});
    if (!link.sizes.empty()) link.gb_per_s = link.sizes.back().gb_per_s;
    if (from.both_ways_bytes_per_s > 0) link.both_ways_gb_per_s = hw::rounded(from.both_ways_bytes_per_s / 1e9);
    link.asymmetric = from.asymmetric;
    return link;
}

}  // namespace

Result<hw::ProfileTexts> probe_fleet(Tool& tool, const hw::ProbeOptions& options) {
    // Libraries are tried and machines measured before MPI starts: it would not like our child processes, and its
    // threads would share the machine. The ranks that do not measure wait for the others in MPI's start.
    HETERO_TRY(const int size, transport::job_size());
    if (size < 2) return fail(Errc::usage, "--links: the job has one rank, and links need two: mpirun -n 2 or more");
    const hw::ProfileTexts nothing;
    hw::ProfileTexts own;
    if (first_of_machine()) {
        HETERO_TRY(own, hw::probe(options));
    }
    transport::TransportOptions transfer;
    transfer.timeout_s = options.quick || !options.measure ? 30 : 200;
    transfer.group_size = size;
    transfer.tool = tool.name();
    HETERO_CHECK(transport::prepare({}, {}, transfer));
    if (!transport::group().is_root()) tool.silence();

    transport::SurveyOptions survey;
    if (options.quick) survey.round_s = 0.01;
    HETERO_TRY(const auto links, transport::survey_links(survey));
    HETERO_TRY(const auto machines, gather(hw::this_machine()));
    HETERO_TRY(const auto profiles, gather(own.json));
    if (!transport::group().is_root()) return nothing;
    std::vector<hw::RankProfile> ranks;
    for (std::size_t rank = 0; rank < machines.size(); ++rank) ranks.push_back({machines[rank], profiles[rank]});
    std::vector<hw::Link> all;
    for (const transport::SurveyedLink& link : links) all.push_back(profile_link(link));
    return hw::fleet_profile(
        ranks, std::move(all),
        fmt::format("plain MPI, one pair of ranks after the other; latency: half the median round "
                    "trip of 64 bytes; bandwidth: eight messages in flight, median of {} transfers",
                    survey.rounds));
}

}  // namespace hetero::tool
