//! What one device draws, and how its clock changes that.
//!
//! P = idle + dynamic * f^3, where f is the core clock over the full one. The dynamic power of CMOS is proportional to
//! C * V^2 * f (Mudge, "Power: A First Class Design Constraint for Future Architectures", HiPC 2000), and over the range
//! in which the voltage is scaled in proportion to the clock, so to f^3: the usual cube rule, not confirmed as that
//! paper's own words. Near the lowest voltage real devices save less than this says, and what memory draws does not follow
//! the core clock: the power law is the weakest part of the model, and a measured curve is better.
//!
//! Time is a roofline: a step takes max(compute / f, memory), so work bound by compute takes 1 / f as long and work bound
//! by memory as long as before, until its compute part becomes the longer one. Measured on an H200, decode draws 137 to
//! 300 of 700 W, so that no power cap is reached, and clocks locked lower save up to 32 % of its energy at little loss of
//! throughput; how much of either depends on the kind of attention (Ma, Afzal, Eitzinger and Wellein, arXiv 2605.11999).

use crate::units::{SimDuration, SimTime, written};

/// What a device computes. Utilisations are shares of the peak, 0 to 1, as a step-time model gives them *at the full
/// clock*.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Work {
    /// Prompts only.
    Prefill {
        /// Of its peak arithmetic.
        compute: f64,
        /// Of its memory bandwidth.
        memory: f64,
    },
    /// Output tokens only.
    Decode {
        /// Of its peak arithmetic.
        compute: f64,
        /// Of its memory bandwidth.
        memory: f64,
    },
    /// A dummy batch: one row that stands for nothing, as ranks that step together compute it.
    Dummy {
        /// Of its peak arithmetic.
        compute: f64,
        /// Of its memory bandwidth.
        memory: f64,
    },
    /// Both in one step.
    Mixed {
        /// Of its peak arithmetic.
        compute: f64,
        /// Of its memory bandwidth.
        memory: f64,
        /// Share of the time that the prompts take, 0 to 1.
        prefill_share: f64,
    },
}

impl Work {
    /// Share of the time that prompts take: 1, 0, or that of a mixed step.
    pub const fn prefill_share(&self) -> f64 {
        match *self {
            Self::Prefill { .. } => 1.0,
            Self::Decode { .. } | Self::Dummy { .. } => 0.0,
            Self::Mixed { prefill_share, .. } => prefill_share,
        }
    }

    /// (compute, memory).
    const fn utilisation(&self) -> (f64, f64) {
        match *self {
            Self::Prefill { compute, memory }
            | Self::Decode { compute, memory }
            | Self::Dummy { compute, memory }
            | Self::Mixed { compute, memory, .. } => (compute, memory),
        }
    }

    /// Whether its shares are shares.
    ///
    /// # Errors
    /// [`PowerError::Share`].
    pub fn check(&self) -> Result<(), PowerError> {
        let (compute, memory) = self.utilisation();
        let shares = [
            ("compute utilisation", compute),
            ("memory utilisation", memory),
            ("prefill share", self.prefill_share()),
        ];
        match shares.into_iter().find(|(_, value)| !(0.0..=1.0).contains(value)) {
            Some((what, value)) => Err(PowerError::Share { what, value }),
            None => Ok(()),
        }
    }
}

/// Where dynamic power comes from, at the full clock.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Dynamic {
    /// One power a phase, whatever the utilisation (Splitwise: 700 W and 380 W on an H100, 400 W and 250 W on an A100,
    /// idle 75 W and 63 W). A mixed step draws the mean of both by its share of prompts.
    Phases {
        /// Watts in steps of prompts.
        prefill_w: f64,
        /// Watts in steps of output tokens.
        decode_w: f64,
    },
    /// idle + (max - idle) * (compute weight * compute utilisation + memory weight * memory utilisation); never above max.
    Weights {
        /// Watts at the most: `tdp_w` of a profile.
        max_w: f64,
        /// Weight of compute (w_c).
        compute: f64,
        /// Weight of memory (w_m). Both have to be fitted to a device.
        memory: f64,
    },
}

/// One device.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PowerModel {
    /// Watts with nothing to compute: `idle_w` of a profile. A device that serves holds a context, which adds tens of
    /// watts to its bare idle power.
    pub idle_w: f64,
    /// Watts above that.
    pub dynamic: Dynamic,
    /// A cap in watts: the clock falls as far as the work needs to keep it.
    pub cap_w: Option<f64>,
    /// Core clock over the full one, above 0 and at most 1; none is 1.
    pub frequency_ratio: Option<f64>,
}

