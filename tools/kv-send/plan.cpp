#include "plan.h"

#include <sys/statvfs.h>

#include <filesystem>
#include <numeric>

#include "base/units.h"
#include "kv/convert.h"
#include "kv/reshard_plan.h"
#include "kv/shard_files.h"
#include "transport/chunk_plan.h"
#include "transport/receiver.h"
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

kv::Header with_shard(kv::Header header, const kv::Shard& shard) {
    header.shard = shard;
    return header;
}

bool converts(const kv::Header& read, const kv::Header& sent) {
    return read.k_schemes != sent.k_schemes || read.v_schemes != sent.v_schemes;
}

std::uint64_t largest_layer_bytes(const kv::Header& header) {
    std::uint64_t most = 0;
    for (std::uint64_t i = 0; i < transport::total_layers(header); ++i)
        most = std::max(most, transport::layer_bytes(header, i));
    return most;
}

std::string text_of(const kv::HeadRange& heads) {
    return heads.count == 1 ? fmt::format("{}", heads.first) : fmt::format("{}-{}", heads.first, heads.end() - 1);
}

// Who is called what: the files of shards, the ranks behind an endpoint, or the ranks of this part of a job.
std::string name_of(const transport::Endpoint& endpoint, std::uint32_t n, std::uint32_t place, bool ranks) {
    if (endpoint.kind == transport::EndpointKind::mpi)
        return fmt::format("mpi:{}", endpoint.rank + static_cast<int>(place));
    if (ranks && n > 1) return fmt::format("rank {}", place);
    return endpoint.kind == transport::EndpointKind::file && n > 1 ? kv::shard_path(endpoint.path, place, n)
                                                                   : transport::to_string(endpoint);
}

// How heads are divided anew: who sends which to whom, and what the largest of either side needs at once.
struct Redistribution {
    struct Link {
        std::string from, to;
        kv::HeadRange heads;
        std::uint64_t bytes = 0;
    };
    std::vector<Link> links;
    std::vector<std::pair<std::string, kv::HeadRange>> holders;  // afterwards
    std::uint64_t sender_bytes = 0, receiver_bytes = 0;
};

Result<Redistribution> redistribution(const Route& route, const transport::Endpoint& input, const kv::Header& read,
                                      const kv::Header& sent, const transport::Endpoint& output,
                                      std::uint64_t threads) {
    const kv::HeadCounts counts = kv::head_counts(sent.identity);
    const std::uint32_t m = route.senders(), n = route.receivers();
    const bool by_ranks = route.over_mpi_sets();
    const std::string whole = input.kind == transport::EndpointKind::file
                                  ? kv::parse_shard_path(input.path).value_or(kv::ShardName{input.path, 0, 1}).whole
                                  : input.path;
    transport::Endpoint from = input;
    from.path = whole;
    Redistribution out;
    for (const kv::ShardLink& link : route.links()) {
        const kv::Header part = with_shard(sent, {std::max({m, n, 2U}), 0, link.heads.first, link.heads.count});
        HETERO_CHECK(kv::check_header(part));  // a scale that all heads share
        out.links.push_back({name_of(from, m, link.from, by_ranks), name_of(output, n, link.to, by_ranks), link.heads,
                             part.payload_bytes()});
    }
    for (std::uint32_t rank = 0; rank < n; ++rank) {
        out.holders.emplace_back(name_of(output, n, rank, by_ranks), kv::heads_of(counts, n, rank));
        const kv::Header own = with_shard(sent, kv::shard_of(counts, n, rank));
        // Granted ahead on every link, and what is put together of it.
        std::uint64_t links = 0;
        for (const kv::ShardLink& link : route.links()) links += link.to == rank ? 1 : 0;
        const std::uint64_t layer = largest_layer_bytes(own);
        const std::uint64_t ahead = std::max(2 * layer, links * transport::ReceiverOptions{}.granted_bytes);
        out.receiver_bytes =
            std::max(out.receiver_bytes, by_ranks ? layer + std::min(own.payload_bytes(), ahead) : std::uint64_t{0});
    }
    const kv::Header mine = with_shard(read, by_ranks ? kv::shard_of(counts, m, 0) : kv::Shard{});
    const kv::Header theirs = with_shard(sent, mine.shard);
    // A layer as it is read, as it is converted, and the pieces it is cut into.
    out.sender_bytes = largest_layer_bytes(mine) + 2 * largest_layer_bytes(theirs);
    if (converts(read, sent))
        out.sender_bytes =
            std::max(out.sender_bytes,
                     largest_layer_bytes(theirs) +
                         kv::convert_memory(mine, sent.k_schemes, sent.v_schemes, static_cast<int>(threads)).bytes);
    return out;
}

