#include "plan.h"

#include "common/build_info.h"
#include "plan/deploy.h"
#include "plan/practices.h"

namespace hetero::tool {
namespace {

Status check_usage(const Tool& tool, const PlanOptions& options) {
    if (!options.emit_file.empty() && options.emit.empty()) return fail(Errc::usage, "--emit-file goes with --emit");
    if (!options.emit.empty() && options.emit_file.empty() && tool.json())
        return fail(Errc::usage, "--json and --emit both go to stdout: give --emit-file");
    if (!options.emit.empty() && options.emit_file.empty() && options.explain)
        return fail(Errc::usage, "--explain and --emit both go to stdout: give --emit-file");
    HETERO_CHECK(tool.check_files({{options.model, options.hw, options.hw_decode, options.trace, options.stages,
                                    options.stages_decode, options.certificate},
                                   {options.plan_file, options.emit_file, options.plot}}));
    for (const std::string& path : {options.plan_file, options.emit_file, options.plot})
        if (!path.empty()) HETERO_CHECK(io::check_output_path(path, tool.overwrite()));
    return {};
}

std::string explanation(const std::vector<plan::Practice>& practices) {
    std::string out;
    for (const plan::Practice& one : practices)
        out += fmt::format("{}  {:<4} {}: {}\n", one.number, one.kept ? "kept" : "NOT", one.text, one.why);
    return out;
}

}  // namespace

Status run_plan(Tool& tool, const PlanOptions& options) {
    HETERO_CHECK(check_usage(tool, options));
    HETERO_TRY(const Stated stated, state_problem(tool, options));
    const plan::Problem& problem = stated.problem;
    HETERO_TRY(plan::SearchResult result, plan::search(problem));
    const plan::Decision decision = plan::decide(problem, result);
    plan::Candidate* chosen = decision.chosen ? &result.candidates[*decision.chosen] : nullptr;
    if (chosen != nullptr && options.requests != problem.simulated_requests && chosen->figures) {
        HETERO_TRY(chosen->figures, plan::play(problem, *chosen, chosen->figures->rate_per_s,
                                               static_cast<std::uint32_t>(options.requests)));
    }
    const auto rows = static_cast<std::size_t>(options.rows);
    report_plan(tool.report(), problem, result, decision, rows);
    const bool refused = decision.verdict == plan::Verdict::refuse;
    std::string svg;  // before anything is written
    if (!options.plot.empty() && refused) tool.note("no plot: no deployment keeps the goals");
    if (!options.plot.empty() && !refused) {
        HETERO_TRY(svg, plan_plot(problem, result, decision));
    }
    std::string text;
    if (options.emit.empty() || !options.emit_file.empty()) {
        text = plan_table(problem, result, decision, rows);
    } else if (!refused) {  // the script alone goes to stdout
        tool.note("{}: {}", verdict_name(decision.verdict), decision.reasons.front());
    }
    if (chosen != nullptr) {
        plan::DeploymentPlan deployment = plan::plan_of(problem, *chosen, decision);
        deployment.tool = fmt::format("{} {}", tool.name(), kVersion);
        if (chosen->wire.name == "plan") deployment.precision_plan = stated.certificate;
        if (!options.plan_file.empty())
            HETERO_CHECK(tool.write_file(options.plan_file, plan::to_toml(deployment), io::shared_file));
        if (!options.emit.empty()) {
            HETERO_TRY(const std::string script, plan::slurm_script(deployment, options.model));
            if (options.emit_file.empty()) {
                text += script;
            } else {
                HETERO_CHECK(tool.write_file(options.emit_file, script, io::shared_file));
            }
        }
        if (options.explain) {
            const auto kept = plan::practices(problem, *chosen, !stated.certificate.empty());
            Json list = Json::array();
            for (const plan::Practice& one : kept)
                list.push_back({{"number", one.number}, {"practice", one.text}, {"kept", one.kept}, {"why", one.why}});
            tool.report()["practices"] = std::move(list);
            text += fmt::format("\n{}", explanation(kept));
        }
    }
    if (!svg.empty()) HETERO_CHECK(tool.write_file(options.plot, svg, io::shared_file));
    tool.report_is_complete();
    if (!tool.json()) HETERO_CHECK(tool.print(text));
    if (refused) return fail(Errc::check_failed, "REFUSE: {}", decision.reasons.front());
    return {};
}

}  // namespace hetero::tool
