// Streams, events and graphs.
#include "stream.h"

#include <algorithm>
#include <chrono>
#include <vector>

#include "emulation.h"
#include "memory.h"

namespace hetero::emulation {

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
    bool timed = true;
    std::shared_ptr<double> ms = std::make_shared<double>(-1);
    Graph* capture = nullptr;
    std::size_t lane = 0;
    std::vector<std::size_t> seen;
};

namespace {

std::vector<std::weak_ptr<Queue>> all_queues;

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

double now_ms() {
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

bool capturing_anywhere = false;
std::size_t graph_launches = 0;

cudaError_t give(Stream& stream, Item item, std::size_t wait_lane) {
    if (stream.capture != nullptr) {
        Graph::Lane& lane = stream.capture->lanes[stream.lane];
        lane.items.push_back(std::move(item));
        lane.wait_lane.push_back(wait_lane);
        return broken;
    }
    stream.queue->items.push_back(std::move(item));
    ++stream.queue->given;
    return settings().late ? broken : drain(*stream.queue, stream.queue->given);
}

cudaError_t drain_all() {
    for (const auto& one : all_queues)
        if (const auto queue = one.lock()) (void)drain(*queue, queue->given);
    return broken;
}

}  // namespace hetero::emulation

using namespace hetero::emulation;

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
    const Call call;
    if (broken != cudaSuccess) return broken;
    *stream = new Stream;
    (*stream)->device = device_in_use;
    all_queues.push_back((*stream)->queue);
    return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    const Call call;
    (void)drain(*stream->queue, stream->queue->given);
    std::erase_if(all_queues, [&](const auto& one) { return one.expired() || one.lock() == stream->queue; });
    delete stream;
    return broken;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    const Call call;
    if (stream->capture != nullptr) {
        stream->capture->invalid = true;
        return cudaErrorStreamCaptureUnsupported;
    }
    return drain(*stream->queue, stream->queue->given);
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
    const Call call;
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

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
    const Call call;
    if (broken != cudaSuccess) return broken;
    *event = new Event;
    (*event)->timed = (flags & cudaEventDisableTiming) == 0;
    return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
    const Call call;
    delete event;
    return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    const Call call;
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
    const Call call;
    if (event->capture != nullptr) return cudaErrorStreamCaptureUnsupported;
    return event->queue == nullptr ? broken : drain(*event->queue, event->until);
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t begin, cudaEvent_t end) {
    const Call call;
    if (begin->queue == nullptr || end->queue == nullptr || !begin->timed || !end->timed)
        return cudaErrorInvalidResourceHandle;
    if (*begin->ms < 0 || *end->ms < 0) return cudaErrorNotReady;
    *ms = static_cast<float>(*end->ms - *begin->ms);
    return broken;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
    const Call call;
    if (stream->capture != nullptr) return cudaErrorStreamCaptureUnsupported;
    stream->capture = new Graph;
    stream->capture->lanes.emplace_back();
    stream->capture->streams.push_back(stream);
    stream->lane = 0;
    capturing_anywhere = true;
    return broken;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
    const Call call;
    if (stream->capture == nullptr || stream->lane != 0) return cudaErrorStreamCaptureUnsupported;
    Graph* done = stream->capture;
    for (Stream* one : done->streams) one->capture = nullptr;
    capturing_anywhere = false;
    bool joined = true;
    std::vector<std::size_t> seen = done->lanes[0].seen;
    seen.resize(done->lanes.size());
    for (std::size_t i = 1; i < done->lanes.size(); ++i) joined = joined && seen[i] == done->lanes[i].items.size();
    *graph = nullptr;
    if (done->invalid || !joined || broken != cudaSuccess) {
        const bool invalid = done->invalid;
        delete done;
        return invalid ? cudaErrorStreamCaptureInvalidated : !joined ? cudaErrorStreamCaptureUnjoined : broken;
    }
    *graph = done;
    return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* ready, cudaGraph_t graph, unsigned long long) {
    const Call call;
    if (broken != cudaSuccess) return broken;
    *ready = new Graph(*graph);
    return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) {
    const Call call;
    if (stream->capture != nullptr) return cudaErrorStreamCaptureUnsupported;
    ++graph_launches;
    return give(*stream, {[copy = *graph] { return replay(copy); }, nullptr, 0});
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    const Call call;
    delete graph;
    return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
    const Call call;
    delete graph;
    return cudaSuccess;
}
