//! The kernel door: what measured kernels of a device say about the parameters of step times.
//!
//! Tables of single kernels (matrix products, attention, all-reduces, expert layers) give each parameter a value
//! and a spread over shapes. Kernels know nothing of a host, a scheduler or what runs between them, so a fit of
//! kernels is a prior for fits of steps, events or points, and a device that has nothing else is predicted from
//! it with the width it deserves. A device without kernels gets the mean of others with their spread.

mod attention;
mod collective;
pub mod fitting;
mod gemm;
mod moe;
mod prior;
pub mod read;
mod table;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::Path;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::input::{InputError, read_text};
use crate::profile::{Accelerator, catalog};

pub use read::{KernelRows, read_folder};

/// The version of the kernel fit's format.
pub const KERNEL_FIT_FORMAT: u32 = 1;
/// Share of the matrix products that may beat the peak before the device is doubted: clocks boost, sizes are
/// rounded.
const FASTER_SHARE: f64 = 0.01;
/// How much faster than the peak is impossible.
const FASTER: f64 = 1.1;

/// What kernels say about a device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KernelFit {
    /// Format of this file, [`KERNEL_FIT_FORMAT`].
    pub kneeboard_kernel_fit: u32,
    /// Program and version that fitted.
    pub fitted_with: String,
    /// The accelerator's profile.
    pub accelerator: String,
    /// The device's names in the tables; for carried-over values the devices they come from.
    pub devices: Vec<String>,
    /// Whether the values are those of other devices.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub carried_over: bool,
    /// The kinds of kernels.
    pub parts: Vec<PartFit>,
    /// The tables.
    pub data: Vec<DataTable>,
}

/// The fit of one kind of kernel.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PartFit {
    /// The kind.
    pub part: String,
    /// Rows fitted.
    pub rows: u64,
    /// Families of shapes among them.
    pub families: u64,
    /// The parameters.
    pub parameters: Vec<KernelParameter>,
    /// Errors on families that were left out of the fit in turn, by regime; the first is of all rows.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub held_out: Vec<RegimeErrors>,
    /// What to know about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// A parameter as kernels tell it: a log-normal prior.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KernelParameter {
    /// Its name.
    pub name: String,
    /// Its value, the median of the prior.
    pub value: f64,
    /// Its unit; `1` for fractions and exponents.
    pub unit: String,
    /// Standard deviation of the prior's logarithm: the spread over families of shapes (or over devices).
    pub log_sd: f64,
    /// Rows of which it makes at least half the time; with few of them the value is a guess.
    pub telling_rows: u64,
    /// Whether the value stands at the edge of what is possible, and so is not to be believed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub at_bound: bool,
}

/// Relative errors of kernels of one regime, (predicted - measured) / measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RegimeErrors {
    /// The regime.
    pub regime: String,
    /// Rows.
    pub rows: u64,
    /// Median signed error.
    pub bias: f64,
    /// Median absolute error.
    pub median_abs: f64,
    /// 90th percentile of the absolute error.
    pub p90_abs: f64,
}

/// One table of kernels.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DataTable {
    /// File, below the folder that was given.
    pub file: String,
    /// SHA-256 of the file, where it was read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
    /// Rows of the table.
    pub rows: u64,
    /// Rows after equal keys became one and rows of other kinds were left out.
    pub used: u64,
    /// Why it was not read, if it was not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left_out: Option<String>,
}

/// The figures of a device that kernels are compared with.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Device {
    /// Dense bf16 peak in FLOP/s.
    pub bf16_flops: f64,
    /// Dense fp8 peak in FLOP/s, where it has one.
    pub fp8_flops: Option<f64>,
    /// Memory bandwidth in bytes a second.
    pub bytes_per_s: f64,
    /// On-chip memory in bytes, where it is known.
    pub on_chip_bytes: Option<f64>,
    /// Bytes a second one way between ranks, and whether it is a scale-up link rather than PCIe.
    pub link: Option<(f64, bool)>,
}

impl Device {
    /// The figures of a profile.
    ///
    /// # Errors
    /// [`InputError`] when the profile states no bf16 peak or no memory bandwidth.
    pub fn of(accelerator: &Accelerator) -> Result<Self, InputError> {
        let missing = |figure: &str| {
            InputError::new(
                format!("accelerator '{}'", accelerator.name),
                format!("its profile states no {figure}, so nothing can be told in fractions of it"),
            )
            .allowed("name an accelerator whose profile has the figure")
        };
        let bf16 = accelerator
            .bf16_tflops
            .as_ref()
            .ok_or_else(|| missing("bf16_tflops"))?;
        let bandwidth = accelerator
            .memory_bandwidth_gb_s
            .as_ref()
            .ok_or_else(|| missing("memory_bandwidth_gb_s"))?;
        Ok(Self {
            bf16_flops: bf16.value * 1e12,
            fp8_flops: accelerator.fp8_tflops.as_ref().map(|f| f.value * 1e12),
            bytes_per_s: bandwidth.value * 1e9,
            on_chip_bytes: accelerator.on_chip_bytes.as_ref().map(|f| f.value as f64),
            link: match (&accelerator.scaleup_gb_s, &accelerator.pcie_gb_s) {
                (Some(link), _) => Some((link.value * 1e9, true)),
                (None, Some(pcie)) => Some((pcie.value * 1e9, false)),
                (None, None) => None,
            },
        })
    }

