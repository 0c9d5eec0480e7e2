//! Kernel tables in Parquet, as AI Configurator's collectors write them, into plain rows.
//!
//! A folder of one device holds any of the tables of [`TABLES`], at any depth. Of a table that is there in
//! several versions the newest counts, because a mean of two kernels is the time of neither. Rows that give the
//! same key twice become one row with their median.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use parquet::record::Field;
use sha2::{Digest, Sha256};

use super::DataTable;
use super::table::{Table, broken};
use crate::input::InputError;

/// Names of the tables that are understood.
pub const TABLES: [&str; 5] = [
    "gemm_perf.parquet",
    "context_attention_perf.parquet",
    "generation_attention_perf.parquet",
    "custom_allreduce_perf.parquet",
    "moe_perf.parquet",
];
/// The largest table that is read: a hundred times the largest that is known.
const MAX_TABLE_BYTES: u64 = 256 << 20;
/// Folders in each other, at most: a loop of links ends here.
const MAX_DEPTH: usize = 8;
/// Bytes of an element of the messages of the all-reduce tables: bf16 throughout.
const MESSAGE_ELEMENT_BYTES: f64 = 2.0;

/// A matrix product of (m, k) and (k, n).
#[derive(Debug, Clone, PartialEq)]
pub struct Gemm {
    /// Number format as the table names it: `bfloat16`, `fp8`, `fp8_block`.
    pub dtype: String,
    /// Rows of activations (tokens).
    pub m: f64,
    /// Output features.
    pub n: f64,
    /// Input features.
    pub k: f64,
    /// Measured time in seconds.
    pub seconds: f64,
}

/// Attention of some sequences of one length: causal over itself (context), or one query after a context.
#[derive(Debug, Clone, PartialEq)]
pub struct Attention {
    /// Number format of the KV cache.
    pub kv_dtype: String,
    /// Sequences.
    pub sequences: f64,
    /// Tokens of a sequence: of its prompt, or those that the query looks at.
    pub tokens: f64,
    /// Query heads.
    pub heads: f64,
    /// Key and value heads.
    pub kv_heads: f64,
    /// Elements of a head.
    pub head_dim: f64,
    /// Measured time in seconds.
    pub seconds: f64,
}

/// An all-reduce inside a captured graph.
#[derive(Debug, Clone, PartialEq)]
pub struct AllReduce {
    /// Ranks.
    pub ranks: u32,
    /// Bytes of the message.
    pub bytes: f64,
    /// Measured time in seconds.
    pub seconds: f64,
}

/// A layer of experts, router apart.
#[derive(Debug, Clone, PartialEq)]
pub struct Experts {
    /// Number format of the experts' weights.
    pub dtype: String,
    /// How tokens were spread over experts: `balanced`, `power_law_1.01`, ...
    pub routing: String,
    /// Tokens.
    pub tokens: f64,
    /// Hidden size.
    pub hidden: f64,
    /// Width of one expert on the rank.
    pub width: f64,
    /// Experts a token.
    pub per_token: f64,
    /// Experts.
    pub experts: f64,
    /// Measured time in seconds.
    pub seconds: f64,
}

/// All rows of one device.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct KernelRows {
    /// Matrix products.
    pub gemm: Vec<Gemm>,
    /// Prefill attention.
    pub context: Vec<Attention>,
    /// Decode attention.
    pub generation: Vec<Attention>,
    /// All-reduces.
    pub all_reduce: Vec<AllReduce>,
    /// Expert layers.
    pub experts: Vec<Experts>,
    /// The device's names in the tables.
    pub devices: BTreeSet<String>,
    /// The tables read, and those that a newer one replaced.
    pub tables: Vec<DataTable>,
}

