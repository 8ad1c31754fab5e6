#include "calibrate.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>

#include "base/units.h"
#include "common/progress.h"
#include "common/version.h"

namespace hetero::tool {
namespace {

using calib::Assignment;
using calib::Job;
using calib::Outcome;

constexpr double usual_epsilon = 0.01;  // of the column that counts steps, where none is given
constexpr double bits_step = 0.5;       // between points of the search's curve

// What a gate looks at: the default one at the 99th percentile of E_p and the largest KL, a strict one at the largest.
double gate_value(const kv::DriftFigures& figures, bool strict) {
    return strict ? figures.dp_max : std::max(figures.dp_p99, figures.kl_max);
}

Result<calib::Slice> parse_slice(const std::string& text) {
    if (text.empty()) return calib::Slice{};
    const std::size_t slash = std::min(text.find('/'), text.size());
    const auto index = parse_integer(text.substr(0, slash));
    const auto count = parse_integer(text.substr(std::min(slash + 1, text.size())));
    if (!index || !count || *count < 1 || *count > 65536 || *index < 0 || *index >= *count) {
        return fail(Errc::usage, "--slice '{}' is not I/N with I from 0 to N - 1", text);
    }
    return calib::Slice{static_cast<std::size_t>(*index), static_cast<std::size_t>(*count)};
}

class Calibration {
public:
    Calibration(Tool& tool, const CalibrateOptions& options) : tool_(tool), options_(options) {}

    Status run() {
        HETERO_TRY(const calib::Slice slice, parse_slice(options_.slice));
        HETERO_CHECK(check_outputs());
        HETERO_TRY(loaded_, load_model(options_.model));
        HETERO_CHECK(prepare());
        if (!options_.resume.empty()) {
            const std::string writer =
                options_.slice.empty() ? "run" : fmt::format("{}-of-{}", slice.index, slice.count);
            HETERO_TRY(auto journal, calib::Journal::open(options_.resume, writer));
            journal_ = std::make_unique<calib::Journal>(std::move(journal));
        }
        campaign_.emplace(*bench_, journal_.get(), tool_.provenance("").version);
        if (!options_.slice.empty()) return run_slice(slice);
        HETERO_CHECK(measure_formats());
        if (options_.searching()) HETERO_CHECK(search());
        return finish();
    }

private:
    [[nodiscard]] double shown_epsilon() const { return options_.epsilon.value_or(usual_epsilon); }

    Status check_outputs() {
        Files files{{options_.model.path}, {options_.output, options_.csv, options_.svg}};
        for (const auto* list : {&options_.texts, &options_.held_out}) {
            for (const std::string& file : *list) files.read.push_back(file.starts_with('@') ? file.substr(1) : file);
        }
        HETERO_CHECK(tool_.check_files(files));
        for (const std::string& path : files.written) {
            if (!path.empty()) HETERO_CHECK(io::check_output_path(path, tool_.overwrite()));
        }
        return {};
    }

    Status prepare() {
        HETERO_TRY(auto texts, read_texts(options_, options_.texts, loaded_));
        HETERO_TRY(auto held_out, read_texts(options_, options_.held_out, loaded_));
        calibration_.resize(texts.size());
        std::iota(calibration_.begin(), calibration_.end(), 0);
        held_out_.resize(held_out.size());
        std::iota(held_out_.begin(), held_out_.end(), texts.size());
        for (const calib::Text& one : held_out) {
            const auto same = std::find_if(texts.begin(), texts.end(),
                                           [&](const calib::Text& other) { return other.tokens == one.tokens; });
            if (same != texts.end()) {
                return fail(Errc::usage, "held-out text {} is text {}: choices must not be made on it", one.name,
                            same->name);
            }
        }
        texts.insert(texts.end(), held_out.begin(), held_out.end());
        for (const std::string& list : options_.formats) {
            for (std::size_t begin = 0; begin <= list.size();) {
                const std::size_t end = std::min(list.find(',', begin), list.size());
                HETERO_TRY(formats_.emplace_back(),
                           parse_format(std::string_view(list).substr(begin, end - begin), loaded_.identity));
                begin = end + 1;
            }
        }
        HETERO_CHECK(make_ladder());
        HETERO_TRY(bench_, calib::Bench::create(loaded_.model, loaded_.identity, std::move(texts),
                                                static_cast<int>(options_.model.threads)));
        return {};
    }

