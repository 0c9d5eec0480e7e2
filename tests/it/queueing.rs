//! The engine degenerated until it is a queue with a known law.
//!
//! With one seat, one output token and a step time proportional to the prompt, a request is one step: the
//! engine is a single server with first come, first served. With c seats and a short constant step, a request
//! of k output tokens holds a seat for k steps: c servers.

use kneeboard::engine::vllm::{Behaviour, VllmConfig};
use kneeboard::record::RunRecord;
use kneeboard::rng::{Purpose, stream};
use kneeboard::sim::{FrontEnd, HostTimes, LoadModel, WorldConfig, run};
use kneeboard::steptime::{BatchShape, StepTime};
use kneeboard::units::{SimDuration, SimTime};
use kneeboard::workload::trace::{Trace, TraceRequest};
use rand_distr::{Distribution, Exp, Geometric, Open01};

/// A constant and a price a prefill token, in ns.
#[derive(Debug)]
struct Price {
    step: u64,
    prefill_token: u64,
}

impl StepTime for Price {
    fn duration(&self, batch: &BatchShape) -> SimDuration {
        SimDuration(self.step + self.prefill_token * u64::from(batch.prefill_tokens))
    }
}

fn queue(seats: u32) -> WorldConfig {
    WorldConfig {
        engine: VllmConfig {
            max_num_seqs: seats,
            max_num_batched_tokens: 1_000_000,
            max_model_len: 2_000_000,
            num_gpu_blocks: 1_000_000,
            enable_prefix_caching: false,
            async_scheduling: false,
            ..VllmConfig::new(Behaviour::of("0.32.0").unwrap())
        },
        replicas: 1,
        load: LoadModel::OpenLoop,
        host: HostTimes::default(),
        front_end: FrontEnd::default(),
        stall: None,
        deadline: None,
    }
}

/// Mean wait for the first step, in seconds, of the requests after the first tenth.
pub fn mean_wait_s(record: &RunRecord) -> f64 {
    let waits: Vec<f64> = record
        .requests
        .iter()
        .skip(record.requests.len() / 10)
        .map(|r| (r.first_scheduled.unwrap() - r.scheduled).as_secs_f64())
        .collect();
    waits.iter().sum::<f64>() / waits.len() as f64
}

/// Mean and standard error over replications.
fn mean_and_error(samples: &[f64]) -> (f64, f64) {
    let n = samples.len() as f64;
    let mean = samples.iter().sum::<f64>() / n;
    let variance = samples.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / (n - 1.0);
    (mean, (variance / n).sqrt())
}

/// The law holds within 4.5 standard errors, and these are small enough for that to mean something.
pub fn assert_law(name: &str, samples: &[f64], law: f64, widest: f64) {
    let (mean, error) = mean_and_error(samples);
    assert!(
        error / law < widest,
        "{name}: the interval is too wide to prove anything: {mean} +- {error}"
    );
    assert!(
        (mean - law).abs() < 4.5 * error,
        "{name}: {mean} +- {error}, the law says {law}"
    );
}

/// `n` Poisson arrivals at `rate` a second with (input, output) lengths drawn by `lengths`.
pub fn poisson(
    seed: u64,
    n: usize,
    rate: f64,
    mut lengths: impl FnMut(&mut rand_pcg::Pcg64) -> (u32, u32),
) -> Trace {
    let mut arrivals = stream(seed, Purpose::Arrivals, 0);
    let mut draws = stream(seed, Purpose::Lengths, 0);
    let gaps = Exp::new(rate).unwrap();
    let mut at = 0.0;
    let requests = (0..n)
        .map(|_| {
            at += gaps.sample(&mut arrivals);
            let (input, output) = lengths(&mut draws);
            TraceRequest::plain(SimTime::try_from_secs_f64(at).unwrap(), input, output)
        })
        .collect();
    Trace { requests }
}

#[test]
fn d_d_1_is_exact() {
    let price = Price {
        step: 0,
        prefill_token: 1_000,
    };
    for (gap, service) in [
        (1_000_000, 700_000),
        (1_000_000, 1_000_000),
        (1_000_000, 1_300_000),
    ] {
        let requests = (0..500)
            .map(|i| TraceRequest::plain(SimTime(i * gap), (service / 1_000) as u32, 1))
            .collect();
        let record = run(&queue(1), &price, &Trace { requests }).unwrap();
        for (i, r) in record.requests.iter().enumerate() {
            let wait = (i as u64) * u64::saturating_sub(service, gap);
            assert_eq!(r.first_scheduled, Some(r.scheduled + SimDuration(wait)));
            assert_eq!(r.last_token, Some(r.scheduled + SimDuration(wait + service)));
        }
    }
}

