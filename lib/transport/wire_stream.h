// kv::Source and kv::Sink over the state machines. They wait without a deadline of their own: the link ends every wait,
// for a peer that is silent or stalled is an error there, and a peer that is alive may take its time.
#pragma once
#include <functional>
#include <memory>
#include <string>

#include "kv/stream.h"
#include "transport/gate.h"
#include "transport/link_rate.h"
#include "transport/receiver.h"
#include "transport/resume.h"
#include "transport/sender.h"

namespace hetero::transport {

// Another thread must call step() under `gate`, and changed() after it. Gate and machine outlive the stream.
struct WireSinkOptions {
    bool checksums = true;  // without (a receiver that verifies refuses the state): for measurements of what they cost
    // Of the link, before a state is offered: the window follows from it.
    std::function<Result<LinkRate>()> measure = nullptr;
};
std::unique_ptr<kv::Sink> wire_sink(Gate& gate, Sender& sender, WireSinkOptions options = {});
// Waits for the peer's offer. With `resume` some of the state may come from an earlier transfer. With `confirm_later`
// finish() leaves it to confirm() to tell the peer that its state has arrived.
Result<std::unique_ptr<kv::Source>> wire_source(Gate& gate, Receiver& receiver, ReceiverOptions options,
                                                std::shared_ptr<Resume> resume = nullptr, bool confirm_later = false);
Status confirm(Gate& gate, Receiver& receiver);

}  // namespace hetero::transport
