//! Requests of a cluster that wait for groups or transfers that never come.

use crate::metric::Summary;
use crate::record::ClusterRecord;

/// What a run whose requests wait in vain says of itself.
pub(super) fn tell_stranded(cluster: &ClusterRecord, summary: &mut Summary) {
    let stranded = cluster.stranded;
    if stranded > 0 {
        summary.notes.push(format!(
            "stranded: {stranded} requests wait for groups or transfers that never come, and nothing but control loops \
             happens any more: the run was ended"
        ));
    }
}

/// Whether requests were left that nobody could ever serve.
pub fn is_stranded(cluster: Option<&ClusterRecord>) -> bool {
    cluster.is_some_and(|c| c.stranded > 0)
}
