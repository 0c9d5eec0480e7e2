//! KV on its way, and the links that it shares.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::super::options::ClusterOptions;
use crate::metric::diagnose::presence;
use crate::record::{ClusterRecord, RunRecord};
use crate::units::SimTime;

/// Transfers of KV.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TransferFigures {
    /// Transfers that ended.
    pub n: u64,
    /// How long one took, on the average, in seconds.
    pub mean_s: f64,
    /// Under way, mean over the judged time.
    pub under_way: f64,
    /// The link of known bandwidth that was used most, from the first start of a transfer to the last end.
    pub busiest: Option<BusiestLink>,
}

/// A link and how much it carried.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BusiestLink {
    /// Its name.
    pub link: String,
    /// What it carried over what it could have.
    pub share: f64,
    /// How long transfers took over how long one would alone on it, means: 1 where none is in another's way. Null where KV is
    /// pushed while the prompt is computed: what is left then is not what one would have moved alone.
    pub slowdown: Option<f64>,
}

impl TransferFigures {
    /// `None` where no KV was moved.
    pub(super) fn of(
        run: &RunRecord,
        cluster: &ClusterRecord,
        options: &ClusterOptions,
        judged: (SimTime, SimTime),
    ) -> Option<Self> {
        let spans = || {
            cluster
                .jobs
                .iter()
                .filter_map(|j| Some((j.transfer_start?, j.transfer?)))
        };
        let first = spans().map(|s| s.0).min()?;
        let last = spans().map(|s| s.1).max()?.min(run.end);
        let (sum, n) = spans().fold((0.0, 0_u64), |(sum, n), (from, to)| {
            (sum + to.since(from).as_secs_f64(), n + 1)
        });
        let active_s = last.since(first).as_secs_f64();
        let judged_ns = judged.1.since(judged.0).as_nanos();
        let under_way = presence(spans(), judged).integral as f64 / judged_ns.max(1) as f64;
        let moved: u64 = cluster.jobs.iter().map(|j| j.transferred_bytes).sum();
        let links = cluster
            .links
            .iter()
            .filter(|(_, bytes)| *bytes > 0 && active_s > 0.0);
        let known = links.filter_map(|(link, bytes)| {
            let bandwidth = options.link_bytes_per_s.get(link).copied();
            let bandwidth = bandwidth.filter(|&b| b > 0 && b < u64::MAX)? as f64;
            let alone_s = moved as f64 / n as f64 / bandwidth;
            Some(BusiestLink {
                link: link.clone(),
                share: *bytes as f64 / bandwidth / active_s,
                slowdown: (alone_s > 0.0 && !options.kv_is_pushed).then(|| sum / n as f64 / alone_s),
            })
        });
        // The first of equals.
        let busiest = known.reduce(|a, b| if b.share > a.share { b } else { a });
        Some(Self {
            n,
            mean_s: sum / n as f64,
            under_way,
            busiest,
        })
    }
}