/// Reads every known table below `folder`.
///
/// # Errors
/// [`InputError`] when there is none, when one is not a whole Parquet file, lacks a column, holds times that are
/// not positive numbers, or when the tables are of several devices.
pub fn read_folder(folder: &Path) -> Result<KernelRows, InputError> {
    let mut found = Found::new();
    collect(folder, 0, &mut found)?;
    if found.is_empty() {
        return Err(
            InputError::in_file(folder, "holds no kernel table").allowed(format!(
                "give the folder of one device with any of {}",
                TABLES.join(", ")
            )),
        );
    }
    let mut rows = KernelRows::default();
    for ((_, name), mut paths) in found {
        paths.sort_by_key(|p| version_of(p));
        let newest = paths.pop();
        rows.tables.extend(paths.iter().map(|p| DataTable {
            file: shown(folder, p),
            sha256: None,
            rows: 0,
            used: 0,
            left_out: Some("a newer version of the same table is there".into()),
        }));
        if let Some(path) = newest {
            let table = read_table(folder, &path, &mut rows, name)?;
            rows.tables.push(table);
        }
    }
    if rows.devices.len() > 1 {
        let names: Vec<_> = rows.devices.iter().map(String::as_str).collect();
        return Err(InputError::in_file(
            folder,
            format!("holds kernels of several devices: {}", names.join(", ")),
        )
        .allowed("give the folder of one device"));
    }
    Ok(rows)
}

