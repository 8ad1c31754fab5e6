#include "base/trace.h"

#include <doctest/doctest.h>

#include <string>
#include <thread>
#include <vector>

using namespace hetero;
using namespace std::chrono_literals;

namespace {

std::size_t count(const std::string& text, const std::string& part) {
    std::size_t n = 0;
    for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
    return n;
}

}  // namespace

// The recorder is one for the process, and cannot be stopped: one test in order.
TEST_CASE("spans are kept from start() on, and shifted to the time line") {
    { const trace::Span span("decode", "step {}", 1); }
    trace::add("decode", "early", trace::Clock::time_point(1ms), trace::Clock::time_point(2ms));
    CHECK_FALSE(trace::on());
    CHECK(count(trace::document("tool", 0), "\"ph\":\"X\"") == 0);

    trace::start();
    CHECK(trace::on());
    trace::add("decode", "a \"name\"\n", trace::Clock::time_point(5ms), trace::Clock::time_point(7ms));
    trace::add("import", "layer 0", trace::Clock::time_point(1ms), trace::Clock::time_point(1ms + 250ns));
    trace::add("decode", "later", trace::Clock::time_point(8ms), trace::Clock::time_point(9ms));
    { const trace::Span span("import", "layer {}", 1); }
    trace::set_offset(-1500ns);
    const std::string text = trace::document("tool", 3);
    CHECK(count(text, "\"ph\":\"X\"") == 4);
    CHECK(count(text, "\"pid\":3") == 7);  // and three names
    CHECK(text.find("{\"ph\":\"X\",\"name\":\"a \\\"name\\\" \",\"cat\":\"decode\",\"pid\":3,\"tid\":1,\"ts\":4998.500,"
                    "\"dur\":2000.000}") != std::string::npos);
    CHECK(text.find("\"name\":\"layer 0\",\"cat\":\"import\",\"pid\":3,\"tid\":2,\"ts\":998.500,\"dur\":0.250") !=
          std::string::npos);
    CHECK(trace::on_time_line(trace::Clock::time_point(2us)) == 500ns);

    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i)
        threads.emplace_back([i] {
            for (int j = 0; j < 100; ++j) const trace::Span span("verify", "{} {}", i, j);
        });
    for (std::thread& thread : threads) thread.join();
    CHECK(count(trace::document("tool", 3), "\"ph\":\"X\"") == 404);
}
