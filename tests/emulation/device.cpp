// The runtime's calls: devices, streams, events, graphs.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "include/cuda_runtime.h"
#include "memory.h"

namespace hetero::emulation {

// What a stream was given: something to do, or to wait until another stream has come to a place.
struct Item {
    std::function<cudaError_t()> run;
    std::shared_ptr<struct Queue> other;
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
// Work of several streams; lane 0 is that of the stream where the capture began.
struct Graph {
    struct Lane {
        std::vector<Item> items;             // waits: `until` of lane `lane`
        std::vector<std::size_t> wait_lane;  // of each item
        std::vector<std::size_t> seen;       // of every lane: how far this one has waited for it
    };
    std::vector<Lane> lanes;
    std::vector<Stream*> streams;
    bool invalid = false;
};
struct Event {
    std::shared_ptr<Queue> queue;
    std::size_t until = 0;
    std::shared_ptr<double> ms = std::make_shared<double>(-1);
    Graph* capture = nullptr;
    std::size_t lane = 0;
    std::vector<std::size_t> seen;
};

namespace {

std::recursive_mutex mutex;
Settings current;
thread_local int device_in_use = 0;
cudaError_t broken = cudaSuccess;  // after a fault of a kernel every call fails
std::size_t peak = 0, launches = 0, graph_launches = 0;
int failing = -1;
std::map<void*, std::size_t> host_memory;

// Runs a queue until `until` of its items are done.
cudaError_t drain(Queue& queue, std::size_t until) {
    while (queue.done < until && !queue.items.empty()) {
        Item item = std::move(queue.items.front());
        queue.items.pop_front();
        if (item.other != nullptr) (void)drain(*item.other, item.until);
        if (item.run && broken == cudaSuccess) {
            const DeviceAccess access;
            if (const cudaError_t error = item.run(); error != cudaSuccess) broken = error;
        }
        ++queue.done;
    }
    return broken;
}

cudaError_t give(Stream& stream, Item item, std::size_t wait_lane = 0) {
    if (stream.capture != nullptr) {
        Graph::Lane& lane = stream.capture->lanes[stream.lane];
        lane.items.push_back(std::move(item));
        lane.wait_lane.push_back(wait_lane);
        return broken;
    }
    stream.queue->items.push_back(std::move(item));
    ++stream.queue->given;
    return current.late ? broken : drain(*stream.queue, stream.queue->given);
}

void see(std::vector<std::size_t>& to, std::size_t lane, std::size_t until) {
    if (to.size() <= lane) to.resize(lane + 1);
    to[lane] = std::max(to[lane], until);
}

// The other lanes run as late as lane 0 allows.
cudaError_t replay(const Graph& graph) {
    std::vector<std::shared_ptr<Queue>> queues;
    for (std::size_t i = 0; i < graph.lanes.size(); ++i) queues.push_back(std::make_shared<Queue>());
    for (std::size_t i = 0; i < graph.lanes.size(); ++i) {
        const Graph::Lane& lane = graph.lanes[i];
        for (std::size_t j = 0; j < lane.items.size(); ++j) {
            Item item = lane.items[j];
            if (!item.run) item.other = queues[lane.wait_lane[j]];
            queues[i]->items.push_back(std::move(item));
            ++queues[i]->given;
        }
    }
    return drain(*queues[0], queues[0]->given);
}

bool capturing_anywhere = false;

double now_ms() {
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

void configure(const Settings& wanted) {
    const std::lock_guard lock(mutex);
    current = wanted;
    apply_strict_host();
}
const Settings& settings() { return current; }

Usage usage() {
    const std::lock_guard lock(mutex);
    Usage all;
    for (int device = 0; device < current.devices; ++device) all.bytes += used_bytes(device);
    all.peak_bytes = peak;
    all.launches = launches;
    all.graph_launches = graph_launches;
    all.allocations = device_allocations();
    return all;
}

void fail_allocation(int after) { failing = after; }

cudaError_t launch(dim3 grid, dim3 block, std::size_t shared_bytes, Stream* stream, const char* name,
                   std::function<void()> kernel) {
    const std::lock_guard lock(mutex);
    if (broken != cudaSuccess) return broken;
    const std::uint64_t threads = std::uint64_t{block.x} * block.y * block.z;
    if (threads == 0 || threads > 1024 || block.z > 64 || grid.y > 65535 || grid.z > 65535 || grid.x > 0x7FFFFFFF ||
        grid.x == 0 || grid.y == 0 || grid.z == 0)
        return cudaErrorInvalidConfiguration;
    if (shared_bytes > std::size_t{99} << 10) return cudaErrorInvalidValue;  // the least of compute capability 8 and 9
    return give(*stream, {[=, kernel = std::move(kernel)] {
                              ++launches;
                              const bool done =
                                  run_grid(grid, block, shared_bytes, current.order, current.seed + launches, kernel);
                              if (!done) std::fprintf(stderr, "emulation: in kernel %s\n", name);
                              return done ? cudaSuccess : cudaErrorLaunchFailure;
                          },
                          nullptr, 0});
}

}  // namespace hetero::emulation

using namespace hetero::emulation;

const char* cudaGetErrorString(cudaError_t error) {
    switch (error) {
        case cudaSuccess:
            return "no error";
        case cudaErrorInvalidValue:
            return "invalid argument";
        case cudaErrorMemoryAllocation:
            return "out of memory";
        case cudaErrorInvalidConfiguration:
            return "invalid configuration argument";
        case cudaErrorNoDevice:
            return "no CUDA-capable device is detected";
        case cudaErrorInvalidDevice:
            return "invalid device ordinal";
        case cudaErrorInvalidResourceHandle:
            return "invalid resource handle";
        case cudaErrorNotReady:
            return "device not ready";
        case cudaErrorLaunchFailure:
            return "unspecified launch failure";
        case cudaErrorStreamCaptureUnsupported:
            return "operation not permitted when stream is capturing";
        case cudaErrorStreamCaptureInvalidated:
            return "operation failed due to a previous error during capture";
        case cudaErrorStreamCaptureUnjoined:
            return "capturing stream has unjoined work";
    }
    return "unrecognized error code";
}
cudaError_t cudaGetLastError() { return broken; }

cudaError_t cudaGetDeviceCount(int* count) {
    *count = current.devices;
    return current.devices > 0 ? cudaSuccess : cudaErrorNoDevice;
}
cudaError_t cudaSetDevice(int device) {
    if (device < 0 || device >= current.devices) return cudaErrorInvalidDevice;
    device_in_use = device;
    return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
    if (device < 0 || device >= current.devices) return cudaErrorInvalidDevice;
    *properties = {};
    std::snprintf(properties->name, sizeof properties->name, "emulated on the CPU");
    properties->totalGlobalMem = current.total_bytes;
    properties->sharedMemPerBlockOptin = std::size_t{99} << 10;
    properties->major = current.capability / 10;
    properties->minor = current.capability % 10;
    properties->multiProcessorCount = 4;
    properties->l2CacheSize = 4 << 20;
    return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) {
    *value = 0;
    return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
    *version = 13000;
    return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
    *version = 13000;
    return cudaSuccess;
}
cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
    const std::lock_guard lock(mutex);
    *total = current.total_bytes;
    *free = current.total_bytes - used_bytes(device_in_use);
    return broken;
}
cudaError_t cudaMalloc(void** memory, std::size_t bytes) {
    const std::lock_guard lock(mutex);
    if (broken != cudaSuccess) return broken;
    if (capturing_anywhere) return cudaErrorStreamCaptureUnsupported;
    if (failing >= 0 && failing-- == 0) return cudaErrorMemoryAllocation;
    if (!allocate_device(device_in_use, bytes, memory)) return cudaErrorMemoryAllocation;
    std::size_t used = 0;
    for (int device = 0; device < current.devices; ++device) used += used_bytes(device);
    peak = std::max(peak, used);
    return cudaSuccess;
}

namespace {

std::vector<std::weak_ptr<Queue>> all_queues;

cudaError_t drain_all() {
    for (const auto& one : all_queues)
        if (const auto queue = one.lock()) (void)drain(*queue, queue->given);
    return broken;
}

}  // namespace

cudaError_t cudaFree(void* memory) {
    const std::lock_guard lock(mutex);
    if (memory == nullptr) return cudaSuccess;
    if (capturing_anywhere) return cudaErrorStreamCaptureUnsupported;
    (void)drain_all();
    if (!canaries_whole()) {
        std::fprintf(stderr, "emulation: device memory was written beyond an allocation\n");
        std::abort();
    }
    return free_device(memory) ? cudaSuccess : cudaErrorInvalidValue;
}
cudaError_t cudaHostAlloc(void** memory, std::size_t bytes, unsigned) {
    const std::lock_guard lock(mutex);
    if (failing >= 0 && failing-- == 0) return cudaErrorMemoryAllocation;
    *memory = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    if (*memory == nullptr) return cudaErrorMemoryAllocation;
    host_memory[*memory] = bytes;
    return cudaSuccess;
}
cudaError_t cudaFreeHost(void* memory) {
    const std::lock_guard lock(mutex);
    if (memory == nullptr) return cudaSuccess;
    (void)drain_all();
    if (host_memory.erase(memory) == 0) return cudaErrorInvalidValue;
    std::free(memory);
    return cudaSuccess;
}
cudaError_t cudaHostRegister(void* memory, std::size_t bytes, unsigned) {
    const std::lock_guard lock(mutex);
    if (memory == nullptr || bytes == 0) return cudaErrorInvalidValue;
    return host_memory.emplace(memory, bytes).second ? cudaSuccess : cudaErrorInvalidValue;
}
cudaError_t cudaHostUnregister(void* memory) {
    const std::lock_guard lock(mutex);
    (void)drain_all();
    return host_memory.erase(memory) == 1 ? cudaSuccess : cudaErrorInvalidValue;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
    const std::lock_guard lock(mutex);
    if (bytes == 0) return broken;
    if (where(to, bytes) == Where::broken || where(from, bytes) == Where::broken) return cudaErrorInvalidValue;
    return give(*stream, {[=] {
                              std::memmove(to, from, bytes);
                              return cudaSuccess;
                          },
                          nullptr, 0});
}
cudaError_t cudaMemcpy2DAsync(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch,
                              std::size_t width, std::size_t rows, cudaMemcpyKind, cudaStream_t stream) {
    const std::lock_guard lock(mutex);
    if (width == 0 || rows == 0) return broken;
    if (width > to_pitch || width > from_pitch) return cudaErrorInvalidValue;
    if (where(to, (rows - 1) * to_pitch + width) == Where::broken ||
        where(from, (rows - 1) * from_pitch + width) == Where::broken)
        return cudaErrorInvalidValue;
    return give(*stream, {[=] {
                              for (std::size_t row = 0; row < rows; ++row)
                                  std::memmove(static_cast<std::byte*>(to) + row * to_pitch,
                                               static_cast<const std::byte*>(from) + row * from_pitch, width);
                              return cudaSuccess;
                          },
                          nullptr, 0});
}
cudaError_t cudaMemsetAsync(void* memory, int byte, std::size_t bytes, cudaStream_t stream) {
    const std::lock_guard lock(mutex);
    if (bytes == 0) return broken;
    if (where(memory, bytes) == Where::broken) return cudaErrorInvalidValue;
    return give(*stream, {[=] {
                              std::memset(memory, byte, bytes);
                              return cudaSuccess;
                          },
                          nullptr, 0});
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
    const std::lock_guard lock(mutex);
    *stream = new Stream;
    (*stream)->device = device_in_use;
    all_queues.push_back((*stream)->queue);
    return broken;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    const std::lock_guard lock(mutex);
    (void)drain(*stream->queue, stream->queue->given);
    std::erase_if(all_queues, [&](const auto& one) { return one.expired() || one.lock() == stream->queue; });
    delete stream;
    return broken;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    const std::lock_guard lock(mutex);
    if (stream->capture != nullptr) {
        stream->capture->invalid = true;
        return cudaErrorStreamCaptureUnsupported;
    }
    return drain(*stream->queue, stream->queue->given);
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
    const std::lock_guard lock(mutex);
    if (event->capture != nullptr) {
        if (stream->capture == nullptr) {  // joins
            stream->capture = event->capture;
            stream->lane = stream->capture->lanes.size();
            stream->capture->lanes.emplace_back();
            stream->capture->streams.push_back(stream);
        }
        if (stream->capture != event->capture) return cudaErrorStreamCaptureUnsupported;
        if (event->lane == stream->lane) return broken;
        Graph::Lane& lane = stream->capture->lanes[stream->lane];
        see(lane.seen, event->lane, event->until);
        for (std::size_t i = 0; i < event->seen.size(); ++i) see(lane.seen, i, event->seen[i]);
        return give(*stream, {nullptr, nullptr, event->until}, event->lane);
    }
    if (event->queue == nullptr) return broken;  // never recorded: nothing to wait for
    if (stream->capture != nullptr) return cudaErrorStreamCaptureUnsupported;
    return give(*stream, {nullptr, event->queue, event->until});
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
    *event = new Event;
    return broken;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
    const std::lock_guard lock(mutex);
    delete event;
    return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    const std::lock_guard lock(mutex);
    event->capture = stream->capture;
    if (stream->capture != nullptr) {
        const Graph::Lane& lane = stream->capture->lanes[stream->lane];
        event->lane = stream->lane;
        event->until = lane.items.size();
        event->seen = lane.seen;
        event->queue = nullptr;
        return broken;
    }
    event->ms = std::make_shared<double>(-1);
    event->queue = stream->queue;
    event->until = stream->queue->given + 1;
    return give(*stream, {[ms = event->ms] {
                              *ms = now_ms();
                              return cudaSuccess;
                          },
                          nullptr, 0});
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    const std::lock_guard lock(mutex);
    if (event->capture != nullptr) return cudaErrorStreamCaptureUnsupported;
    return event->queue == nullptr ? broken : drain(*event->queue, event->until);
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t begin, cudaEvent_t end) {
    const std::lock_guard lock(mutex);
    if (begin->queue == nullptr || end->queue == nullptr) return cudaErrorInvalidResourceHandle;
    if (*begin->ms < 0 || *end->ms < 0) return cudaErrorNotReady;
    *ms = static_cast<float>(*end->ms - *begin->ms);
    return broken;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
    const std::lock_guard lock(mutex);
    if (stream->capture != nullptr) return cudaErrorStreamCaptureUnsupported;
    stream->capture = new Graph;
    stream->capture->lanes.emplace_back();
    stream->capture->streams.push_back(stream);
    stream->lane = 0;
    capturing_anywhere = true;
    return broken;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
    const std::lock_guard lock(mutex);
    if (stream->capture == nullptr || stream->lane != 0) return cudaErrorStreamCaptureUnsupported;
    Graph* done = stream->capture;
    for (Stream* one : done->streams) one->capture = nullptr;
    capturing_anywhere = false;
    bool joined = true;
    std::vector<std::size_t> seen = done->lanes[0].seen;
    seen.resize(done->lanes.size());
    for (std::size_t i = 1; i < done->lanes.size(); ++i) joined = joined && seen[i] == done->lanes[i].items.size();
    *graph = nullptr;
    if (done->invalid || !joined) {
        const bool invalid = done->invalid;
        delete done;
        return invalid ? cudaErrorStreamCaptureInvalidated : cudaErrorStreamCaptureUnjoined;
    }
    *graph = done;
    return broken;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* ready, cudaGraph_t graph, unsigned long long) {
    *ready = new Graph(*graph);
    return broken;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) {
    const std::lock_guard lock(mutex);
    if (stream->capture != nullptr) return cudaErrorStreamCaptureUnsupported;
    ++graph_launches;
    return give(*stream, {[copy = *graph] { return replay(copy); }, nullptr, 0});
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    delete graph;
    return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
    delete graph;
    return cudaSuccess;
}
