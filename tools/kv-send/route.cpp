#include "route.h"

#include <chrono>

#include "base/clock.h"
#include "common/group.h"
#include "common/sources.h"
#include "kv/pages_file.h"
#include "kv/shards.h"
#include "transport/group.h"
#include "transport/group_source.h"

namespace hetero::tool {
namespace {

using transport::Endpoint;
using transport::EndpointKind;

// Names the run in the history of what it writes: shards of different runs are not put together.
class NotedSink final : public kv::Sink {
public:
    NotedSink(std::unique_ptr<kv::Sink> inner, kv::ProvenanceEntry entry)
        : inner_(std::move(inner)), entry_(std::move(entry)) {}
    Status begin(const kv::Header& header) override {
        kv::Header noted = header;
        noted.provenance.push_back(entry_);
        drop_logits_of_others(noted);
        return inner_->begin(noted);
    }
    Status write_layer(const kv::Layer& layer) override { return inner_->write_layer(layer); }
    Status write_shared(std::shared_ptr<const kv::Layer> layer) override {
        return inner_->write_shared(std::move(layer));
    }
    Status complete(const kv::Header& header) override {
        kv::Header noted = header;
        drop_logits_of_others(noted);
        return inner_->complete(noted);
    }
    Status commit() override { return inner_->commit(); }
    void abort(const Error& reason) noexcept override { inner_->abort(reason); }
    [[nodiscard]] const std::string& name() const noexcept override { return inner_->name(); }

private:
    std::unique_ptr<kv::Sink> inner_;
    kv::ProvenanceEntry entry_;
};

Result<std::unique_ptr<kv::Sink>> noted(Tool& tool, std::unique_ptr<kv::Sink> sink, std::uint32_t n) {
    HETERO_TRY(const std::string run, run_id());
    return std::make_unique<NotedSink>(std::move(sink),
                                       tool.provenance(fmt::format("reshard tp={} shards={}", n, run)));
}

Result<std::vector<std::string>> shard_names(const Endpoint& whole, std::uint32_t n) {
    HETERO_CHECK(check_no_whole(whole.path));
    std::vector<std::string> names;
    for (std::uint32_t rank = 0; rank < n; ++rank) names.push_back(kv::shard_path(whole.path, rank, n));
    return names;
}

// Of files the first that has a head gives it, however they were divided.
std::vector<kv::ShardLink> links_from(const kv::StateFiles& files, const kv::HeadCounts& heads, std::uint32_t n) {
    std::vector<kv::ShardLink> links;
    for (std::uint32_t to = 0; to < n; ++to) {
        const kv::HeadRange wanted = kv::heads_of(heads, n, to);
        for (std::uint32_t head = wanted.first; head < wanted.end(); ++head) {
            std::uint32_t from = 0;
            while (from + 1 < files.sources.size() && !kv::heads_of(files.sources[from]->header()).holds(head)) ++from;
            if (!links.empty() && links.back().to == to && links.back().from == from) {
                ++links.back().heads.count;
            } else {
                links.push_back({from, to, {head, 1}});
            }
        }
    }
    return links;
}

}  // namespace

Result<Route> Route::plan(const std::string& input, const std::string& output, std::uint64_t split,
                          const kv::PageLayout& layout, const TransferOptions& transfer) {
    Route route;
    route.layout_ = layout;
    route.transfer_ = transfer;
    route.split_ = static_cast<std::uint32_t>(split);
    const auto tp = static_cast<std::uint32_t>(transfer.tp);
    HETERO_TRY(const Endpoint from, transport::parse_endpoint(input));
    std::optional<Endpoint> to;
    if (!output.empty()) {
        HETERO_TRY(to, transport::parse_endpoint(output));
        route.outputs_.push_back(output);
        route.output_ = output;
    }
    const bool to_file = to && to->kind == EndpointKind::file, to_rank = to && to->kind == EndpointKind::mpi;
    if (split > 1) {
        if (tp > 1) return fail(Errc::usage, "--split and --tp exclude each other: each rank writes its own shard");
        if (!to) return fail(Errc::usage, "--split: name the shards with -o");
        if (!to_file) return fail(Errc::usage, "--split: {} cannot be divided; write to a file", output);
        HETERO_TRY(route.outputs_, shard_names(*to, route.split_));
    }
    if (tp > 1) {
        if (from.kind == EndpointKind::pipe || (to && to->kind == EndpointKind::pipe))
            return fail(Errc::usage, "--tp: - cannot be divided among ranks; name a file or mpi:FIRST-LAST");
        route.transfer_.hold_shards = true;
        route.transfer_.shards = to_file;
    }
    const bool to_pages = to && is_pages(*to);
    route.pages_ = is_pages(from) || to_pages;
    route.sets_ = tp > 1 || from.ranks > 1 || (to && to->ranks > 1);
    if (route.sets_ && from.kind == EndpointKind::pipe)
        return fail(Errc::usage, "{}: - cannot be read by ranks that share a state; name a file", output);
    if (tp > 1 && to_pages)
        return fail(Errc::usage, "--tp: {}: ranks write hetero-kv files; convert them then, or use --split", output);
    if (is_pages(from)) {
        HETERO_TRY(auto pages, kv::open_pages(from.path));
        route.files_.emplace();
        route.files_->name = from.path;
        route.files_->sources.push_back(std::move(pages));
        route.transfer_.heads = kv::head_counts(route.files_->identity());
    } else if (from.kind == EndpointKind::file && (route.sets_ || transfer.dry_run || split > 1)) {
        HETERO_TRY(route.files_, kv::open_files(from.path));
        route.transfer_.heads = kv::head_counts(route.files_->identity());
    }
    route.senders_ = from.kind == EndpointKind::mpi ? static_cast<std::uint32_t>(from.ranks)
                     : to_rank                      ? tp
                     : route.files_                 ? static_cast<std::uint32_t>(route.files_->sources.size())
                                                    : 1;
    route.receivers_ = to_rank ? static_cast<std::uint32_t>(to->ranks) : std::max(tp, route.split_);
    if (route.files_ && (tp == 1 || transfer.dry_run)) {  // ranks of a job say it once, when they have met
        HETERO_CHECK(kv::check_tp_size(route.transfer_.heads, tp));
        HETERO_CHECK(kv::check_tp_size(route.transfer_.heads, route.receivers_));
        route.links_ = to_rank ? kv::plan_reshard(route.transfer_.heads, route.senders_, route.receivers_)
                               : links_from(*route.files_, route.transfer_.heads, route.receivers_);
    }
    return route;
}

Result<OpenedSource> Route::open_input(const Tool& tool, const Endpoint& input,
                                       const transport::TransportOptions& options) {
    Communicator& group = transport::group();
    if (!files_ && group.size() == 1) return open_source(tool, input, options, "send");
    const auto start = std::chrono::steady_clock::now();
    OpenedSource opened;
    if (files_) {
        const Result<kv::Shard> own = transport::own_shard(group, transfer_.heads);
        HETERO_CHECK(group.agree(own ? Status{} : Status(tl::unexpected<Error>(own.error()))));
        if (group.size() == 1 && files_->sources.size() == 1) {
            opened.source = std::move(files_->sources.front());  // a shard stays one
        } else {
            HETERO_TRY(opened.source, kv::read_shard(std::move(*files_), *own));
        }
        opened.seconds = seconds_since(start);
    } else {
        HETERO_TRY(opened.source, transport::open_source(input, options));
    }
    opened.source = with_progress(tool, "send", std::move(opened.source));
    return opened;
}

Result<std::unique_ptr<kv::Sink>> Route::open_one(const Endpoint& output,
                                                  const transport::TransportOptions& options) const {
    if (is_pages(output)) return kv::create_pages(output.path, layout_, options.overwrite);
    return transport::open_sink(output, options);
}

Result<std::unique_ptr<kv::Sink>> Route::open_output(Tool& tool, const std::vector<Endpoint>& outputs,
                                                     const transport::TransportOptions& options) const {
    const Endpoint& first = outputs.front();
    if (split_ > 1) {
        std::vector<std::unique_ptr<kv::Sink>> sinks;
        for (const Endpoint& output : outputs) {
            HETERO_TRY(sinks.emplace_back(), open_one(output, options));
        }
        return noted(tool, kv::split_heads(std::move(sinks), kv::cuts_for_ranks(split_), output_), split_);
    }
    std::unique_ptr<kv::Sink> sink;
    if (transfer_.shards) {
        HETERO_TRY(sink, open_own_shard(first, options));
    } else {
        HETERO_TRY(sink, open_one(first, options));
    }
    // Whoever divides it says so; what comes from other ranks has been told.
    if (!files_ || receivers_ == 1) return sink;
    return noted(tool, std::move(sink), receivers_);
}

}  // namespace hetero::tool
