//! Requests of a cluster that wait for groups that never come.

use crate::metric::Summary;
use crate::record::ClusterRecord;
use crate::scenario::Plan;

/// What a run whose requests wait in vain says of itself. Without a control loop nothing happens any more when the last
/// group is gone, so that the loop of events ends by itself: what is unfinished then, though no deadline cut it off, is
/// stranded, too.
pub(super) fn tell_stranded(plan: &Plan, cluster: &mut ClusterRecord, summary: &mut Summary) {
    let unfinished = summary.funnel.unfinished_waiting + summary.funnel.unfinished_started;
    if cluster.stranded == 0 && plan.measure.deadline.is_none() && summary.livelocks.is_empty() {
        cluster.stranded = u32::try_from(unfinished).unwrap_or(u32::MAX);
    }
    let stranded = cluster.stranded;
    if stranded > 0 {
        summary.notes.push(format!(
            "stranded: {stranded} requests wait for groups that never come, and nothing but control loops happens any \
             more: the run was ended"
        ));
    }
}

/// Whether requests were left that nobody could ever serve.
pub fn is_stranded(cluster: Option<&ClusterRecord>) -> bool {
    cluster.is_some_and(|c| c.stranded > 0)
}
