//! What is compiled: buckets of prompts, contexts and rows (rules N20 to N26, N41, N42).

use super::NATIVE_BUDGET;
use crate::input::InputError;
use crate::scenario::check::Blame;
use crate::scenario::provenance::{Provenance, Source};
use crate::scenario::schema::Engine;
use crate::steptime::StaticShapes;
use crate::steptime::static_shape::{
    SMALLEST_BLOCK_BUCKET, SMALLEST_BUCKET, SMALLEST_PREFIX_BUCKET, batch_buckets, buckets,
};

/// The compiled shapes (rules N20 to N26, N41, N42).
pub(super) fn compiled(
    e: &mut Engine,
    native: bool,
    (longest, seqs): (u32, u32),
    provenance: &mut Provenance,
    origin: &str,
) -> Result<StaticShapes, InputError> {
    let on = e.enable_bucketing.unwrap_or(true);
    let caches = e.enable_prefix_caching == Some(true);
    let chunked = e.enable_chunked_prefill == Some(true);
    let of = |smallest: u32, largest: u32| {
        if on {
            buckets(smallest, largest)
        } else {
            vec![largest]
        }
    };
    let context_end = if native {
        e.max_num_batched_tokens.unwrap_or(NATIVE_BUDGET).min(longest)
    } else {
        longest
    };
    // NxDI lays the cache out in blocks for prompts that begin in it or are cut (rule N21).
    let in_blocks = !native && (caches || chunked);
    let (smallest, block) = if in_blocks {
        (SMALLEST_PREFIX_BUCKET, SMALLEST_BLOCK_BUCKET)
    } else {
        (SMALLEST_BUCKET, SMALLEST_BUCKET)
    };
    let mut list = |path: &str, slot: &mut Option<Vec<u32>>, usual: Vec<u32>, last: u32| {
        let source = Source::Derived("buckets of the plugin".into());
        let path = format!("system.engine.{path}");
        let list = provenance.fill(&path, slot, source, usual);
        check_list(&path, &list, last, &Blame { origin, provenance }).map(|()| list)
    };
    let (context_buckets, token_buckets, decode_batches) = if native {
        (
            of(smallest, context_end),
            list(
                "decode_context_length_buckets",
                &mut e.decode_context_length_buckets,
                vec![longest],
                longest,
            )?,
            list(
                "num_seqs_buckets",
                &mut e.num_seqs_buckets,
                batch_buckets(seqs),
                seqs,
            )?,
        )
    } else {
        (
            list(
                "context_encoding_buckets",
                &mut e.context_encoding_buckets,
                of(smallest, context_end),
                longest,
            )?,
            list(
                "token_generation_buckets",
                &mut e.token_generation_buckets,
                of(block, longest),
                longest,
            )?,
            list(
                "token_generation_batches",
                &mut e.token_generation_batches,
                vec![seqs],
                seqs,
            )?,
        )
    };
    let prefix_buckets = if caches || in_blocks {
        of(SMALLEST_PREFIX_BUCKET, longest)
    } else if chunked && context_end < longest {
        // A later segment reads the whole context (rule N41).
        vec![longest]
    } else {
        Vec::new()
    };
    Ok(StaticShapes {
        context_buckets,
        prefix_buckets,
        strict: !native,
        token_buckets,
        decode_batches,
        on_device_sampling: e.on_device_sampling.unwrap_or(true),
        asynchronous: e.async_mode.or(e.async_scheduling).unwrap_or(false),
    })
}

/// A list of buckets: rising, and the last one holds all.
fn check_list(path: &str, list: &[u32], last: u32, blame: &Blame<'_>) -> Result<(), InputError> {
    let rising = list.windows(2).all(|pair| pair[0] < pair[1]) && list.first() != Some(&0);
    if rising && list.last() == Some(&last) {
        return Ok(());
    }
    Err(blame.error(
        path,
        format!("found {list:?}"),
        format!("allowed: whole numbers from 1 on, rising, of which the last is {last}"),
    ))
}
