// Two ends of a link in memory, in real time.
#pragma once
#include <atomic>
#include <thread>

#include "memory_channel.h"
#include "transport/gate.h"
#include "transport/receiver.h"
#include "transport/sender.h"

namespace hetero::test {

// Both ends and the thread that drives them.
struct Wire {
    MemoryPair pair{1};
    transport::TimePoint begin = std::chrono::steady_clock::now();
    transport::Gate gate;
    transport::Link sender_link{pair.end(0), link_options(transport::WireRole::sender), begin};
    transport::Link receiver_link{pair.end(1), link_options(transport::WireRole::receiver), begin};
    transport::Sender sender{sender_link};
    transport::Receiver receiver{receiver_link};
    std::atomic<bool> stop = false;
    std::thread mover;

    Wire() {
        mover = std::thread([this] {
            while (!stop.load()) {
                {
                    auto lock = gate.enter_last();
                    const transport::TimePoint now = std::chrono::steady_clock::now();
                    pair.set_time(now);
                    sender.step(now);
                    receiver.step(now);
                    gate.changed();
                    gate.rest(lock, 1e-4);
                }
                std::this_thread::yield();
            }
        });
    }
    ~Wire() {
        stop = true;
        mover.join();
    }
};

}  // namespace hetero::test