/// Why a power model is refused.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PowerError {
    /// A power that is negative, no number, or below the idle power.
    #[error(
        "{what} is {value} W; it must be a number, 0 or more, and not below the idle power of {idle_w} W"
    )]
    Watts {
        /// Which.
        what: &'static str,
        /// What was given.
        value: f64,
        /// The idle power.
        idle_w: f64,
    },
    /// A weight that is negative or no number.
    #[error("the weight of {what} is {}; it must be a number of 0 or more", written(*value))]
    Weight {
        /// Which.
        what: &'static str,
        /// What was given.
        value: f64,
    },
    /// No slower clock could keep the cap.
    #[error("cap_w is {cap_w} W; it must be above the idle power of {idle_w} W, which no clock can lower")]
    Cap {
        /// What was given.
        cap_w: f64,
        /// The idle power.
        idle_w: f64,
    },
    /// A clock that stands still or is faster than it can be.
    #[error("frequency_ratio is {}; it must be above 0 and at most 1", written(*.0))]
    Frequency(f64),
    /// A share that is none.
    #[error("{what} is {}; it must be between 0 and 1", written(*value))]
    Share {
        /// Which.
        what: &'static str,
        /// What was given.
        value: f64,
    },
}

impl PowerModel {
    /// Whether it makes sense.
    ///
    /// # Errors
    /// [`PowerError`] says what does not.
    pub fn check(&self) -> Result<(), PowerError> {
        let idle_w = self.idle_w;
        let watts = |what, value: f64| {
            let fine = value.is_finite() && value >= 0.0 && value >= idle_w;
            if fine {
                Ok(())
            } else {
                Err(PowerError::Watts { what, value, idle_w })
            }
        };
        watts("idle_w", idle_w)?;
        match self.dynamic {
            Dynamic::Phases { prefill_w, decode_w } => {
                watts("prefill_w", prefill_w)?;
                watts("decode_w", decode_w)?;
            }
            Dynamic::Weights {
                max_w,
                compute,
                memory,
            } => {
                watts("max_w", max_w)?;
                for (what, value) in [("compute", compute), ("memory", memory)] {
                    if !(value.is_finite() && value >= 0.0) {
                        return Err(PowerError::Weight { what, value });
                    }
                }
            }
        }
        if let Some(cap_w) = self.cap_w
            && !(cap_w.is_finite() && cap_w > idle_w)
        {
            return Err(PowerError::Cap { cap_w, idle_w });
        }
        match self.frequency_ratio {
            Some(ratio) if !(ratio > 0.0 && ratio <= 1.0) => Err(PowerError::Frequency(ratio)),
            _ => Ok(()),
        }
    }

    /// Watts above idle at the full clock and without a cap.
    fn full_dynamic_w(&self, work: &Work) -> f64 {
        match self.dynamic {
            Dynamic::Phases { prefill_w, decode_w } => {
                let share = work.prefill_share();
                prefill_w * share + decode_w * (1.0 - share) - self.idle_w
            }
            Dynamic::Weights {
                max_w,
                compute,
                memory,
            } => {
                let (u_compute, u_memory) = work.utilisation();
                let load = (compute * u_compute + memory * u_memory).min(1.0);
                (max_w - self.idle_w) * load
            }
        }
    }

    /// The clock that this work runs at, over the full one: the ratio set, or the one that keeps the cap if that is lower.
    pub fn clock(&self, work: &Work) -> f64 {
        let set = self.frequency_ratio.unwrap_or(1.0);
        let full = self.full_dynamic_w(work);
        match self.cap_w {
            Some(cap_w) if full > 0.0 => set.min(((cap_w - self.idle_w) / full).cbrt()),
            _ => set,
        }
    }

    /// Watts above idle, at the clock that this work runs at.
    pub fn dynamic_w(&self, work: &Work) -> f64 {
        self.full_dynamic_w(work) * self.clock(work).powi(3)
    }

    /// Watts in all, at the clock that this work runs at.
    pub fn watts(&self, work: &Work) -> f64 {
        self.idle_w + self.dynamic_w(work)
    }

    /// How much longer this work takes than at the full clock, 1 or more: what a simulation multiplies its step by.
    /// Without utilisations (both 0), prompts count as bound by compute, output tokens as bound by memory, and a mixed step
    /// is stretched by its share of prompts.
    pub fn time_factor(&self, work: &Work) -> f64 {
        let slower = 1.0 / self.clock(work);
        let (compute, memory) = work.utilisation();
        let bound = compute.max(memory);
        if bound > 0.0 {
            return (compute * slower).max(memory) / bound;
        }
        let share = work.prefill_share();
        share * slower + (1.0 - share)
    }

    /// The interval that begins at `start` and takes `full_clock` at the full clock.
    pub fn interval(&self, start: SimTime, full_clock: SimDuration, work: Work) -> super::Interval {
        // Rounded to a nanosecond; saturates like all times here.
        let nanos = (full_clock.as_nanos() as f64 * self.time_factor(&work)).round();
        super::Interval {
            start,
            end: start + SimDuration(nanos as u64),
            work,
        }
    }
}
