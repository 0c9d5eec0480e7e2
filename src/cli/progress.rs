//! Progress bars on stderr, drawn only once the work has lasted two seconds.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A bar of `length` units that appears after two seconds; hidden for good when `wanted` is false.
pub(super) fn delayed_bar(message: &'static str, length: u64, wanted: bool) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(length), ProgressDrawTarget::hidden()).with_message(message);
    if let Ok(style) = ProgressStyle::with_template("{msg} [{bar:30}] {pos}/{len}, {eta} left") {
        bar.set_style(style);
    }
    if wanted {
        let weak = bar.downgrade();
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_secs(2));
            if let Some(bar) = weak.upgrade().filter(|b| !b.is_finished()) {
                bar.set_draw_target(ProgressDrawTarget::stderr());
                bar.tick();
            }
        });
    }
    bar
}
