// Devices, memory, streams, events and graphs: CUDA's runtime behind DeviceOps.
#include <algorithm>
#include <map>
#include <mutex>
#include <new>

#include "kernels/cuda/gemm_library.h"
#include "kernels/cuda/launch.h"

namespace hetero::kernels::HETERO_DEVICE_BACKEND {

DeviceFault fault_of(cudaError_t error, int device, const char* where, Shapes shapes, const Grid* grid) {
    if (error == cudaSuccess) return {};
    (void)cudaGetLastError();  // or the next call would report it again
    DeviceFault fault;
    fault.kind = error == cudaErrorMemoryAllocation ? DeviceFault::Kind::no_memory : DeviceFault::Kind::failed;
    fault.code = static_cast<int>(error);
    fault.device = device;
    fault.where = where;
    fault.reason = cudaGetErrorString(error);
    const auto add = [&](const std::string& one) { fault.shapes += (fault.shapes.empty() ? "" : ", ") + one; };
    for (const Shape& shape : shapes) add(std::string(shape.name) + ' ' + std::to_string(shape.value));
    const auto text = [](const dim3& of) {
        return std::to_string(of.x) + 'x' + std::to_string(of.y) + 'x' + std::to_string(of.z);
    };
    if (grid != nullptr) {
        add("grid " + text(grid->blocks));
        add("block " + text(grid->threads));
        if (grid->shared_bytes != 0) add("shared bytes " + std::to_string(grid->shared_bytes));
    }
    return fault;
}

DeviceFault unsupported(DeviceStream stream, const char* where, const char* reason, Shapes shapes) {
    DeviceFault fault = fault_of(cudaErrorInvalidValue, of(stream).device, where, shapes);
    fault.kind = DeviceFault::Kind::unsupported;
    fault.code = 0;
    fault.reason = reason;
    return fault;
}

DeviceFault use_device(int device) { return fault_of(cudaSetDevice(device), device, "cudaSetDevice"); }

cudaError_t permit_shared(int device, const void* kernel, std::size_t bytes) {
    constexpr std::size_t granted = 48 << 10;  // beyond that a kernel has to ask
    if (bytes <= granted) return cudaSuccess;
    static std::mutex mutex;
    static std::map<std::pair<int, const void*>, std::size_t> permitted;
    const std::lock_guard lock(mutex);
    std::size_t& most = permitted[{device, kernel}];
    if (bytes <= most) return cudaSuccess;
    const cudaError_t error =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
    if (error == cudaSuccess) most = bytes;
    return error;
}

namespace {

int device_count() {
    int count = 0;
    if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
    (void)cudaGetLastError();
    return 0;
}

DeviceFault device_info(int device, DeviceInfo& info) {
    cudaDeviceProp properties{};
    if (DeviceFault fault = fault_of(cudaGetDeviceProperties(&properties, device), device, "cudaGetDeviceProperties"))
        return fault;
    if (DeviceFault fault = use_device(device)) return fault;
    info = {};
    if (DeviceFault fault = fault_of(cudaMemGetInfo(&info.free_bytes, &info.total_bytes), device, "cudaMemGetInfo"))
        return fault;
    info.name = properties.name;
    info.major = properties.major;
    info.minor = properties.minor;
    info.multiprocessors = properties.multiProcessorCount;
    info.shared_bytes = properties.sharedMemPerBlockOptin;
    info.l2_bytes = static_cast<std::size_t>(std::max(0, properties.l2CacheSize));
    info.integrated = properties.integrated != 0;
    info.pageable_access = properties.pageableMemoryAccess != 0;
    int khz = 0;
    if (cudaDeviceGetAttribute(&khz, cudaDevAttrMemoryClockRate, device) == cudaSuccess && khz > 0)
        info.bus_bytes_per_s = std::size_t{2} * static_cast<std::size_t>(khz) * 1000 *  // two transfers a clock
                               static_cast<std::size_t>(properties.memoryBusWidth / 8);
    (void)cudaDriverGetVersion(&info.driver_version);
    (void)cudaRuntimeGetVersion(&info.runtime_version);
    return {};
}

DeviceFault allocate(int device, std::size_t bytes, void** memory) {
    *memory = nullptr;
    if (DeviceFault fault = use_device(device)) return fault;
    return fault_of(cudaMalloc(memory, std::max<std::size_t>(bytes, 1)), device, "cudaMalloc", {{"bytes", bytes}});
}

DeviceFault free(int device, void* memory) {
    if (memory == nullptr) return {};
    if (DeviceFault fault = use_device(device)) return fault;
    return fault_of(cudaFree(memory), device, "cudaFree");
}

// A call by a thread that has chosen no device would open the first one, with memory of its own there: so each call
// here chooses the device that it is about.
DeviceFault allocate_host(int device, std::size_t bytes, void** memory) {
    *memory = nullptr;
    if (DeviceFault fault = use_device(device)) return fault;
    return fault_of(cudaHostAlloc(memory, std::max<std::size_t>(bytes, 1), cudaHostAllocPortable), device,
                    "cudaHostAlloc", {{"bytes", bytes}});
}

DeviceFault free_host(int device, void* memory) {
    if (DeviceFault fault = use_device(device)) return fault;
    return fault_of(cudaFreeHost(memory), device, "cudaFreeHost");
}

DeviceFault register_host(int device, void* memory, std::size_t bytes) {
    if (DeviceFault fault = use_device(device)) return fault;
    return fault_of(cudaHostRegister(memory, bytes, cudaHostRegisterPortable), device, "cudaHostRegister",
                    {{"bytes", bytes}});
}

DeviceFault unregister_host(int device, void* memory) {
    if (DeviceFault fault = use_device(device)) return fault;
    return fault_of(cudaHostUnregister(memory), device, "cudaHostUnregister");
}

DeviceFault copy(DeviceStream stream, void* to, const void* from, std::size_t bytes) {
    if (DeviceFault fault = use_device(of(stream).device)) return fault;
    return fault_of(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, of(stream).stream), of(stream).device,
                    "cudaMemcpyAsync", {{"bytes", bytes}});
}

DeviceFault copy_2d(DeviceStream stream, void* to, std::size_t to_stride, const void* from, std::size_t from_stride,
                    std::size_t width, std::size_t rows) {
    if (DeviceFault fault = use_device(of(stream).device)) return fault;
    return fault_of(
        cudaMemcpy2DAsync(to, to_stride, from, from_stride, width, rows, cudaMemcpyDefault, of(stream).stream),
        of(stream).device, "cudaMemcpy2DAsync",
        {{"rows", rows}, {"width", width}, {"to stride", to_stride}, {"from stride", from_stride}});
}

DeviceFault fill(DeviceStream stream, void* memory, std::uint8_t byte, std::size_t bytes) {
    if (DeviceFault fault = use_device(of(stream).device)) return fault;
    return fault_of(cudaMemsetAsync(memory, byte, bytes, of(stream).stream), of(stream).device, "cudaMemsetAsync",
                    {{"bytes", bytes}});
}

DeviceFault create_stream(int device, DeviceStream* stream) {
    *stream = nullptr;
    if (DeviceFault fault = use_device(device)) return fault;
    cudaDeviceProp properties{};
    if (DeviceFault fault = fault_of(cudaGetDeviceProperties(&properties, device), device, "cudaGetDeviceProperties"))
        return fault;
    auto* made = new (std::nothrow) Stream;
    if (made == nullptr) return fault_of(cudaErrorMemoryAllocation, -1, "create_stream");
    made->device = device;
    made->multiprocessors = std::max(1, properties.multiProcessorCount);
    made->capability = properties.major * 10 + properties.minor;
    made->shared_bytes = properties.sharedMemPerBlockOptin;
    DeviceFault fault =
        fault_of(cudaStreamCreateWithFlags(&made->stream, cudaStreamNonBlocking), device, "cudaStreamCreateWithFlags");
    if (fault) {
        delete made;
        return fault;
    }
    made->library = open_library(device);
    *stream = reinterpret_cast<DeviceStream>(made);
    return {};
}

DeviceFault destroy_stream(DeviceStream stream) {
    if (stream == nullptr) return {};
    DeviceFault fault = use_device(of(stream).device);
    if (!fault) {
        close_library(of(stream).library);
        fault = fault_of(cudaStreamDestroy(of(stream).stream), of(stream).device, "cudaStreamDestroy");
    }
    delete &of(stream);
    return fault;
}

DeviceFault synchronize(DeviceStream stream) {
    if (DeviceFault fault = use_device(of(stream).device)) return fault;
    return fault_of(cudaStreamSynchronize(of(stream).stream), of(stream).device, "cudaStreamSynchronize");
}

DeviceFault create_event(int device, DeviceEventUse use, DeviceEvent* event) {
    *event = nullptr;
    if (DeviceFault fault = use_device(device)) return fault;
    auto* made = new (std::nothrow) Event;
    if (made == nullptr) return fault_of(cudaErrorMemoryAllocation, -1, "create_event");
    made->device = device;
    const unsigned flags = use == DeviceEventUse::time ? cudaEventDefault : cudaEventDisableTiming;
    DeviceFault fault = fault_of(cudaEventCreateWithFlags(&made->event, flags), device, "cudaEventCreateWithFlags");
    if (fault) {
        delete made;
        return fault;
    }
    *event = reinterpret_cast<DeviceEvent>(made);
    return {};
}

DeviceFault destroy_event(DeviceEvent event) {
    if (event == nullptr) return {};
    DeviceFault fault = use_device(of(event).device);
    if (!fault) fault = fault_of(cudaEventDestroy(of(event).event), of(event).device, "cudaEventDestroy");
    delete &of(event);
    return fault;
}

DeviceFault record(DeviceEvent event, DeviceStream stream) {
    if (DeviceFault fault = use_device(of(stream).device)) return fault;
    return fault_of(cudaEventRecord(of(event).event, of(stream).stream), of(stream).device, "cudaEventRecord");
}

DeviceFault wait(DeviceStream stream, DeviceEvent event) {
    if (DeviceFault fault = use_device(of(stream).device)) return fault;
    return fault_of(cudaStreamWaitEvent(of(stream).stream, of(event).event, 0), of(stream).device,
                    "cudaStreamWaitEvent");
}

DeviceFault synchronize_event(DeviceEvent event) {
    if (DeviceFault fault = use_device(of(event).device)) return fault;
    return fault_of(cudaEventSynchronize(of(event).event), of(event).device, "cudaEventSynchronize");
}

DeviceFault elapsed_ms(DeviceEvent begin, DeviceEvent end, float* ms) {
    if (DeviceFault fault = use_device(of(end).device)) return fault;
    return fault_of(cudaEventElapsedTime(ms, of(begin).event, of(end).event), of(end).device, "cudaEventElapsedTime");
}

// What a DeviceGraph points to.
struct Captured {
    int device;
    cudaGraphExec_t ready;
};
Captured& captured(DeviceGraph graph) { return *reinterpret_cast<Captured*>(graph); }

DeviceFault begin_capture(DeviceStream stream) {
    if (DeviceFault fault = use_device(of(stream).device)) return fault;
    return fault_of(cudaStreamBeginCapture(of(stream).stream, cudaStreamCaptureModeThreadLocal), of(stream).device,
                    "cudaStreamBeginCapture");
}

DeviceFault end_capture(DeviceStream stream, DeviceGraph* graph) {
    *graph = nullptr;
    const int device = of(stream).device;
    if (DeviceFault fault = use_device(device)) return fault;
    cudaGraph_t recorded = nullptr;
    if (DeviceFault fault =
            fault_of(cudaStreamEndCapture(of(stream).stream, &recorded), device, "cudaStreamEndCapture"))
        return fault;
    cudaGraphExec_t ready = nullptr;
    DeviceFault fault = fault_of(cudaGraphInstantiate(&ready, recorded, 0), device, "cudaGraphInstantiate");
    (void)cudaGraphDestroy(recorded);
    if (fault) return fault;
    auto* made = new (std::nothrow) Captured{device, ready};
    if (made == nullptr) {
        (void)cudaGraphExecDestroy(ready);
        return fault_of(cudaErrorMemoryAllocation, -1, "end_capture");
    }
    *graph = reinterpret_cast<DeviceGraph>(made);
    return {};
}

DeviceFault launch_graph(DeviceGraph graph, DeviceStream stream) {
    if (DeviceFault fault = use_device(of(stream).device)) return fault;
    return fault_of(cudaGraphLaunch(captured(graph).ready, of(stream).stream), of(stream).device, "cudaGraphLaunch");
}

DeviceFault destroy_graph(DeviceGraph graph) {
    if (graph == nullptr) return {};
    DeviceFault fault = use_device(captured(graph).device);
    if (!fault)
        fault = fault_of(cudaGraphExecDestroy(captured(graph).ready), captured(graph).device, "cudaGraphExecDestroy");
    delete &captured(graph);
    return fault;
}

}  // namespace