/// Files by the folder that holds the folders of versions, and by table: versions compete with their neighbours
/// only, so tables of two devices stay two.
type Found = BTreeMap<(PathBuf, &'static str), Vec<PathBuf>>;

fn collect(folder: &Path, depth: usize, found: &mut Found) -> Result<(), InputError> {
    let unreadable = |e| {
        InputError::in_file(folder, format!("cannot be listed ({e})"))
            .allowed("give a folder of kernel tables")
    };
    for entry in std::fs::read_dir(folder).map_err(unreadable)? {
        let path = entry.map_err(unreadable)?.path();
        if path.is_dir() {
            if depth < MAX_DEPTH {
                collect(&path, depth + 1, found)?;
            }
        } else if let Some(name) = TABLES.iter().find(|t| path.file_name().is_some_and(|f| f == **t)) {
            let versions = folder.parent().unwrap_or(folder).to_owned();
            found.entry((versions, name)).or_default().push(path);
        }
    }
    Ok(())
}

/// The numbers of the version that names a table's folder (`0.24.0`), for telling which is newer; then the path.
fn version_of(path: &Path) -> (Vec<u64>, PathBuf) {
    let folder = path.parent().and_then(Path::file_name).unwrap_or_default();
    let numbers = folder
        .to_string_lossy()
        .split('.')
        .filter_map(|n| n.parse().ok())
        .collect();
    (numbers, path.to_owned())
}

fn shown(folder: &Path, path: &Path) -> String {
    path.strip_prefix(folder).unwrap_or(path).display().to_string()
}

fn read_table(
    folder: &Path,
    path: &Path,
    rows: &mut KernelRows,
    name: &'static str,
) -> Result<DataTable, InputError> {
    let bytes = read_bytes(path)?;
    let sha256 = Sha256::digest(&bytes)
        .iter()
        .map(|b| format!("{b:02x}"))
        .collect();
    // The reader is written for well-formed files and may stop at an assertion inside a broken one.
    let table = catch_unwind(AssertUnwindSafe(|| Table::read(path)))
        .unwrap_or_else(|_| Err(broken(path, "the reader stopped in the middle of it")))?;
    rows.devices.extend(table.devices()?);
    let used = match name {
        "gemm_perf.parquet" => keep(&mut rows.gemm, gemms(&table)?),
        "context_attention_perf.parquet" => keep(&mut rows.context, attentions(&table, false)?),
        "generation_attention_perf.parquet" => keep(&mut rows.generation, attentions(&table, true)?),
        "custom_allreduce_perf.parquet" => keep(&mut rows.all_reduce, all_reduces(&table)?),
        _ => keep(&mut rows.experts, experts(&table)?),
    };
    Ok(DataTable {
        file: shown(folder, path),
        sha256: Some(sha256),
        rows: table.len() as u64,
        used,
        left_out: None,
    })
}

fn keep<T>(all: &mut Vec<T>, more: Vec<T>) -> u64 {
    let n = more.len() as u64;
    all.extend(more);
    n
}

fn read_bytes(path: &Path) -> Result<Vec<u8>, InputError> {
    let size = std::fs::metadata(path)
        .map_err(|e| InputError::in_file(path, format!("cannot be opened ({e})")))?
        .len();
    if size == 0 {
        return Err(InputError::in_file(path, "is empty").allowed("fetch the table again"));
    }
    if size > MAX_TABLE_BYTES {
        return Err(
            InputError::in_file(path, format!("has {size} bytes, more than {MAX_TABLE_BYTES}"))
                .allowed("check that it is the table you mean"),
        );
    }
    std::fs::read(path).map_err(|e| InputError::in_file(path, format!("cannot be read ({e})")))
}

fn gemms(table: &Table) -> Result<Vec<Gemm>, InputError> {
    let rows = table.grouped(&["gemm_dtype"], ["m", "n", "k"], |_, _| Ok(true))?;
    Ok(rows
        .into_iter()
        .map(|(mut text, [m, n, k], seconds)| Gemm {
            dtype: text.swap_remove(0),
            m,
            n,
            k,
            seconds,
        })
        .collect())
}

/// Rows without a window; the context of decode rows stands in `step`, one less than what the query looks at.
fn attentions(table: &Table, decode: bool) -> Result<Vec<Attention>, InputError> {
    let window = table.optional("window_size");
    let length = if decode { "step" } else { "isl" };
    let rows = table.grouped(
        &["kv_cache_dtype"],
        [
            "batch_size",
            length,
            "num_heads",
            "num_key_value_heads",
            "head_dim",
        ],
        |t, row| Ok(window.is_none_or(|w| matches!(t.field(row, w), Some(Field::Long(0) | Field::Int(0))))),
    )?;
    Ok(rows
        .into_iter()
        .map(
            |(mut text, [sequences, length, heads, kv_heads, head_dim], seconds)| Attention {
                kv_dtype: text.swap_remove(0),
                sequences,
                tokens: if decode { length + 1.0 } else { length },
                heads,
                kv_heads,
                head_dim,
                seconds,
            },
        )
        .collect())
}

/// Rows inside a captured graph, as an engine runs them; eager rows hold the launch from the host as well.
fn all_reduces(table: &Table) -> Result<Vec<AllReduce>, InputError> {
    let backend = table.column("backend")?;
    let rows = table.grouped(&["backend"], ["num_gpus", "message_size"], |t, row| {
        Ok(t.text(row, backend)?.ends_with("graph"))
    })?;
    Ok(rows
        .into_iter()
        .map(|(_, [ranks, elements], seconds)| AllReduce {
            // More ranks than that have no node.
            ranks: ranks.min(f64::from(u16::MAX)) as u32,
            bytes: elements * MESSAGE_ELEMENT_BYTES,
            seconds,
        })
        .collect())
}

/// Rows without expert parallelism: with it the table does not say which experts the rank held.
fn experts(table: &Table) -> Result<Vec<Experts>, InputError> {
    let (tp, ep) = (table.column("moe_tp_size")?, table.column("moe_ep_size")?);
    let rows = table.grouped(
        &["moe_dtype", "distribution"],
        [
            "num_tokens",
            "hidden_size",
            "inter_size",
            "moe_tp_size",
            "topk",
            "num_experts",
        ],
        |t, row| Ok(t.positive(row, ep)? <= 1.0 && t.positive(row, tp)? >= 1.0),
    )?;
    Ok(rows
        .into_iter()
        .filter(|(_, [_, _, inter, tp, _, _], _)| inter % tp == 0.0)
        .map(
            |(mut text, [tokens, hidden, inter, tp, per_token, experts], seconds)| Experts {
                routing: text.swap_remove(1),
                dtype: text.swap_remove(0),
                tokens,
                hidden,
                width: inter / tp,
                per_token,
                experts,
                seconds,
            },
        )
        .collect())
}

#[cfg(test)]
#[path = "read_tests.rs"]
mod tests;
