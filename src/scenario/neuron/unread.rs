//! Knobs without effect: of another plugin, or of something that this scenario does not model.

use super::Around;
use crate::input::InputError;
use crate::scenario::check::Blame;
use crate::scenario::schema::Engine;

/// Knobs that the plugin does not read.
///
/// # Errors
/// [`InputError`] for one that is given.
pub(super) fn check(e: &Engine, native: bool, blame: &Blame<'_>) -> Result<(), InputError> {
    let path = |key: &str| format!("system.engine.{key}");
    macro_rules! absent {
        ($why:expr, $($key:ident),+) => { $(blame.absent(&path(stringify!($key)), e.$key.as_ref(), $why)?;)+ };
    }
    absent!(
        "CUDA graphs are those of GPUs: leave it out",
        enforce_eager,
        cudagraph_mode,
        cudagraph_capture_sizes
    );
    absent!(
        "it is not modelled under the Neuron plugins: leave it out",
        max_num_active_seqs,
        max_num_scheduled_tokens,
        long_prefill_token_threshold,
        watermark,
        scheduler_reserve_full_isl,
        num_speculative_tokens,
        num_lookahead_tokens,
        dp_sync_interval,
        prefill_schedule_interval
    );
    if native {
        absent!(
            "it belongs to plugin 0.2.0: leave it out (the native plugin has num_seqs_buckets and \
             decode_context_length_buckets)",
            enable_bucketing,
            context_encoding_buckets,
            token_generation_buckets,
            token_generation_batches,
            async_mode,
            disable_neuron_custom_scheduler
        );
        if e.pa_num_blocks.is_some() {
            absent!(
                "pa_num_blocks takes the place of all derivation from memory: keep one of the two",
                gpu_memory_utilization,
                kv_cache_memory_bytes,
                runtime_reserve
            );
        }
    } else {
        absent!(
            "it belongs to the native plugin: leave it out (plugin 0.2.0 has token_generation_batches and \
             token_generation_buckets)",
            num_seqs_buckets,
            decode_context_length_buckets
        );
        absent!(
            "plugin 0.2.0 gives every seat a whole sequence of KV cache: give pa_num_blocks instead",
            gpu_memory_utilization,
            kv_cache_memory_bytes,
            runtime_reserve
        );
    }
    Ok(())
}

/// Does `$with` to every knob that says nothing but which programs are compiled and how they overlap: step times that
/// are stated know none.
macro_rules! of_programs {
    ($with:ident) => {
        $with!(
            enable_bucketing,
            context_encoding_buckets,
            token_generation_buckets,
            token_generation_batches,
            num_seqs_buckets,
            decode_context_length_buckets,
            on_device_sampling,
            async_mode
        );
    };
}

/// Knobs that the rest of the system takes the effect from.
///
/// # Errors
/// [`InputError`] for one that is given all the same.
pub(super) fn check_beside(
    e: &Engine,
    native: bool,
    around: Around<'_>,
    blame: &Blame<'_>,
) -> Result<(), InputError> {
    if !around.states_step_time {
        return Ok(());
    }
    const WHY: &str = "system.step_time states what a step takes, whatever is compiled: leave it out, or name a fit under \
                       system.fit instead";
    macro_rules! refuse {
        ($($key:ident),+) => { $(blame.absent(concat!("system.engine.", stringify!($key)), e.$key.as_ref(), WHY)?;)+ };
    }
    of_programs!(refuse);
    if native {
        refuse!(async_scheduling);
    }
    if around.accelerator.is_some() && !around.has_model {
        refuse!(lnc);
    }
    Ok(())
}

/// Takes out what was filled into the knobs that [`check_beside`] refuses.
pub(super) fn blank(e: &mut Engine, native: bool, around: Around<'_>) {
    if !around.states_step_time {
        return;
    }
    macro_rules! clear {
        ($($key:ident),+) => { $(e.$key = None;)+ };
    }
    of_programs!(clear);
    if native {
        clear!(async_scheduling);
    }
    if !around.has_model {
        clear!(lnc);
    }
}
