//! All-reduces: the fastest of one-shot, two-shot and ring.
//!
//! One-shot and two-shot ([`crate::steptime::collective::all_reduce`]) need every rank to reach every other's memory:
//! over the scale-up link, or over PCIe between two ranks (vLLM turns its own kernels off beyond).
//! Ring: a_r + 2 (p - 1) l + 2 (p - 1) / p S / (L f_r g^log2(p / 2)); g tells what more ranks do to the share of
//! the link: switches that add up (g > 1), or buses that are shared (g < 1).

use super::fitting::{Formula, Sample, Spec, fit};
use super::read::AllReduce;
use super::{Device, PartFit};
use crate::steptime::collective::{self, Link};

struct Message {
    ranks: u32,
    bytes: f64,
}

struct Fastest {
    /// Bytes a second of the link, one way, at its full rate.
    link: f64,
    /// Whether ranks reach each other's memory for any number of ranks.
    switched: bool,
}

impl Formula for Fastest {
    type Shape = Message;

    fn specs(&self) -> Vec<Spec> {
        vec![
            Spec {
                name: "allreduce_latency",
                unit: "s",
                bounds: (1e-7, 1e-3),
                start: 4.5e-6,
            },
            Spec {
                name: "allreduce_bandwidth",
                unit: "1",
                bounds: (0.01, 1.0),
                start: 0.6,
            },
            Spec {
                name: "ring_latency",
                unit: "s",
                bounds: (1e-8, 1e-3),
                start: 1e-5,
            },
            Spec {
                name: "ring_step_latency",
                unit: "s",
                bounds: (1e-9, 1e-4),
                start: 1e-6,
            },
            Spec {
                name: "ring_bandwidth",
                unit: "1",
                bounds: (0.01, 1.5),
                start: 0.6,
            },
            Spec {
                name: "ring_bandwidth_per_doubling",
                unit: "1",
                bounds: (0.1, 2.0),
                start: 1.0,
            },
        ]
    }

    fn seconds(&self, q: &[f64], s: &Message) -> f64 {
        let p = f64::from(s.ranks);
        let share = q[4] * q[5].powf((p / 2.0).log2());
        let volume = 2.0 * (p - 1.0) / p * s.bytes / self.link;
        let ring = q[2] + 2.0 * (p - 1.0) * q[3] + volume / share;
        if !self.switched && s.ranks > 2 {
            return ring;
        }
        let link = Link {
            latency_s: q[0],
            bytes_per_s: self.link * q[1],
            all_to_all: self.switched,
        };
        ring.min(collective::direct(link, s.ranks, s.bytes))
    }
}

/// Fits all-reduces, where the profile states a link.
pub fn all_reduce(rows: &[AllReduce], device: &Device) -> Option<PartFit> {
    let (link, switched) = device.link?;
    let samples: Vec<_> = rows
        .iter()
        .filter(|r| r.ranks >= 2)
        .map(|r| Sample {
            shape: Message {
                ranks: r.ranks,
                bytes: r.bytes,
            },
            seconds: r.seconds,
            // Sizes are left out together over all ranks: leaving out all of one number of ranks would ask for
            // what g cannot tell from two numbers.
            family: format!("{} bytes", r.bytes),
            regime: regime(r),
        })
        .collect();
    let note = format!(
        "share of {} GB/s one way, {}",
        link / 1e9,
        if switched { "scale-up link" } else { "PCIe" }
    );
    fit("all-reduce", &Fastest { link, switched }, &samples, Some(note))
}

fn regime(r: &AllReduce) -> String {
    let size = match r.bytes {
        s if s <= 65536.0 => "up to 64 KiB",
        s if s <= 1048576.0 => "up to 1 MiB",
        s if s <= 33554432.0 => "up to 32 MiB",
        _ => "over 32 MiB",
    };
    format!("{} ranks, {size}", r.ranks)
}
