#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <map>

#include "base/errno_text.h"
#include "plan.h"

extern char** environ;

namespace hetero::tool {
namespace {

constexpr std::size_t max_svg_bytes = 16U << 20;
constexpr int most_drawn = 3, loads = 8;  // deployments of a kind; up to the capacity

std::string block_name(std::string name) {
    std::replace(name.begin(), name.end(), '-', '_');
    return name;
}

// What gnuplot says to a script on its stdin; both ends are small, so that the script fits the pipe or is written as it
// is read.
Result<std::string> gnuplot(const std::string& script) {
    std::array<int, 2> in{}, out{};
    if (::pipe2(in.data(), O_CLOEXEC) != 0) return fail(Errc::resource, "gnuplot: no pipe: {}", errno_text(errno));
    if (::pipe2(out.data(), O_CLOEXEC) != 0) {
        const int error = errno;
        ::close(in[0]);
        ::close(in[1]);
        return fail(Errc::resource, "gnuplot: no pipe: {}", errno_text(error));
    }
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, in[0], 0);
    posix_spawn_file_actions_adddup2(&actions, out[1], 1);
    std::string program = "gnuplot";
    std::array<char*, 2> argv{program.data(), nullptr};
    pid_t child = 0;
    const int error = ::posix_spawnp(&child, "gnuplot", &actions, nullptr, argv.data(), environ);
    posix_spawn_file_actions_destroy(&actions);
    ::close(in[0]);
    ::close(out[1]);
    if (error != 0) {
        ::close(in[1]);
        ::close(out[0]);
        return fail(Errc::resource,
                    "--plot needs gnuplot, which cannot be started: {}; install it, or leave --plot out",
                    errno_text(error));
    }
    std::string text;
    std::size_t written = 0;
    std::array<char, 16384> buffer{};
    ::fcntl(in[1], F_SETFL, O_NONBLOCK);
    bool writing = true;
    for (;;) {
        std::array<pollfd, 2> ends{pollfd{out[0], POLLIN, 0}, pollfd{writing ? in[1] : -1, POLLOUT, 0}};
        if (::poll(ends.data(), 2, -1) < 0 && errno != EINTR) break;
        if (writing && ends[1].revents != 0) {
            const ssize_t n = ::write(in[1], script.data() + written, script.size() - written);
            if (n > 0) written += static_cast<std::size_t>(n);
            if (written == script.size() || (n < 0 && errno != EAGAIN && errno != EINTR)) {
                ::close(in[1]);
                writing = false;
            }
        }
        if (ends[0].revents == 0) continue;
        const ssize_t n = ::read(out[0], buffer.data(), buffer.size());
        if (n == 0 || (n < 0 && errno != EINTR)) break;
        if (n > 0 && text.size() < max_svg_bytes) text.append(buffer.data(), static_cast<std::size_t>(n));
    }
    if (writing) ::close(in[1]);
    ::close(out[0]);
    int status = 0;
    while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0 || text.find("</svg>") == std::string::npos)
        return fail(Errc::resource, "gnuplot made no plot (status {})", WIFEXITED(status) ? WEXITSTATUS(status) : -1);
    return text;
}

}  // namespace

Result<std::string> plan_plot(const plan::Problem& problem, const plan::SearchResult& result,
                              const plan::Decision& decision) {
    struct Point {
        double itl_ms, throughput;
    };
    std::map<std::string, std::vector<Point>> kinds;
    std::vector<Point> all;
    const bool priced = std::all_of(problem.sides.begin(), problem.sides.end(),
                                    [](const auto& side) { return side.usd_per_hour.has_value(); });
    // Each of the best of a kind at several loads: what it yields and what users see then belong together.
    std::map<plan::Kind, int> drawn;
    for (const plan::Candidate& candidate : result.candidates) {
        if (!candidate.figures || drawn[candidate.kind]++ >= most_drawn) continue;
        const double cost = priced ? *candidate.usd_per_hour : candidate.machines;
        for (int i = 1; i <= loads; ++i) {
            HETERO_TRY(const plan::Figures figures,
                       plan::play(problem, candidate, candidate.capacity_per_s * i / loads));
            const Point point{figures.itl_p50_s * 1e3, figures.output_tokens_per_s / cost};
            kinds[std::string(kind_name(candidate.kind))].push_back(point);
            all.push_back(point);
        }
    }
    if (all.empty()) return fail(Errc::check_failed, "nothing to plot: nothing was played");
    std::sort(all.begin(), all.end(), [](const Point& a, const Point& b) {
        return a.itl_ms != b.itl_ms ? a.itl_ms < b.itl_ms : a.throughput > b.throughput;
    });
    std::string script = "set terminal svg size 1200,520 dynamic enhanced background rgb 'white'\n";
    for (const auto& [name, points] : kinds) {
        script += fmt::format("${} << E\n", block_name(name));
        for (const Point& point : points) script += fmt::format("{} {}\n", point.itl_ms, point.throughput);
        script += "E\n";
    }
    script += "$front << E\n";
    double best = 0;
    for (const Point& point : all) {
        if (point.throughput <= best) continue;
        best = point.throughput;
        script += fmt::format("{} {}\n", point.itl_ms, point.throughput);
    }
    script += "E\n$knee << E\n";
    const plan::Candidate& shown =
        result.candidates[decision.chosen.value_or(decision.best_colocated.value_or(decision.best_split.value_or(0)))];
    for (int i = 1; i <= 12; ++i) {
        const double rate = shown.capacity_per_s * i / 12;
        HETERO_TRY(const plan::Figures figures, plan::play(problem, shown, rate));
        script += fmt::format("{} {} {}\n", rate, figures.ttft_p99_s * 1e3, figures.itl_p99_s * 1e3);
    }
    script += fmt::format(
        "E\nset multiplot layout 1,2\nset grid\nset key below\nset logscale x\nset xlabel 'between tokens, median, ms' "
        "offset 0,0.6\nset ylabel 'output tokens/s per {}'\nplot $front with steps dt 2 lc rgb '#888888' title 'Pareto "
        "front'",
        priced ? "USD an hour" : "machine");
    for (const auto& [name, points] : kinds) {
        script += fmt::format(", ${} with points pt 7 title '{}'", block_name(name), name);
    }
    script += "\nunset logscale x\nset logscale y\nset ylabel '99th percentile, ms'\n";
    // Where the knee is: what the goals are, and the rate up to which they are kept.
    for (const auto& [goal_s, color] : {std::pair{problem.goals.ttft_s, 1}, {problem.goals.itl_s, 2}})
        if (std::isfinite(goal_s))
            script += fmt::format("set arrow from graph 0, first {0} to graph 1, first {0} nohead dt 2 lc {1}\n",
                                  goal_s * 1e3, color);
    if (problem.goals.any() && shown.goodput_per_s > 0)
        script += fmt::format("set arrow from first {0}, graph 0 to first {0}, graph 1 nohead dt 2 lc rgb '#888888'\n",
                              shown.goodput_per_s);
    script += fmt::format(
        "set xlabel 'requests/s, {}{}' offset 0,0.6\nplot $knee using 1:2 with linespoints pt 7 lc 1 title 'first "
        "token', $knee "
        "using 1:3 with linespoints pt 5 lc 2 title 'between tokens'\nunset multiplot\n",
        kind_name(shown.kind), problem.goals.any() ? "; dashed: goals, goodput" : "");
    return gnuplot(script);
}

}  // namespace hetero::tool
