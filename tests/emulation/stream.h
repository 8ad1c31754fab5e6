// What the runtime's calls of an emulated device share.
#pragma once
#include <deque>
#include <functional>
#include <memory>
#include <mutex>

#include "include/cuda_runtime.h"

namespace hetero::emulation {

// Held by every call; streams run in the thread that waits for them.
extern std::recursive_mutex mutex;
extern cudaError_t broken;  // after a fault of a kernel every call fails with it
extern bool capturing_anywhere;
extern thread_local int device_in_use;
extern std::size_t graph_launches;

// One call.
class Call {
public:
    Call();

private:
    std::lock_guard<std::recursive_mutex> lock_;
};

struct Queue;
// What a stream was given: something to do, or to wait until another stream has come to a place.
struct Item {
    std::function<cudaError_t()> run;
    std::shared_ptr<Queue> other;
    std::size_t until = 0;
};
struct Queue {
    std::deque<Item> items;
    std::size_t given = 0, done = 0;
};
struct Stream {
    int device = 0;
    std::shared_ptr<Queue> queue = std::make_shared<Queue>();
    Graph* capture = nullptr;  // into which
    std::size_t lane = 0;      // of it
};

// Puts it into the stream, or into what the stream's work is recorded in; runs it unless streams are late. `wait_lane`:
// of a capture, the lane that is waited for.
cudaError_t give(Stream& stream, Item item, std::size_t wait_lane = 0);
cudaError_t drain_all();  // of every stream

}  // namespace hetero::emulation
