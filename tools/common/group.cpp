#include "common/group.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <random>

#include "base/redact.h"
#include "common/sources.h"
#include "kernels/api/ops.h"
#include "kv/shard_files.h"

namespace hetero::tool {
namespace {

// What may differ among the ranks of a group: how each runs and reports, and where it has the model.
constexpr std::array may_differ = {"model",   "threads",  "json",       "report", "quiet",
                                   "verbose", "progress", "log-format", "config"};

// Every other option with its value, one a line; and the kernels, whose roundings differ: where experts are chosen, two
// ranks could choose differently.
std::string options_text(const OptionTable& table) {
    std::string text;
    for (const Option& option : table.options()) {
        if (std::find(may_differ.begin(), may_differ.end(), option.name()) != may_differ.end()) continue;
        std::string value = option.show();
        std::replace(value.begin(), value.end(), '\n', ' ');
        text += fmt::format("{}{} {}\n", option.positional ? "" : "--", option.name(), value);
    }
    text += fmt::format("HETERO_BACKEND {}\n", kernels::ops().name);
    return text;
}

Status compare_options(std::string_view own, std::string_view first, int rank) {
    while (!own.empty() && !first.empty()) {
        const std::string_view mine = own.substr(0, own.find('\n')), others = first.substr(0, first.find('\n'));
        if (mine != others && redacts()) {
            return fail(Errc::usage, "the ranks of a group take the same options: {} differs in rank {} of it",
                        mine.substr(0, mine.find(' ')), rank);
        }
        if (mine != others) {
            return fail(Errc::usage, "the ranks of a group take the same options: rank {} of it has {}, the first {}",
                        rank, mine.substr(0, 80), others.substr(0, 80));
        }
        own.remove_prefix(mine.size() + 1);
        first.remove_prefix(others.size() + 1);
    }
    return {};
}

std::vector<std::byte> bytes_of(std::string_view text) {
    const auto bytes = std::as_bytes(std::span(text));
    return {bytes.begin(), bytes.end()};
}

// This rank's file of a state in shards.
std::string own_path(const transport::Endpoint& whole) {
    const Communicator& group = transport::group();
    return kv::shard_path(whole.path, static_cast<std::uint32_t>(group.rank()),
                          static_cast<std::uint32_t>(group.size()));
}

std::string_view text_of(const std::vector<std::byte>& bytes) {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// A shard becomes visible with those of the other ranks.
class ShardSink final : public kv::Sink {
public:
    explicit ShardSink(std::unique_ptr<kv::Sink> own) : own_(std::move(own)) {}
    Status begin(const kv::Header& header) override { return own_->begin(header); }
    Status write_layer(const kv::Layer& layer) override { return own_->write_layer(layer); }
    Status complete(const kv::Header& header) override { return own_->complete(header); }
    Status commit() override {
        Communicator& group = transport::group();
        HETERO_CHECK(group.agree({}));  // all have written their layers
        return group.agree(own_->commit());
    }
    void abort(const Error& reason) noexcept override { own_->abort(reason); }
    [[nodiscard]] const std::string& name() const noexcept override { return own_->name(); }

private:
    std::unique_ptr<kv::Sink> own_;
};

}  // namespace

Status join_group(Tool& tool) {
    Communicator& group = transport::group();
    if (group.size() == 1) return {};
    if (!group.is_root()) tool.silence();
    const std::string own = options_text(tool.options());
    std::vector<std::byte> first = bytes_of(own);
    HETERO_CHECK(group.broadcast(first));
    return group.agree(compare_options(own, text_of(first), group.rank()));
}

Result<std::string> read_once(const std::function<Result<std::string>()>& read) {
    Communicator& group = transport::group();
    if (group.size() == 1) return read();
    Result<std::string> text = std::string();
    if (group.is_root()) text = read();
    HETERO_CHECK(group.agree(text ? Status{} : Status(tl::unexpected<Error>(text.error()))));
    std::vector<std::byte> bytes = bytes_of(*text);
    HETERO_CHECK(group.broadcast(bytes));
    return std::string(text_of(bytes));
}

Result<std::string> run_id() {
    return read_once([]() -> Result<std::string> {
        std::random_device device;
        return fmt::format("{:08x}{:08x}", device(), device());
    });
}

Status check_no_whole(const std::string& path) {
    std::error_code error;
    if (!std::filesystem::exists(path, error)) return {};
    return fail(Errc::bad_input, "{}: is there, and would be read instead of the shards beside it; remove it", path);
}

Status check_shards(const Tool& tool, const std::vector<transport::Endpoint>& outputs, bool to_ranks) {
    Communicator& group = transport::group();
    const auto check = [&]() -> Status {
        for (const transport::Endpoint& output : outputs) {
            if (to_ranks && output.kind == transport::EndpointKind::mpi) continue;
            if (output.kind != transport::EndpointKind::file)
                return fail(Errc::usage, "--shards: {} cannot be divided; write to a file",
                            transport::to_string(output));
            if (group.is_root()) HETERO_CHECK(check_no_whole(output.path));
            HETERO_CHECK(io::check_output_path(own_path(output), tool.overwrite()));
        }
        return {};
    };
    return group.agree(check());
}

void drop_logits_of_others(kv::Header& header) {
    if (header.shard.tp_rank == 0) return;
    for (kv::Sequence& sequence : header.sequences) sequence.logits.clear();
}

Result<std::unique_ptr<kv::Sink>> open_own_shard(const transport::Endpoint& whole,
                                                 const transport::TransportOptions& options) {
    HETERO_TRY(auto own, transport::open_sink({transport::EndpointKind::file, own_path(whole), -1}, options));
    return std::make_unique<ShardSink>(std::move(own));
}

Result<std::vector<kv::Layer>> GroupWriter::layers(const engine::Session& session) const {
    std::vector<kv::Layer> all;
    for (std::uint32_t i = 0; i < session.model().config.n_layers; ++i) {
        HETERO_TRY(all.emplace_back(), layer(session, i));
    }
    return all;
}

Result<std::unique_ptr<kv::Sink>> GroupWriter::open(const transport::Endpoint& endpoint,
                                                    const transport::TransportOptions& options,
                                                    const engine::Session& session, kv::Header& header) const {
    const Communicator& group = transport::group();
    if (!shards_) {
        if (!group.is_root()) return discarding_sink();
        return transport::open_sink(endpoint, options);
    }
    header.shard = session.shard();
    HETERO_TRY(const std::string run, run_id());
    if (!header.provenance.empty()) header.provenance.back().what += " shards=" + run;  // of one run, see merge_shards
    drop_logits_of_others(header);
    if (endpoint.is_link()) return transport::open_sink(endpoint, options);
    return open_own_shard(endpoint, options);
}

void report_group(Tool& tool, const Communicator::Counters& before) {
    const Communicator& group = transport::group();
    if (group.size() == 1) return;
    const Communicator::Counters& now = group.counters();
    const std::uint64_t calls = now.calls - before.calls, bytes = now.bytes - before.bytes;
    const double seconds = now.seconds - before.seconds;
    tool.report()["tp"] = {{"ranks", group.size()},
                           {"collectives", calls},
                           {"bytes_received", bytes},
                           {"collectives_ms", number(seconds * 1e3)}};
    tool.note("{} ranks: {} collectives, {} bytes received, {:.1f} ms in them", group.size(), calls, bytes,
              seconds * 1e3);
}

}  // namespace hetero::tool