    /// Whether data of this size are read from the memory (`margin` times the on-chip memory or more), or are so
    /// few that where they are read from does not matter.
    fn outside_cache(&self, bytes: f64, margin: f64) -> bool {
        self.on_chip_bytes
            .is_none_or(|cache| bytes >= margin * cache || self.in_cache(bytes))
    }

    /// Whether data are so few that they stay in the on-chip memory.
    fn in_cache(&self, bytes: f64) -> bool {
        self.on_chip_bytes
            .is_some_and(|cache| bytes <= gemm::SMALL_SHARE * cache)
    }
}

/// Fits all kinds of kernels of `rows` to `accelerator`.
///
/// # Errors
/// [`InputError`] when the profile lacks figures, when kernels are faster than the device can be, or when there
/// are too few rows of every kind.
pub fn fit_kernels(
    folder: &Path,
    rows: &KernelRows,
    accelerator: &Accelerator,
) -> Result<KernelFit, InputError> {
    let device = Device::of(accelerator)?;
    refuse_other_device(folder, rows, accelerator)?;
    refuse_impossible(folder, rows, accelerator, &device)?;
    let mut parts = gemm::parts(&rows.gemm, &device);
    parts.extend(attention::prefill(&rows.context, &device));
    parts.extend(attention::decode(&rows.generation, &device));
    parts.extend(collective::all_reduce(&rows.all_reduce, &device));
    parts.extend(moe::experts(&rows.experts, &device));
    if parts.is_empty() {
        return Err(
            InputError::in_file(folder, "holds too few kernels of every kind to fit anything").allowed(
                "at least ten usable rows a parameter are needed; docs/CALIBRATION.md says which are usable",
            ),
        );
    }
    relate_experts(&mut parts);
    Ok(KernelFit {
        kneeboard_kernel_fit: KERNEL_FIT_FORMAT,
        fitted_with: format!("kneeboard {}", env!("CARGO_PKG_VERSION")),
        accelerator: accelerator.name.clone(),
        devices: rows.devices.iter().cloned().collect(),
        carried_over: false,
        parts,
        data: rows.tables.clone(),
    })
}

/// The tables name their device as its driver does; profiles know such names as aliases.
fn refuse_other_device(
    folder: &Path,
    rows: &KernelRows,
    accelerator: &Accelerator,
) -> Result<(), InputError> {
    for name in &rows.devices {
        if let Ok(profile) = catalog::accelerator(name, Path::new("."))
            && profile.name != accelerator.name
        {
            return Err(InputError::in_file(
                folder,
                format!(
                    "holds kernels of {name}, which is '{}', not '{}'",
                    profile.name, accelerator.name
                ),
            )
            .allowed(format!("give --accelerator {}", profile.name)));
        }
    }
    Ok(())
}

/// Tables of another device, or in other units, show as products faster than the peak.
fn refuse_impossible(
    folder: &Path,
    rows: &KernelRows,
    accelerator: &Accelerator,
    device: &Device,
) -> Result<(), InputError> {
    let bf16: Vec<_> = rows.gemm.iter().filter(|r| r.dtype == "bfloat16").collect();
    let faster = bf16
        .iter()
        .filter(|r| 2.0 * r.m * r.n * r.k / r.seconds > FASTER * device.bf16_flops)
        .count();
    if faster as f64 > FASTER_SHARE * bf16.len() as f64 {
        let names: Vec<_> = rows.devices.iter().map(String::as_str).collect();
        return Err(InputError::in_file(
            folder,
            format!(
                "{faster} of {} bf16 products are faster than the peak of '{}'",
                bf16.len(),
                accelerator.name
            ),
        )
        .allowed(format!(
            "the tables are of {}: name that accelerator with --accelerator; latencies are in milliseconds",
            if names.is_empty() {
                "an unnamed device".to_owned()
            } else {
                names.join(", ")
            }
        )));
    }
    Ok(())
}

