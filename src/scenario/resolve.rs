//! The sections that are neither system nor workload: cluster, SLO, measure, sweep.

use std::collections::HashSet;

use serde_json::Value;

use super::check::Blame;
use super::cluster::plain_pool;
use super::overrides::Override;
use super::provenance::{Provenance, Source};
use super::quantity::{Finite, Span};
use super::schema::{LoadKind, RouterPolicy, Scenario};
use crate::input::InputError;
use crate::units::{SimDuration, SimTime};

/// The objective, resolved. A target that is `None` is not asked for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SloTargets {
    /// Time to first token.
    pub ttft: Option<SimDuration>,
    /// Gap between tokens.
    pub itl: Option<SimDuration>,
    /// Share of a request's gaps that must be within `itl`; `None` judges its mean gap.
    pub itl_quantile: Option<f64>,
    /// Mean time per output token after the first.
    pub tpot: Option<SimDuration>,
    /// Arrival to last token.
    pub e2e: Option<SimDuration>,
    /// Share of offered requests that must meet the targets.
    pub attainment: f64,
    /// Share of offered requests that may fail.
    pub errors: f64,
}

/// Periods, seed and repeats, resolved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Measurement {
    /// Requests that arrive before this are not counted.
    pub warmup: SimDuration,
    /// Length of the counted period; `None` = everything after the warm-up.
    pub window: Option<SimDuration>,
    /// The run is cut off here.
    pub deadline: Option<SimTime>,
    /// From one reading of the gauges to the next; `None` = they are not read.
    pub scrape_interval: Option<SimDuration>,
    /// Master seed.
    pub seed: u64,
    /// Runs with different draws.
    pub repeats: u32,
}

/// One axis of a sweep: a key, or several that change together (a ratio of prefill to decode groups).
#[derive(Debug, Clone, PartialEq)]
pub struct Axis {
    /// Scenario paths.
    pub paths: Vec<String>,
    /// Points it takes, in the order given: a value for each path.
    pub points: Vec<Vec<Value>>,
}

impl Axis {
    /// The axis `name` of `sweep.axes`: paths apart by commas, and a value each, or a list of values for several paths.
    ///
    /// # Errors
    /// What was found and how to mend it.
    fn read(name: &str, values: &Value) -> Result<Self, (String, String)> {
        let paths: Vec<String> = name.split(',').map(|p| p.trim().to_owned()).collect();
        let Some(values) = values.as_array().filter(|v| !v.is_empty()) else {
            return Err((
                format!("found {values}"),
                "allowed: a list of at least one value".into(),
            ));
        };
        if let [_] = paths[..] {
            let points = values.iter().map(|v| vec![v.clone()]).collect();
            return Ok(Self { paths, points });
        }
        let point = |value: &Value| {
            let values = value.as_array().filter(|v| v.len() == paths.len());
            values.cloned().ok_or_else(|| {
                let keys = paths.len();
                (
                    format!("found {value} for {keys} keys that change together"),
                    format!("allowed: a list of lists of {keys} values, in the order of the keys"),
                )
            })
        };
        let points = values.iter().map(point).collect::<Result<_, _>>()?;
        Ok(Self { paths, points })
    }

    /// A point of it as scenario paths and their values.
    pub fn settings(&self) -> impl Iterator<Item = Vec<(String, Value)>> {
        let setting = |point: &Vec<Value>| self.paths.iter().cloned().zip(point.iter().cloned()).collect();
        self.points.iter().map(setting)
    }
}

/// The format version.
///
/// # Errors
/// [`InputError`].
pub fn check_head(scenario: &Scenario, blame: &Blame<'_>) -> Result<(), InputError> {
    if scenario.kneeboard != 1 {
        return Err(blame.error(
            "kneeboard",
            format!("found format version {}", scenario.kneeboard),
            "allowed: 1",
        ));
    }
    Ok(())
}

/// Fills a `cluster` of equal replicas that are run apart from each other; their number.
///
/// # Errors
/// [`InputError`] for no pool, several, or an empty one.
pub fn cluster(
    scenario: &mut Scenario,
    provenance: &mut Provenance,
    origin: &str,
) -> Result<u32, InputError> {
    const PATH: &str = "cluster.pools";
    let cluster = &mut scenario.cluster;
    let one = vec![plain_pool(1)];
    let pools = provenance.fill(PATH, &mut cluster.pools, Source::Default, one);
    provenance.fill(
        "cluster.router.policy",
        &mut cluster.router.policy,
        Source::Default,
        RouterPolicy::RoundRobin,
    );
    let blame = Blame { origin, provenance };
    let [pool] = pools.as_slice() else {
        return Err(blame.error(
            PATH,
            format!("found {} pools", pools.len()),
            "give one pool of role unified, or one of role prefill and one of role decode",
        ));
    };
    blame.at_least_one("cluster.pools.0.groups", Some(pool.groups))?;
    if pool.groups > MAX_REPLICAS {
        return Err(blame.error(
            "cluster.pools.0.groups",
            format!("found {} replicas", pool.groups),
            format!("allowed: 1 to {MAX_REPLICAS}"),
        ));
    }
    let engine = &scenario.system.engine;
    let blocks = u64::from(pool.groups) * u64::from(engine.num_gpu_blocks.unwrap_or(0));
    if engine.enable_prefix_caching != Some(false) && blocks > MAX_CACHED_BLOCKS {
        return Err(blame.error(
            "cluster.pools.0.groups",
            format!("{} replicas have {blocks} KV blocks", pool.groups),
            format!("allowed with prefix caching: up to {MAX_CACHED_BLOCKS} in all"),
        ));
    }
    Ok(pool.groups)
}

