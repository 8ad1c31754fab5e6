#include "transport/blocked_signals.h"

#include <doctest/doctest.h>

#include <stdexcept>

using hetero::transport::BlockedSignals;

namespace {

bool blocked(int signal) {
    sigset_t now;
    pthread_sigmask(SIG_SETMASK, nullptr, &now);
    return sigismember(&now, signal) == 1;
}

}  // namespace

TEST_CASE("signals are blocked in the scope, and as before after it, however it is left") {
    sigset_t own;
    sigemptyset(&own);
    sigaddset(&own, SIGUSR2);
    pthread_sigmask(SIG_BLOCK, &own, nullptr);
    REQUIRE_FALSE(blocked(SIGTERM));
    try {
        const BlockedSignals scope;
        CHECK(blocked(SIGTERM));
        CHECK(blocked(SIGINT));
        throw std::runtime_error("no thread");
    } catch (const std::runtime_error&) {
    }
    CHECK_FALSE(blocked(SIGTERM));
    CHECK_FALSE(blocked(SIGINT));
    CHECK(blocked(SIGUSR2));
    pthread_sigmask(SIG_UNBLOCK, &own, nullptr);
}
