//! How far a figure of a run scatters around a good model: what its residual is measured in.

use super::observed::{Figure, Metric, Stat};

/// Relative scatter of a figure of `n` requests. Two simulations whose step times differ by a thousandth differ by a
/// tenth in single TTFTs (the phase of the step that runs on arrival), so the scatter falls with the root of `n`;
/// beneath lies what no fixed model of a machine reproduces. Tails rest on few requests.
pub fn scatter(figure: Figure, n: usize) -> f64 {
    let n = n.max(1) as f64;
    let (floor, single) = match (figure.metric, figure.stat) {
        (Metric::Tpot | Metric::E2e | Metric::OutputThroughput, Stat::Mean | Stat::Value) => (0.01, 0.1),
        (Metric::Tpot | Metric::E2e | Metric::OutputThroughput, Stat::Quantile(_)) => (0.015, 0.15),
        (Metric::Ttft, Stat::Mean | Stat::Value) => (0.03, 0.3),
        (Metric::Ttft, Stat::Quantile(_)) => (0.02, 0.3),
    };
    let floor: f64 = match figure.stat {
        // Beyond the 95th percentile bursts and pauses that no rule explains decide.
        Stat::Quantile(q) if q > 0.95 => 5.0 * floor,
        _ => floor,
    };
    let tail = match figure.stat {
        Stat::Quantile(q) => 0.25 / (q.min(1.0 - q)).max(0.5 / n),
        Stat::Mean | Stat::Value => 1.0,
    };
    floor.hypot(single * (tail / n).sqrt())
}
