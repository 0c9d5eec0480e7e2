//! The parts of a cluster as state machines of their own: routers, the gateway's queue, links, faults, a group's life,
//! autoscalers and rollouts. They know no event queue, no engine and no file; `sim/fleet` puts them together.

pub mod autoscale;
pub mod fault;
pub mod gateway;
pub mod lifecycle;
pub mod link;
pub mod push;
pub mod ratio;
pub mod rollout;
pub mod router;
pub mod topology;
