//! Progress bars on stderr, drawn only once the work has lasted two seconds.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A bar that is drawn moves so often.
const TICK: Duration = Duration::from_millis(250);

/// What a search has run so far: nobody knows how many loads it takes. As [`delayed_bar`] else.
pub(super) fn delayed_count(message: &'static str, wanted: bool) -> ProgressBar {
    let bar = delayed_bar(message, 0, wanted);
    if let Ok(style) = ProgressStyle::with_template("{spinner} {msg}: {pos} loads run, {elapsed} so far") {
        bar.set_style(style);
    }
    bar
}

/// A bar of `length` units that appears after two seconds; hidden for good when `wanted` is false.
pub(super) fn delayed_bar(message: &'static str, length: u64, wanted: bool) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(length), ProgressDrawTarget::hidden()).with_message(message);
    // Of one thing alone nobody knows how long it takes.
    let template = match length {
        0 | 1 => "{spinner} {msg}, {elapsed} so far",
        _ => "{msg} [{bar:30}] {pos}/{len}, {elapsed} so far, {eta} left",
    };
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    if wanted {
        let weak = bar.downgrade();
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_secs(2));
            if let Some(bar) = weak.upgrade().filter(|b| !b.is_finished()) {
                bar.set_draw_target(ProgressDrawTarget::stderr());
                // Long units would look like a standstill.
                bar.enable_steady_tick(TICK);
            }
        });
    }
    bar
}