    Status make_ladder() {
        ladder_ = calib::default_ladder();
        ladder_.sinks = static_cast<std::uint32_t>(options_.sinks);
        ladder_.window = static_cast<std::uint32_t>(options_.window);
        if (!options_.k_options.empty()) {
            HETERO_TRY(ladder_.k, quant::parse_specs(options_.k_options));
            ladder_.base_k = (ladder_.k.size() - 1) / 2;
        }
        if (!options_.v_options.empty()) {
            HETERO_TRY(ladder_.v, quant::parse_specs(options_.v_options));
            ladder_.base_v = (ladder_.v.size() - 1) / 2;
        }
        if (!options_.searching()) return {};  // no layer is given any of them
        for (const kv::PartId part : {kv::PartId::k, kv::PartId::v}) {
            for (const quant::Spec& spec : ladder_.of(part)) {
                HETERO_CHECK(quant::find_codec(spec.codec)->check(spec.params, loaded_.identity.head_dim(part)));
            }
        }
        return {};
    }

    // The work that is known beforehand, all of which the last run finds in the journal.
    Status run_slice(calib::Slice slice) {
        std::vector<Job> jobs = format_jobs(), search = calib::search_jobs(ladder_, loaded_.identity.n_layers);
        if (!options_.searching()) search.clear();
        std::vector<std::size_t> all = calibration_;
        all.insert(all.end(), held_out_.begin(), held_out_.end());
        start("measure", jobs.size() * all.size() + search.size() * calibration_.size());
        HETERO_CHECK(campaign_->run_slice(jobs, all, options_.steps, slice, [this] { step(); }));
        HETERO_CHECK(campaign_->run_slice(search, calibration_, options_.search_steps, slice, [this] { step(); }));
        tool_.report()["slice"] = options_.slice;
        tool_.report()["journal_entries"] = journal_->size();
        return {};
    }

    // The floor is the first of them.
    [[nodiscard]] std::vector<Job> format_jobs() const {
        std::vector<Job> jobs{{Job::Kind::floor, {}}};
        for (const Format& format : formats_) jobs.push_back({Job::Kind::drift, format.assignment});
        return jobs;
    }

    Result<std::vector<Outcome>> measure(const std::vector<Job>& jobs, const std::vector<std::size_t>& texts,
                                         std::uint64_t steps) {
        return campaign_->run(jobs, texts, steps, [this] { step(); });
    }

    [[nodiscard]] std::uint64_t steps_inside(const Outcome& outcome) const {
        return static_cast<std::uint64_t>(
            std::count_if(outcome.steps.begin(), outcome.steps.end(),
                          [&](const calib::Step& one) { return one.max_abs_dp <= shown_epsilon(); }));
    }
    [[nodiscard]] Row make_row(std::string name, const Assignment& assignment, const Outcome& on_texts) const {
        Row row;
        row.name = std::move(name);
        row.assignment = assignment;
        row.bits = bench_->bits_per_value(assignment);
        row.calibration = on_texts.figures;
        row.steps_inside = steps_inside(on_texts);
        return row;
    }
    void add_held_out(Row& row, const Outcome& outcome) const {
        if (held_out_.empty()) return;
        row.held_out = outcome.figures;
        row.steps_inside += steps_inside(outcome);
    }

    Status measure_formats() {
        const std::vector<Job> jobs = format_jobs();
        start("formats", jobs.size() * (calibration_.size() + held_out_.size()));
        HETERO_TRY(const auto on_texts, measure(jobs, calibration_, options_.steps));
        HETERO_TRY(const auto on_held_out, measure(jobs, held_out_, options_.steps));
        std::vector<calib::Step> floor = on_texts[0].steps;
        floor.insert(floor.end(), on_held_out[0].steps.begin(), on_held_out[0].steps.end());
        floor_ = calib::summarise(floor);
        if (options_.epsilon && !(*options_.epsilon > gate_value(floor_, options_.strict))) {
            return fail(
                Errc::bad_input,
                "epsilon {} is below the noise of f16 KV itself, {:.3g} on these texts: no format can be held to it",
                *options_.epsilon, gate_value(floor_, options_.strict));
        }
        for (std::size_t i = 0; i < formats_.size(); ++i) {
            rows_.push_back(make_row(formats_[i].name, formats_[i].assignment, on_texts[i + 1]));
            add_held_out(rows_.back(), on_held_out[i + 1]);
        }
        return {};
    }

