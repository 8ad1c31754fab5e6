// What the command line of hetero-plan asks for, and how it is answered.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "common/tool.h"
#include "plan/search.h"
#include "plan/shape.h"
#include "plan/verdict.h"

namespace hetero::tool {

struct PlanOptions {
    std::string model, hw, hw_decode, trace, stages, stages_decode, certificate;
    std::string device = "auto", dtype, decode_dtype, first_token = "auto";
    std::vector<std::string> kv_dtypes, prices;
    std::uint64_t machines = 1, machines_decode = 1, prompt = 0, output = 0, requests = 2000, seed = 1, prefixes = 1;
    std::uint64_t max_sequences = 256, chunk = 512;
    double prefix_hit = 0, attainment = 0.9;
    std::optional<double> rate, ttft_s, itl_s, price, price_decode, link_gb_per_s;
    double link_latency_s = 0;
    bool prefix_at_decoder = false, explain = false, link_specified = false;
    std::uint64_t rows = 8;
    std::string plan_file, emit, emit_file, plot;
};

Status run_plan(Tool& tool, const PlanOptions& options);

// The problem, from files and options (problem.cpp).
struct Stated {
    plan::Problem problem;
    std::string certificate;  // as given; empty: none
};
Result<Stated> state_problem(Tool& tool, const PlanOptions& options);

// Forms of KV (forms.cpp): a codec as decoders keep it, or for the link alone; and those that a certificate allows, a
// plan of kv-calibrate or a report of kv-verify. The others are left out, with a note.
Result<plan::KvFormat> format_of(const plan::ModelShape& shape, const std::string& text);
Status add_certificate(Tool& tool, const plan::DescribedModel& model, const std::string& path, plan::Problem& problem);

// For people, and for --json (report.cpp).
std::string plan_table(const plan::Problem& problem, const plan::SearchResult& result, const plan::Decision& decision,
                       std::size_t rows);
void report_plan(Json& report, const plan::Problem& problem, const plan::SearchResult& result,
                 const plan::Decision& decision, std::size_t rows);

// An SVG by gnuplot: throughput for its cost against the time between tokens, and how latencies grow with the rate
// (plot.cpp). resource: gnuplot is not there or fails.
Result<std::string> plan_plot(const plan::Problem& problem, const plan::SearchResult& result,
                              const plan::Decision& decision);

}  // namespace hetero::tool