void fill_runtime(DeviceOps& ops) {
    ops.device_count = device_count;
    ops.device_info = device_info;
    ops.allocate = allocate;
    ops.free = free;
    ops.allocate_host = allocate_host;
    ops.free_host = free_host;
    ops.register_host = register_host;
    ops.unregister_host = unregister_host;
    ops.copy = copy;
    ops.copy_2d = copy_2d;
    ops.fill = fill;
    ops.create_stream = create_stream;
    ops.destroy_stream = destroy_stream;
    ops.synchronize = synchronize;
    ops.create_event = create_event;
    ops.destroy_event = destroy_event;
    ops.record = record;
    ops.wait = wait;
    ops.synchronize_event = synchronize_event;
    ops.elapsed_ms = elapsed_ms;
    ops.begin_capture = begin_capture;
    ops.end_capture = end_capture;
    ops.launch_graph = launch_graph;
    ops.destroy_graph = destroy_graph;
}

const DeviceOps& table() {
    static const DeviceOps made = [] {
        DeviceOps ops{};
#ifdef HETERO_EMULATED
        ops.name = "emulated";
#else
        ops.name = "cuda";
#endif
        fill_runtime(ops);
        fill_elementwise(ops);
        fill_rope(ops);
        fill_sampling(ops);
        fill_products(ops);
        fill_gemm(ops);
        fill_experts(ops);
        fill_qkv(ops);
        fill_kv(ops);
        fill_kv_states(ops);
        fill_kv_orders(ops);
        fill_checksum(ops);
        fill_attention(ops);
        return ops;
    }();
    return made;
}

}  // namespace hetero::kernels::HETERO_DEVICE_BACKEND