/// Mean waits of 24 replications of an M/G/1 queue whose service is `tokens` microseconds.
fn m_g_1(rate: f64, n: usize, tokens: impl Fn(&mut rand_pcg::Pcg64) -> u32) -> Vec<f64> {
    let price = Price {
        step: 0,
        prefill_token: 1_000,
    };
    (0..24)
        .map(|seed| {
            let trace = poisson(seed, n, rate, |draws| (tokens(draws), 1));
            mean_wait_s(&run(&queue(1), &price, &trace).unwrap())
        })
        .collect()
}

#[test]
fn m_d_1_mean_wait() {
    // rho / (2 mu (1 - rho)) with service 1 ms.
    let samples = m_g_1(700.0, 60_000, |_| 1_000);
    assert_law("M/D/1", &samples, 0.7 / (2.0 * 1000.0 * 0.3), 0.01);
}

#[test]
fn m_g_1_mean_wait_is_pollaczek_khinchine() {
    // Service 0.2 ms or 3.2 ms with equal chance: E[S] = 1.7 ms, E[S^2] = (0.04 + 10.24) / 2 ms^2.
    let rate = 350.0;
    let samples = m_g_1(rate, 60_000, |draws| {
        let u: f64 = Open01.sample(draws);
        if u < 0.5 { 200 } else { 3_200 }
    });
    let (mean, second) = (1.7e-3, 5.14e-6);
    assert_law(
        "M/G/1",
        &samples,
        rate * second / (2.0 * (1.0 - rate * mean)),
        0.02,
    );
}

/// Probability that an arrival at c servers with offered load a (Erlang) has to wait.
pub fn erlang_c(c: u32, a: f64) -> f64 {
    let blocking = (1..=c).fold(1.0, |b, k| a * b / (f64::from(k) + a * b));
    blocking / (1.0 - a / f64::from(c) * (1.0 - blocking))
}

#[test]
fn m_m_c_mean_wait_is_erlang_c() {
    // Output tokens are geometric with mean 100 steps of 20 us: services are exponential with mean 2 ms but for
    // the grain of a step. An arrival at a busy engine also waits half a step for the next schedule call.
    let (seats, step_s, steps, rate) = (4, 20e-6, 100.0, 1_400.0);
    let price = Price {
        step: 20_000,
        prefill_token: 0,
    };
    let geometric = Geometric::new(1.0 / steps).unwrap();
    let samples: Vec<f64> = (0..20)
        .map(|seed| {
            let trace = poisson(seed, 100_000, rate, |draws| {
                (1, geometric.sample(draws) as u32 + 1)
            });
            mean_wait_s(&run(&queue(seats), &price, &trace).unwrap())
        })
        .collect();
    let (a, mu) = (rate * steps * step_s, 1.0 / (steps * step_s));
    let busy = 1.0 - (-a).exp();
    let law = erlang_c(seats, a) / (f64::from(seats) * mu - rate) + busy * step_s / 2.0;
    assert_law("M/M/c", &samples, law, 0.02);
}

#[test]
fn poisson_traffic_dealt_in_turn_to_r_replicas_is_erlang_r_arrivals_to_each() {
    // Two replicas in turn: each sees every other arrival of the stream and nothing else, so the run equals
    // two separate runs of the halves, to the nanosecond.
    let price = Price {
        step: 0,
        prefill_token: 1_000,
    };
    let trace = poisson(3, 2_000, 1_500.0, |_| (1_000, 1));
    let both = run(
        &WorldConfig {
            replicas: 2,
            ..queue(1)
        },
        &price,
        &trace,
    )
    .unwrap();
    for half in 0..2 {
        let requests = trace.requests.iter().skip(half).step_by(2).cloned().collect();
        let alone = run(&queue(1), &price, &Trace { requests }).unwrap();
        let there: Vec<_> = both
            .requests
            .iter()
            .skip(half)
            .step_by(2)
            .map(|r| r.last_token)
            .collect();
        let here: Vec<_> = alone.requests.iter().map(|r| r.last_token).collect();
        assert_eq!(there, here);
    }
}

#[test]
fn closed_loop_with_one_client_is_the_sum_of_service_times() {
    let price = Price {
        step: 5_000,
        prefill_token: 1_000,
    };
    let think = SimDuration(123_456);
    let config = WorldConfig {
        load: LoadModel::ClosedLoop {
            concurrency: 1,
            think,
        },
        ..queue(8)
    };
    let requests: Vec<_> = (1..50)
        .map(|i| TraceRequest::plain(SimTime(7), i * 10, 3))
        .collect();
    let record = run(&config, &price, &Trace { requests }).unwrap();
    let mut at = 0;
    for (i, r) in record.requests.iter().enumerate() {
        let service = 3 * 5_000 + (i as u64 + 1) * 10 * 1_000;
        assert_eq!((r.sent, r.last_token), (SimTime(at), Some(SimTime(at + service))));
        at += service + think.0;
    }
}