/// Bounds the memory of a mistyped number.
const MAX_REPLICAS: u32 = 100_000;
/// With prefix caching every KV block of every replica takes 40 bytes of memory.
pub(super) const MAX_CACHED_BLOCKS: u64 = 1 << 26;

/// Fills and checks `slo`.
///
/// # Errors
/// [`InputError`] for targets of 0 and shares outside 0 to 1.
pub fn slo(
    scenario: &mut Scenario,
    provenance: &mut Provenance,
    origin: &str,
) -> Result<SloTargets, InputError> {
    let slo = &mut scenario.slo;
    let asked = slo.ttft.is_some() || slo.itl.is_some() || slo.tpot.is_some() || slo.e2e.is_some();
    let attainment = provenance.fill(
        "slo.attainment",
        &mut slo.attainment,
        Source::Default,
        Finite(0.99),
    );
    let errors = provenance.fill("slo.errors", &mut slo.errors, Source::Default, Finite(0.0));
    let blame = Blame { origin, provenance };
    blame.share("slo.attainment", Some(attainment))?;
    blame.positive("slo.attainment", Some(attainment))?;
    blame.share("slo.errors", Some(errors))?;
    blame.share("slo.itl_quantile", slo.itl_quantile)?;
    blame.positive("slo.itl_quantile", slo.itl_quantile)?;
    if slo.itl.is_none() {
        blame.absent(
            "slo.itl_quantile",
            slo.itl_quantile.as_ref(),
            "it belongs to slo.itl: give that too",
        )?;
    }
    let target = |path: &str, span: Option<Span>| match span {
        Some(Span(SimDuration::ZERO)) => Err(blame.error(
            path,
            "found a target of 0",
            "allowed: a duration above 0; leave it out for no target",
        )),
        other => Ok(other.map(|s| s.0)),
    };
    let targets = SloTargets {
        ttft: target("slo.ttft", slo.ttft)?,
        itl: target("slo.itl", slo.itl)?,
        itl_quantile: slo.itl_quantile.map(|q| q.0),
        tpot: target("slo.tpot", slo.tpot)?,
        e2e: target("slo.e2e", slo.e2e)?,
        attainment: attainment.0,
        errors: errors.0,
    };
    if scenario.load.model == LoadKind::Offline && asked {
        return Err(blame.error(
            "slo",
            "an offline load has no latency objective",
            "leave ttft, itl, tpot, e2e out",
        ));
    }
    Ok(targets)
}

/// All repeats of a scenario are kept until they are written; more than this tells nothing new.
const MAX_REPEATS: u32 = 1000;

/// No scraper reads oftener.
pub const SHORTEST_SCRAPE: Span = Span(SimDuration(1_000_000));

/// Fills and checks `measure`.
///
/// # Errors
/// [`InputError`] for no repeats, an empty window, gauges read too often, or a warm-up that a deadline cuts off.
pub fn measure(
    scenario: &mut Scenario,
    provenance: &mut Provenance,
    origin: &str,
) -> Result<Measurement, InputError> {
    let m = &mut scenario.measure;
    let zero = Span(SimDuration::ZERO);
    let warmup = provenance
        .fill("measure.warmup", &mut m.warmup, Source::Default, zero)
        .0;
    let seed = provenance.fill("measure.seed", &mut m.seed, Source::Default, 0);
    let repeats = provenance.fill("measure.repeats", &mut m.repeats, Source::Default, 1);
    let blame = Blame { origin, provenance };
    blame.at_least_one("measure.repeats", Some(repeats))?;
    if repeats > MAX_REPEATS {
        return Err(blame.error(
            "measure.repeats",
            format!("found {repeats}"),
            format!("allowed: 1 to {MAX_REPEATS}"),
        ));
    }
    if m.window == Some(zero) {
        return Err(blame.error(
            "measure.window",
            "found an empty window",
            "allowed: a duration above 0",
        ));
    }
    if m.scrape_interval.is_some_and(|s| s < SHORTEST_SCRAPE) {
        return Err(blame.error(
            "measure.scrape_interval",
            format!("found {}", m.scrape_interval.unwrap_or_default()),
            format!("allowed: from {SHORTEST_SCRAPE}"),
        ));
    }
    if m.deadline.is_some_and(|d| d.0 <= warmup) {
        return Err(blame.error(
            "measure.warmup",
            format!(
                "the warm-up ({}) is not over when the run is cut off",
                Span(warmup)
            ),
            "measure.deadline must come after it",
        ));
    }
    Ok(Measurement {
        warmup,
        window: m.window.map(|w| w.0),
        deadline: m.deadline.map(|d| SimTime::ZERO + d.0),
        scrape_interval: m.scrape_interval.map(|s| s.0),
        seed,
        repeats,
    })
}

