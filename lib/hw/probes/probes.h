// The probes: one function each, called in the order of the table in probe.cpp.
#pragma once
#include "hw/section.h"

namespace hetero::hw {

Json probe_host(const Context& context);
Json probe_clock(const Context& context);
Json probe_cpu(const Context& context);
Json probe_topology(const Context& context);
Json probe_memory(const Context& context);
Json probe_memory_bandwidth(const Context& context);
Json probe_compute(const Context& context);
Json probe_attention(const Context& context);
Json probe_kv_codecs(const Context& context);
Json probe_disk(const Context& context);
Json probe_shm(const Context& context);
Json probe_limits(const Context& context);
Json probe_gpus(const Context& context);
Json probe_mpi(const Context& context);
Json probe_fabric(const Context& context);
Json probe_process_copy(const Context& context);
Json probe_energy(const Context& context);

}  // namespace hetero::hw
