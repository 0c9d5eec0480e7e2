//! Max-min fair rates in whole bytes a second: water filling (Bertsekas and Gallager, Data Networks, section 6.5.2)
//! with integers.
//!
//! All open flows rise together, by as many whole bytes a second as every link and every cap allows. Where a link
//! then has less left than it has open flows, what is left goes one byte a second each to the earliest flows, so
//! that the link is exactly full. Flows at their cap or on a full link are done; the others go on rising.
//!
//! Hence a flow below its cap crosses a full link, and no flow on that link is faster by more than one byte a
//! second: none can gain more than that without a slower one losing, which is max-min fairness as far as whole
//! numbers go.

/// A bandwidth, cap or rate without a limit.
pub(super) const UNBOUNDED: u64 = u64::MAX;

/// What wants a rate.
#[derive(Debug, Clone, Copy)]
pub(super) struct Flow<'a> {
    /// The links that it crosses, each once.
    pub path: &'a [u32],
    /// Never faster than this, bytes a second.
    pub cap: u64,
}

/// Rates of `flows`, earliest first. `room` holds each link's bandwidth and is left with what nobody uses;
/// [`UNBOUNDED`] stays as it is. The result is [`UNBOUNDED`] for a flow that nothing holds back.
///
/// Each round fills a link or brings flows to their cap, so it takes at most links + different caps rounds.
pub(super) fn rates(flows: &[Flow<'_>], room: &mut [u64]) -> Vec<u64> {
    let mut rates = vec![0; flows.len()];
    let mut open = Vec::with_capacity(flows.len());
    for (i, flow) in flows.iter().enumerate() {
        if finite(flow, room).next().is_none() {
            rates[i] = flow.cap;
        } else {
            open.push(i);
        }
    }
    let mut crossing = vec![0_u64; room.len()];
    let mut level = 0;
    while !open.is_empty() {
        let step = common_step(flows, &open, room, &mut crossing, level);
        level += step;
        for &i in &open {
            take(&flows[i], room, step);
        }
        open = one_more(flows, &open, room, &mut rates, level);
        level += 1;
    }
    rates
}

/// The limited links of a flow.
fn finite<'a>(flow: &Flow<'a>, room: &'a [u64]) -> impl Iterator<Item = usize> + 'a {
    flow.path
        .iter()
        .map(|&link| link as usize)
        .filter(|&link| room[link] != UNBOUNDED)
}

/// `rate` less room on the limited links of a flow.
fn take(flow: &Flow<'_>, room: &mut [u64], rate: u64) {
    for &link in flow.path {
        let room = &mut room[link as usize];
        if *room != UNBOUNDED {
            *room -= rate;
        }
    }
}

/// By how much all open flows can rise at once from `level`.
fn common_step(flows: &[Flow<'_>], open: &[usize], room: &[u64], crossing: &mut [u64], level: u64) -> u64 {
    for &i in open {
        finite(&flows[i], room).for_each(|link| crossing[link] = 0);
    }
    for &i in open {
        finite(&flows[i], room).for_each(|link| crossing[link] += 1);
    }
    open.iter()
        .flat_map(|&i| {
            finite(&flows[i], room)
                .map(|link| room[link] / crossing[link])
                .chain([flows[i].cap - level])
        })
        .min()
        .unwrap_or(0)
}

/// One byte a second more to those for whom there is room, in order. Writes the rates of those that are done and
/// returns those that stay open, all of them at `level + 1`.
fn one_more(
    flows: &[Flow<'_>],
    open: &[usize],
    room: &mut [u64],
    rates: &mut [u64],
    level: u64,
) -> Vec<usize> {
    let mut raised = Vec::with_capacity(open.len());
    for &i in open {
        rates[i] = level;
        if flows[i].cap > level && finite(&flows[i], room).all(|link| room[link] > 0) {
            take(&flows[i], room, 1);
            rates[i] = level + 1;
            raised.push(i);
        }
    }
    raised.retain(|&i| flows[i].cap > level + 1 && finite(&flows[i], room).all(|link| room[link] > 0));
    raised
}

#[cfg(test)]
#[path = "fair_tests.rs"]
mod tests;
