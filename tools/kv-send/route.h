// How a state goes from m holders to n: which files or ranks, and what this process does of it.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/endpoints.h"
#include "common/tool.h"
#include "kv/pages.h"
#include "kv/reshard_plan.h"
#include "kv/shard_files.h"

namespace hetero::tool {

class Route {
public:
    // `split`: shards that one process writes. usage: what cannot be divided. Opens the files of a state whose heads
    // the ranks of a job have to know.
    // `layout`: of outputs in safetensors.
    static Result<Route> plan(const std::string& input, const std::string& output, std::uint64_t split,
                              const kv::PageLayout& layout, const TransferOptions& transfer);

    // Of the endpoints, by name; of files that are split each.
    [[nodiscard]] const std::vector<std::string>& outputs() const noexcept { return outputs_; }
    [[nodiscard]] const TransferOptions& transfer() const noexcept { return transfer_; }
    // Ranks, or files, that hold the state before and after.
    [[nodiscard]] std::uint32_t senders() const noexcept { return senders_; }
    [[nodiscard]] std::uint32_t receivers() const noexcept { return receivers_; }
    [[nodiscard]] bool over_mpi_sets() const noexcept { return sets_; }
    // One whole state from one place to another, in hetero-kv or by messages.
    [[nodiscard]] bool is_plain() const noexcept { return !sets_ && split_ == 1 && !pages_; }
    // Who gives whom which heads, where the files of the state were opened.
    [[nodiscard]] const std::vector<kv::ShardLink>& links() const noexcept { return links_; }

    // After prepare_endpoints(): what this process reads, and where it writes it.
    Result<OpenedSource> open_input(const Tool& tool, const transport::Endpoint& input,
                                    const transport::TransportOptions& options);
    Result<std::unique_ptr<kv::Sink>> open_output(Tool& tool, const std::vector<transport::Endpoint>& outputs,
                                                  const transport::TransportOptions& options) const;

private:
    [[nodiscard]] Result<std::unique_ptr<kv::Sink>> open_one(const transport::Endpoint& output,
                                                             const transport::TransportOptions& options) const;

    std::vector<std::string> outputs_;
    std::string output_;
    TransferOptions transfer_;
    std::optional<kv::StateFiles> files_;
    std::vector<kv::ShardLink> links_;
    kv::PageLayout layout_;
    std::uint32_t senders_ = 1, receivers_ = 1, split_ = 1;
    bool sets_ = false, pages_ = false;
};

}  // namespace hetero::tool