/// What grouped products reach of what dense ones reach, from the two fits.
fn relate_experts(parts: &mut [PartFit]) {
    let find = |parts: &[PartFit], part: &str, name: &str| {
        let part = parts.iter().find(|p| p.part == part)?;
        part.parameters.iter().find(|p| p.name == name).cloned()
    };
    let dense = find(parts, "gemm bfloat16", "gemm_compute");
    let grouped = find(parts, "experts bfloat16", "moe_compute");
    if let (Some(dense), Some(grouped)) = (dense, grouped)
        && let Some(part) = parts.iter_mut().find(|p| p.part == "experts bfloat16")
    {
        part.parameters.push(KernelParameter {
            name: "moe_efficiency".into(),
            value: grouped.value / dense.value,
            unit: "1".into(),
            log_sd: grouped.log_sd.hypot(dense.log_sd),
            telling_rows: grouped.telling_rows,
            at_bound: grouped.at_bound || dense.at_bound,
        });
    }
}

/// What the fits of other devices say about one without kernels: of each parameter the geometric mean, and a width
/// that holds both the spread between devices and that over shapes.
///
/// # Errors
/// [`InputError`] for fewer than two fits: one device has no spread between devices.
pub fn carry_over(accelerator: &Accelerator, fits: &[KernelFit]) -> Result<KernelFit, InputError> {
    if fits.len() < 2 {
        return Err(
            InputError::new("--carry-over", "gives fewer than two fits of kernels")
                .allowed("give the fits of two devices or more"),
        );
    }
    let mut names: Vec<(&str, &str)> = Vec::new();
    let mut values: BTreeMap<(&str, &str), Vec<&KernelParameter>> = BTreeMap::new();
    for part in fits.iter().flat_map(|f| &f.parts) {
        for parameter in &part.parameters {
            let key = (part.part.as_str(), parameter.name.as_str());
            if !names.contains(&key) {
                names.push(key);
            }
            values.entry(key).or_default().push(parameter);
        }
    }
    let mut parts: Vec<PartFit> = Vec::new();
    for key in names {
        let of_devices = &values[&key];
        let parameter = mean_of(of_devices);
        match parts.iter_mut().find(|p| p.part == key.0) {
            Some(part) => part.parameters.push(parameter),
            None => parts.push(PartFit {
                part: key.0.to_owned(),
                rows: 0,
                families: of_devices.len() as u64,
                parameters: vec![parameter],
                held_out: Vec::new(),
                note: Some("mean of other devices; families counts devices".into()),
            }),
        }
    }
    Ok(KernelFit {
        kneeboard_kernel_fit: KERNEL_FIT_FORMAT,
        fitted_with: format!("kneeboard {}", env!("CARGO_PKG_VERSION")),
        accelerator: accelerator.name.clone(),
        devices: fits.iter().map(|f| f.accelerator.clone()).collect(),
        carried_over: true,
        parts,
        data: Vec::new(),
    })
}

fn mean_of(of_devices: &[&KernelParameter]) -> KernelParameter {
    /// Between devices, when there is one only.
    const ALONE: f64 = 0.5;
    let n = of_devices.len() as f64;
    let mean = of_devices.iter().map(|p| p.value.ln()).sum::<f64>() / n;
    let between = if of_devices.len() < 2 {
        ALONE
    } else {
        let squares: f64 = of_devices.iter().map(|p| (p.value.ln() - mean).powi(2)).sum();
        (squares / (n - 1.0)).sqrt()
    };
    let within = (of_devices.iter().map(|p| p.log_sd.powi(2)).sum::<f64>() / n).sqrt();
    KernelParameter {
        name: of_devices[0].name.clone(),
        value: mean.exp(),
        unit: of_devices[0].unit.clone(),
        log_sd: between.hypot(within),
        telling_rows: of_devices.iter().map(|p| p.telling_rows).sum(),
        at_bound: false,
    }
}

impl KernelFit {
    /// The fit as YAML.
    ///
    /// # Errors
    /// What the YAML writer says.
    pub fn to_yaml(&self) -> Result<String, String> {
        serde_saphyr::to_string(self).map_err(|e| e.to_string())
    }

    /// Reads a fit of kernels.
    ///
    /// # Errors
    /// [`InputError`] when the file cannot be read, is no fit of kernels, or of another format.
    pub fn read(path: &Path) -> Result<Self, InputError> {
        let fit: Self = crate::yaml::parse(&read_text(path)?, &path.display().to_string())?;
        if fit.kneeboard_kernel_fit != KERNEL_FIT_FORMAT {
            return Err(InputError::in_file(
                path,
                format!("is a fit of kernels of format {}", fit.kneeboard_kernel_fit),
            )
            .allowed(format!(
                "this version reads format {KERNEL_FIT_FORMAT}: fit again"
            )));
        }
        let wrong = |p: &&KernelParameter| {
            let sound = |x: f64| x.is_finite() && x > 0.0;
            !sound(p.value) || !sound(p.log_sd)
        };
        if let Some(p) = fit.parts.iter().flat_map(|p| &p.parameters).find(wrong) {
            return Err(InputError::in_file(
                path,
                format!("'{}' is {} with log_sd {}", p.name, p.value, p.log_sd),
            )
            .allowed("finite numbers above 0"));
        }
        Ok(fit)
    }
}