    Status search() {
        const std::vector<Job> jobs = calib::search_jobs(ladder_, loaded_.identity.n_layers);
        start("sensitivity", jobs.size() * calibration_.size());
        HETERO_TRY(const auto outcomes, measure(jobs, calibration_, options_.search_steps));
        HETERO_TRY(evidence_, calib::gather(*bench_, ladder_, outcomes, calibration_));
        HETERO_CHECK(choose_points());
        // Held-out texts have no part in the choice.
        std::vector<Job> chosen;
        for (const Row& row : rows_) {
            if (row.searched) chosen.push_back({Job::Kind::drift, row.assignment});
        }
        start("held out", chosen.size() * held_out_.size());
        HETERO_TRY(const auto on_held_out, measure(chosen, held_out_, options_.steps));
        std::size_t at = 0;
        for (Row& row : rows_) {
            if (row.searched) add_held_out(row, on_held_out[at++]);
        }
        return {};
    }

    // The budgets of the curve, and the one asked for; the best measured candidate of each.
    Status choose_points() {
        std::uint64_t least = 0, most = 0, values = 0;
        for (std::size_t part = 0; part < evidence_.cost.size(); ++part) {
            const auto [low, high] = std::minmax_element(evidence_.cost[part].begin(), evidence_.cost[part].end());
            least += *low;
            most += *high;
            values += bench_->part_values(part / 2, part % 2 == 0 ? kv::PartId::k : kv::PartId::v);
        }
        const double bits_of = 8.0 / static_cast<double>(values);
        const double last = options_.bits ? 9 : 16;  // above, there is little to choose
        std::vector<double> budgets;
        const double first = std::ceil(static_cast<double>(least) * bits_of / bits_step) * bits_step;
        for (double bits = first; bits <= std::min(last, static_cast<double>(most) * bits_of); bits += bits_step) {
            budgets.push_back(bits);
        }
        if (options_.bits) {
            if (*options_.bits < static_cast<double>(least) * bits_of) {
                return fail(Errc::usage, "--bits {}: the least that these options allow is {:.3f}", *options_.bits,
                            static_cast<double>(least) * bits_of);
            }
            budgets.push_back(*options_.bits);
        }
        std::sort(budgets.begin(), budgets.end());
        budgets.erase(std::unique(budgets.begin(), budgets.end()), budgets.end());
        std::vector<std::vector<Assignment>> offered;
        for (const double bits : budgets) {
            HETERO_TRY(offered.emplace_back(),
                       calib::candidates(ladder_, evidence_, static_cast<std::uint64_t>(bits / bits_of),
                                         bits == options_.bits));
        }
        std::vector<Job> jobs;
        for (const auto& group : offered) {
            for (const Assignment& one : group) jobs.push_back({Job::Kind::drift, one});
        }
        start("candidates", jobs.size() * calibration_.size());
        HETERO_TRY(const auto outcomes, measure(jobs, calibration_, options_.steps));
        std::size_t at = 0;
        std::optional<Row> best;  // a smaller one that is better serves a larger budget too
        for (std::size_t i = 0; i < budgets.size(); ++i) {
            for (const Assignment& one : offered[i]) {
                Row row = make_row("", one, outcomes[at++]);
                if (!best || row.calibration->kl_mean < best->calibration->kl_mean) best = std::move(row);
            }
            if (!best) continue;
            Row row = *best;
            row.searched = true;
            row.name = fmt::format("auto {:g}", budgets[i]);
            const bool passes = !options_.epsilon || gate_value(*row.calibration, options_.strict) <= *options_.epsilon;
            if (options_.bits ? budgets[i] == *options_.bits : passes && !plan_row_) plan_row_ = rows_.size();
            rows_.push_back(std::move(row));
        }
        return {};
    }

