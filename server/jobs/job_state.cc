#include "server/jobs/job_state.h"

#include <algorithm>
#include <iterator>

namespace ampd {
namespace {

struct Edge {
  v1::Job::State from;
  v1::Job::State to;
};

constexpr Edge kEdges[] = {
    {v1::Job::QUEUED, v1::Job::STARTING},
    {v1::Job::QUEUED, v1::Job::PAUSED},
    {v1::Job::QUEUED, v1::Job::CANCELLED},

    {v1::Job::STARTING, v1::Job::RUNNING},
    {v1::Job::STARTING, v1::Job::QUEUED},
    {v1::Job::STARTING, v1::Job::RETRYING},
    {v1::Job::STARTING, v1::Job::RECOVERING},
    {v1::Job::STARTING, v1::Job::CANCELLING},
    {v1::Job::STARTING, v1::Job::FAILED},
    {v1::Job::STARTING, v1::Job::PAUSED},

    {v1::Job::RUNNING, v1::Job::QUEUED},
    {v1::Job::RUNNING, v1::Job::PREEMPTING},
    {v1::Job::RUNNING, v1::Job::RETRYING},
    {v1::Job::RUNNING, v1::Job::RECOVERING},
    {v1::Job::RUNNING, v1::Job::CANCELLING},
    {v1::Job::RUNNING, v1::Job::SUCCEEDED},
    {v1::Job::RUNNING, v1::Job::FAILED},
    {v1::Job::RUNNING, v1::Job::PAUSED},

    {v1::Job::PREEMPTING, v1::Job::QUEUED},
    {v1::Job::PREEMPTING, v1::Job::PAUSED},
    {v1::Job::PREEMPTING, v1::Job::RETRYING},
    {v1::Job::PREEMPTING, v1::Job::RECOVERING},
    {v1::Job::PREEMPTING, v1::Job::CANCELLING},
    {v1::Job::PREEMPTING, v1::Job::SUCCEEDED},
    {v1::Job::PREEMPTING, v1::Job::FAILED},
    {v1::Job::PREEMPTING, v1::Job::RUNNING},

    {v1::Job::PAUSED, v1::Job::QUEUED},
    {v1::Job::PAUSED, v1::Job::CANCELLED},

    {v1::Job::RETRYING, v1::Job::QUEUED},
    {v1::Job::RETRYING, v1::Job::CANCELLED},
    {v1::Job::RETRYING, v1::Job::PAUSED},

    {v1::Job::RECOVERING, v1::Job::RUNNING},
    {v1::Job::RECOVERING, v1::Job::QUEUED},
    {v1::Job::RECOVERING, v1::Job::RETRYING},
    {v1::Job::RECOVERING, v1::Job::CANCELLING},
    {v1::Job::RECOVERING, v1::Job::FAILED},
    {v1::Job::RECOVERING, v1::Job::PAUSED},

    {v1::Job::CANCELLING, v1::Job::CANCELLED},

    // Retried by request.
    {v1::Job::FAILED, v1::Job::QUEUED},
    {v1::Job::CANCELLED, v1::Job::QUEUED},
};

}  // namespace

bool IsLegalTransition(v1::Job::State from, v1::Job::State to) {
  return std::any_of(std::begin(kEdges), std::end(kEdges),
                     [&](const Edge& edge) { return edge.from == from && edge.to == to; });
}

bool IsTerminal(v1::Job::State state) {
  return state == v1::Job::SUCCEEDED || state == v1::Job::FAILED || state == v1::Job::CANCELLED;
}

bool HoldsDevice(v1::Job::State state) {
  return state == v1::Job::STARTING || state == v1::Job::RUNNING || state == v1::Job::PREEMPTING ||
         state == v1::Job::RECOVERING || state == v1::Job::CANCELLING;
}

}  // namespace ampd