/// Checks `sweep`: every axis exists, every value of it is one that its key can take.
///
/// `explicit` is the tree that the user wrote, without the axes.
///
/// # Errors
/// [`InputError`] naming the axis.
pub fn sweep(scenario: &Scenario, explicit: &Value, blame: &Blame<'_>) -> Result<Vec<Axis>, InputError> {
    let axes: Vec<(String, Axis)> = scenario
        .sweep
        .axes
        .iter()
        .map(|(name, values)| {
            let place = format!("sweep.axes.{name}");
            let axis = Axis::read(name, values).map_err(|(found, mend)| blame.error(&place, found, mend))?;
            Ok((place, axis))
        })
        .collect::<Result<_, _>>()?;
    for (number, (place, axis)) in axes.iter().enumerate() {
        for path in &axis.paths {
            check_axis_path(scenario, path).map_err(|(found, mend)| blame.error(place, found, mend))?;
        }
        check_axis(number, &axes, explicit).map_err(|(found, mend)| blame.error(place, found, mend))?;
        for setting in axis.settings() {
            let mut tree = explicit.clone();
            let origin = format!("{}, {place}", blame.origin);
            for (path, value) in setting {
                let mut point = Override::new(&path, value);
                point.origin.clone_from(&origin);
                point.apply(&mut tree)?;
            }
            super::plan::typed(tree, &origin)?;
        }
    }
    check_capacity(scenario, blame)?;
    Ok(axes.into_iter().map(|(_, axis)| axis).collect())
}

/// What no axis may vary.
fn check_axis_path(scenario: &Scenario, path: &str) -> Result<(), (String, &'static str)> {
    if path.starts_with("sweep") {
        return Err(("a sweep cannot vary itself".into(), "name another key"));
    }
    let sets_rate = path.starts_with("load.arrival.rate") || path.starts_with("load.arrival.time_scale");
    if scenario.sweep.search.capacity.is_some() && sets_rate {
        return Err((
            "the capacity search sets the rate itself".into(),
            "leave one of the two out",
        ));
    }
    if path.starts_with("question") || path.starts_with("calibration") {
        return Err((
            "it changes no run".into(),
            "name a key of system, cluster, workload, load, slo or measure",
        ));
    }
    Ok(())
}

/// What an axis must not be: a point twice, a key inside another one that is varied.
fn check_axis(
    number: usize,
    axes: &[(String, Axis)],
    explicit: &Value,
) -> Result<(), (String, &'static str)> {
    let axis = &axes[number].1;
    let mut seen = HashSet::new();
    if let Some((i, point)) = axis.points.iter().enumerate().find(|(_, p)| !seen.insert(*p)) {
        let value = match &point[..] {
            [value] => value.clone(),
            values => values.into(),
        };
        return Err((
            format!("value {value} stands twice, again at place {i}"),
            "give each value once",
        ));
    }
    let normal = |p: &str| {
        let axis = Override::new(p, Value::Null);
        axis.numbered(explicit).unwrap_or(axis).dotted()
    };
    for (place, path) in axis.paths.iter().enumerate() {
        let this = normal(path);
        let own = axis.paths.iter().enumerate();
        let own = own.filter(|&(other, _)| other != place).map(|(_, path)| path);
        let others = axes.iter().enumerate().filter(|&(other, _)| other != number);
        for other in own.chain(others.flat_map(|(_, (_, a))| &a.paths)) {
            let that = normal(other);
            if that == this || that.starts_with(&format!("{this}.")) {
                return Err((
                    format!("it contains the axis {other}, which it would undo"),
                    "vary one of the two",
                ));
            }
        }
    }
    Ok(())
}

fn check_capacity(scenario: &Scenario, blame: &Blame<'_>) -> Result<(), InputError> {
    const PATH: &str = "sweep.search.capacity.rate";
    let Some(search) = &scenario.sweep.search.capacity else {
        return Ok(());
    };
    let [low, high] = search.rate;
    if low.0 <= 0.0 || high.0 <= low.0 {
        return Err(blame.error(
            PATH,
            format!("found [{}, {}]", low.0, high.0),
            "allowed: two rates, the first above 0 and below the second",
        ));
    }
    if scenario.load.model != LoadKind::OpenLoop {
        return Err(blame.error(
            PATH,
            "a capacity is a rate of an open-loop load",
            "set load.model: open-loop",
        ));
    }
    let slo = &scenario.slo;
    if slo.ttft.is_none() && slo.itl.is_none() && slo.tpot.is_none() && slo.e2e.is_none() {
        return Err(blame.error(
            PATH,
            "there is no objective to meet",
            "give at least one target under slo",
        ));
    }
    Ok(())
}