    Status finish() {
        Json& report = tool_.report();
        report["model"] = loaded_.identity.model_id;
        report["texts"] = text_names(calibration_);
        report["held_out"] = text_names(held_out_);
        report["floor"] = to_json(floor_);
        report["formats"] = to_json(rows_);
        Status verdict = {};
        if (options_.searching()) {
            if (!plan_row_) {
                return fail(Errc::check_failed, "over epsilon: no choice of these options stays within {}",
                            *options_.epsilon);
            }
            const kv::PrecisionPlan plan = make_plan(rows_[*plan_row_]);
            report["plan"] = rows_[*plan_row_].name;
            report["bits_per_value"] = plan.bits_per_value;
            HETERO_CHECK(write(options_.output, kv::to_toml(plan)));
            tool_.note("{}: {}, {:.3f} bits per value{}", options_.output.empty() ? "no -o, no plan" : options_.output,
                       rows_[*plan_row_].name, plan.bits_per_value,
                       !plan.gate          ? ", no --epsilon to certify it"
                       : plan.gate->passed ? ", certified"
                                           : ", not certified");
            if (plan.gate && !plan.gate->passed) {
                verdict = fail(Errc::check_failed, "over epsilon: {} reaches {:.3g} on the {} texts, allowed are {}",
                               rows_[*plan_row_].name, worst(rows_[*plan_row_]),
                               plan.held_out && gate_value(*plan.held_out, options_.strict) == worst(rows_[*plan_row_])
                                   ? "held-out"
                                   : "calibration",
                               *options_.epsilon);
            }
        }
        HETERO_CHECK(write(options_.csv, to_csv(rows_, shown_epsilon())));
        HETERO_CHECK(write(options_.svg, to_svg(rows_, loaded_.identity.model_id)));
        tool_.note("noise of f16 KV itself: KL mean {:.2e}, max {:.2e}; E_p p99 {:.4f}, max {:.4f}", floor_.kl_mean,
                   floor_.kl_max, floor_.dp_p99, floor_.dp_max);
        if (!tool_.json()) HETERO_CHECK(tool_.print(to_markdown(rows_, shown_epsilon())));
        return verdict;
    }

    // Where a file is wanted.
    [[nodiscard]] Status write(const std::string& path, std::string_view text) const {
        return path.empty() ? Status{} : tool_.write_file(path, text, io::shared_file);
    }

    [[nodiscard]] double worst(const Row& row) const {
        const double calibration = gate_value(*row.calibration, options_.strict);
        return row.held_out ? std::max(calibration, gate_value(*row.held_out, options_.strict)) : calibration;
    }

    [[nodiscard]] kv::PrecisionPlan make_plan(const Row& row) const {
        kv::PrecisionPlan plan;
        const kv::ProvenanceEntry program = tool_.provenance("");
        plan.tool = fmt::format("{} {}", program.tool, program.version);
        plan.model_name = to_valid_utf8(loaded_.identity.model_id);
        plan.arch_digest = loaded_.identity.arch_digest;
        plan.lineage = loaded_.identity.lineage;
        plan.weights_digest = loaded_.identity.weights_digest;
        plan.sinks = ladder_.sinks;
        plan.window = ladder_.window;
        for (const kv::PartId part : {kv::PartId::k, kv::PartId::v}) {
            for (const kv::Scheme& scheme : row.assignment.of(part)) {
                (part == kv::PartId::k ? plan.k : plan.v).push_back({scheme.codec, scheme.params});
            }
        }
        plan.bits_per_value = row.bits;
        for (std::size_t i = 0; i < bench_->texts().size(); ++i) {
            const calib::Text& text = bench_->texts()[i];
            plan.texts.push_back({text.name, calib::text_digest(text, text.steps()), text.prompt_tokens, text.steps(),
                                  i >= calibration_.size()});
        }
        plan.calibration = row.calibration;
        plan.held_out = row.held_out;
        plan.floor = floor_;
        if (options_.epsilon) {
            plan.gate = kv::PlanGate{*options_.epsilon, options_.strict, worst(row) <= *options_.epsilon};
        }
        return plan;
    }

    [[nodiscard]] Json text_names(const std::vector<std::size_t>& indices) const {
        Json names = Json::array();
        for (const std::size_t i : indices) names.push_back(bench_->texts()[i].name);
        return names;
    }

    void start(const char* label, std::size_t total) {
        done_ = 0;
        progress_.reset();
        progress_ = std::make_unique<Progress>(tool_, label, total, "measurements");
    }
    void step() { progress_->update(++done_); }

    Tool& tool_;
    const CalibrateOptions& options_;
    LoadedModel loaded_;
    std::vector<Format> formats_;
    calib::Ladder ladder_;
    std::unique_ptr<calib::Bench> bench_;
    std::unique_ptr<calib::Journal> journal_;
    std::optional<calib::Campaign> campaign_;
    std::vector<std::size_t> calibration_, held_out_;  // indices of texts
    kv::DriftFigures floor_;
    calib::Evidence evidence_;
    std::vector<Row> rows_;
    std::optional<std::size_t> plan_row_;
    std::unique_ptr<Progress> progress_;
    std::size_t done_ = 0;
};

}  // namespace

Status run_calibrate(Tool& tool, const CalibrateOptions& options) { return Calibration(tool, options).run(); }

}  // namespace hetero::tool