std::string table(const Redistribution& plan, std::uint64_t tokens) {
    std::size_t from = 4, to = 2;
    for (const auto& link : plan.links) {
        from = std::max(from, link.from.size());
        to = std::max(to, link.to.size());
    }
    std::string text =
        fmt::format("{:<{}}  {:<{}}  {:>8}  {:>8}  {:>10}\n", "from", from, "to", to, "heads", "tokens", "bytes");
    for (const auto& link : plan.links)
        text += fmt::format("{:<{}}  {:<{}}  {:>8}  {:>8}  {:>10}\n", link.from, from, link.to, to, text_of(link.heads),
                            tokens, format_bytes(link.bytes));
    return text;
}

Json json_of(const kv::HeadRange& heads) { return {{"head_first", heads.first}, {"head_count", heads.count}}; }

}  // namespace

Status plan(Tool& tool, const Route& route, const transport::Endpoint& input, const kv::Header& read,
            const kv::Header& sent, const std::optional<transport::Endpoint>& output, std::uint64_t threads) {
    const bool divides = output && !route.links().empty() && (route.senders() > 1 || route.receivers() > 1);
    const bool converted = converts(read, sent);
    Json steps = Json::array();
    if (converted) steps.push_back("convert");
    if (divides) steps.push_back("redistribute");
    std::uint64_t tokens = 0;
    for (const kv::Sequence& sequence : sent.sequences) tokens += sequence.tokens.size();
    std::string links;
    tool.report()["steps"] = steps;
    // What a link carries is in its final form: whoever reads the state converts, each what it holds.
    tool.report()["converts"] = converted ? Json("sender") : Json(nullptr);
    if (divides) {
        HETERO_TRY(const Redistribution plan, redistribution(route, input, read, sent, *output, threads));
        Json ways = Json::array(), holders = Json::array();
        for (const auto& link : plan.links) {
            Json way = {{"from", link.from}, {"to", link.to}};
            way.update(json_of(link.heads));
            way["tokens"] = tokens;
            way["bytes"] = link.bytes;
            ways.push_back(std::move(way));
        }
        for (const auto& [name, heads] : plan.holders) {
            Json holder = {{"name", name}};
            holder.update(json_of(heads));
            holders.push_back(std::move(holder));
        }
        tool.report()["redistribute"] = {{"senders", route.senders()},
                                         {"receivers", route.receivers()},
                                         {"links", std::move(ways)},
                                         {"holders", std::move(holders)},
                                         {"sender_peak_bytes", plan.sender_bytes},
                                         {"receiver_peak_bytes", plan.receiver_bytes}};
        links = table(plan, tokens);
        for (const auto& [name, heads] : plan.holders)
            tool.note("{} will hold {} of {}", name, kv::to_text(heads), sent.identity.n_kv_heads);
        tool.note("at most {} at once where it is sent{}", format_bytes(plan.sender_bytes),
                  plan.receiver_bytes == 0
                      ? ""
                      : fmt::format(", {} where it is received", format_bytes(plan.receiver_bytes)));
    }
    if (converted) tool.note("converted where it is read, before it is {}", divides ? "divided" : "written");
    if (converted && output && output->kind == transport::EndpointKind::mpi &&
        sent.payload_bytes() > read.payload_bytes())
        tool.note("{} as it is, {} converted: let the receiver convert it (--dtype there)",
                  format_bytes(read.payload_bytes()), format_bytes(sent.payload_bytes()));
    HETERO_TRY(const transport::TransferPlan plan, transport::plan_transfer(sent));
    const bool to_rank = output && output->is_link();
    if (output && output->kind == transport::EndpointKind::file)
        HETERO_CHECK(check_space(output->path, sent.payload_bytes()));
    std::size_t files = 0;
    if (input.kind == transport::EndpointKind::file) {
        HETERO_TRY(const auto paths, kv::state_files(input.path));
        files = paths.size();
    }
    const bool merges = files > 1 && !sent.is_shard() && route.receivers() == 1;
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
    if (!output || output->kind != transport::EndpointKind::pipe) HETERO_CHECK(tool.print(links + table(rows)));
    if (merges) tool.note("{} shards are put together", files);
    tool.note("{} chunks of up to {} tokens, {} at most", chunks, plan.tokens_per_chunk,
              format_bytes(plan.largest_chunk_bytes));
    if (to_rank)
        tool.note("hkv-mpi {}: header of {}; the other rank is not asked", plan.protocol_version,
                  format_bytes(plan.offer_bytes));
    return {};
}

}  // namespace hetero::tool
