//! When the requests that are measured arrive.

use crate::input::InputError;
use crate::metric::Window;
use crate::metric::saturation::ArrivalSpan;
use crate::scenario::Plan;
use crate::sim::LoadModel;
use crate::workload::synth::ArrivalSpan as WorkSpan;

/// When the measured requests arrive, by a pass over the workload; `None` if none does.
pub(super) fn measured_span(
    plan: &Plan,
    replication: u64,
    load: LoadModel,
    window: &Window,
    whole: &WorkSpan,
) -> Result<Option<ArrivalSpan>, InputError> {
    if load == LoadModel::Offline {
        return Ok(None);
    }
    if *window == Window::WHOLE {
        let (first, last, n) = (whole.first, whole.last, u64::from(whole.count));
        return Ok(Some(ArrivalSpan { first, last, n }));
    }
    let mut span: Option<ArrivalSpan> = None;
    for request in plan.requests(replication)? {
        let at = request?.arrival;
        if window.contains(at) {
            let known = span.get_or_insert(ArrivalSpan {
                first: at,
                last: at,
                n: 0,
            });
            (known.last, known.n) = (at, known.n + 1);
        }
    }
    Ok(span)
}
