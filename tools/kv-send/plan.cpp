#include "plan.h"

#include <sys/statvfs.h>

#include <filesystem>
#include <numeric>

#include "base/units.h"
#include "kv/shard_files.h"
#include "transport/transfer_plan.h"

namespace hetero::tool {
namespace {

using Layer = transport::TransferPlan::Layer;

struct Row {  // layers [first, last] that are alike
    std::size_t first, last;
    std::string kind, k_codec, v_codec;
    Layer each;
};

bool alike(const Row& a, const Row& b) {
    return a.kind == b.kind && a.k_codec == b.k_codec && a.v_codec == b.v_codec && a.each.k_bytes == b.each.k_bytes &&
           a.each.v_bytes == b.each.v_bytes && a.each.chunks == b.each.chunks;
}

std::vector<Row> rows_of(const kv::Header& header, const transport::TransferPlan& plan) {
    std::vector<Row> rows;
    for (std::size_t l = 0; l < plan.layers.size(); ++l) {
        Row row{l,
                l,
                kind_name(header.layer_shape(l).kind),
                header.scheme(l, kv::PartId::k).codec,
                header.scheme(l, kv::PartId::v).codec,
                plan.layers[l]};
        if (!rows.empty() && alike(rows.back(), row)) {
            rows.back().last = l;
        } else {
            rows.push_back(std::move(row));
        }
    }
    return rows;
}

std::string table(const std::vector<Row>& rows) {
    std::string text = fmt::format("{:>9}  {:<4}  {:<10} {:>10}  {:<10} {:>10}  {:>7}\n", "layers", "kind", "K", "each",
                                   "V", "each", "chunks");
    for (const Row& row : rows) {
        const std::string which =
            row.first == row.last ? fmt::format("{}", row.first) : fmt::format("{}-{}", row.first, row.last);
        text +=
            fmt::format("{:>9}  {:<4}  {:<10} {:>10}  {:<10} {:>10}  {:>7}\n", which, row.kind, row.k_codec,
                        format_bytes(row.each.k_bytes), row.v_codec, format_bytes(row.each.v_bytes), row.each.chunks);
    }
    return text;
}

// Free space where the file would be; a system that does not say has enough.
Status check_space(const std::string& path, std::uint64_t bytes) {
    const std::string folder = std::filesystem::path(path).parent_path().string();
    struct statvfs info {};
    if (::statvfs(folder.empty() ? "." : folder.c_str(), &info) != 0) return {};
    const std::uint64_t free = std::uint64_t{info.f_bavail} * info.f_frsize;
    if (bytes <= free) return {};
    return fail(Errc::resource, "{}: {} are needed, {} are free", path, format_bytes(bytes), format_bytes(free));
}

}  // namespace

Status plan(Tool& tool, const transport::Endpoint& input, const kv::Header& sent,
            const std::optional<transport::Endpoint>& output) {
    HETERO_TRY(const transport::TransferPlan plan, transport::plan_transfer(sent));
    const bool to_rank = output && output->is_link();
    if (output && output->kind == transport::EndpointKind::file)
        HETERO_CHECK(check_space(output->path, sent.payload_bytes()));
    std::size_t files = 0;
    if (input.kind == transport::EndpointKind::file) {
        HETERO_TRY(const auto paths, kv::state_files(input.path));
        files = paths.size();
    }
    const bool merges = files > 1 && !sent.is_shard();
    const std::vector<Row> rows = rows_of(sent, plan);
    const std::uint64_t chunks = std::accumulate(plan.layers.begin(), plan.layers.end(), std::uint64_t{0},
                                                 [](std::uint64_t sum, const Layer& one) { return sum + one.chunks; });
    Json layers = Json::array();
    for (std::size_t l = 0; l < plan.layers.size(); ++l) {
        layers.push_back({{"layer", l},
                          {"kind", kind_name(sent.layer_shape(l).kind)},
                          {"k_codec", sent.scheme(l, kv::PartId::k).codec},
                          {"k_bytes", plan.layers[l].k_bytes},
                          {"v_codec", sent.scheme(l, kv::PartId::v).codec},
                          {"v_bytes", plan.layers[l].v_bytes},
                          {"chunks", plan.layers[l].chunks}});
    }
    tool.report()["transfer"] = {{"layers", std::move(layers)},
                                 {"chunks", chunks},
                                 {"tokens_per_chunk", plan.tokens_per_chunk},
                                 {"largest_chunk_bytes", plan.largest_chunk_bytes},
                                 {"shards_merged", merges ? Json(files) : Json(nullptr)},
                                 {"offer_bytes", plan.offer_bytes},
                                 {"protocol_version", plan.protocol_version}};
    if (tool.json()) return {};
    // A reader of stdout expects a state.
    if (!output || output->kind != transport::EndpointKind::pipe) HETERO_CHECK(tool.print(table(rows)));
    if (merges) tool.note("{} shards are put together", files);
    tool.note("{} chunks of up to {} tokens, {} at most", chunks, plan.tokens_per_chunk,
              format_bytes(plan.largest_chunk_bytes));
    if (to_rank)
        tool.note("hkv-mpi {}: header of {}; the other rank is not asked", plan.protocol_version,
                  format_bytes(plan.offer_bytes));
    return {};
}

}  // namespace hetero::tool
