//! Progress for people and for scripts.

use std::io::{self, IsTerminal, Write};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::args::options::ProgressMode;
use super::render::{bytes, one_line, ratio};
use ckpt_agent::report::{Observer, Progress, ProgressEvent};

/// The observer that shows the progress of a command called `title`.
pub(super) fn observer(mode: ProgressMode, title: &'static str) -> Arc<dyn Observer> {
    let terminal = io::stderr().is_terminal();
    match mode {
        ProgressMode::Json => Arc::new(Lines),
        ProgressMode::Bar => Arc::new(Bar::new(title)),
        ProgressMode::Auto if terminal && !title.is_empty() => Arc::new(Bar::new(title)),
        ProgressMode::Auto => Arc::new(Warnings),
        ProgressMode::None => Arc::new(ckpt_agent::report::Silent),
    }
}

/// Prints each event as a JSON object in a line.
struct Lines;

impl Observer for Lines {
    fn event(&self, event: ProgressEvent) {
        // Fails only if standard error is closed.
        let _ = writeln!(io::stderr(), "{}", super::render::to_json(&event));
    }
}

/// Prints only warnings.
struct Warnings;

impl Observer for Warnings {
    fn event(&self, event: ProgressEvent) {
        if let Some(text) = message(&event) {
            let _ = writeln!(io::stderr(), "ckpt: {text}");
        }
    }
}

fn message(event: &ProgressEvent) -> Option<String> {
    match event {
        ProgressEvent::Progress(_) | ProgressEvent::ImageRead => None,
        ProgressEvent::HostReplaced { lost, .. } => {
            let host = one_line(&lost.host);
            let what = one_line(&lost.what);
            Some(format!("host {host} given up: {what}"))
        }
        ProgressEvent::Waiting { host, seconds } => {
            let (host, what) = (one_line(&host.host), one_line(&host.what));
            Some(format!(
                "host {host} is asked again in {seconds:.0} s: {what}"
            ))
        }
        ProgressEvent::VersionSkipped(skipped) => Some(one_line(&skipped.note()).into_owned()),
        ProgressEvent::Warning { message } => Some(one_line(message).into_owned()),
    }
}

/// A line on the terminal with bytes, rate, ratio and remaining time.
struct Bar {
    bar: ProgressBar,
    last: Mutex<Progress>,
}

impl Bar {
    fn new(title: &'static str) -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        bar.set_message(title);
        bar.set_style(style(false));
        bar.enable_steady_tick(Duration::from_millis(200));
        Self {
            bar,
            last: Mutex::new(Progress::default()),
        }
    }

    fn progress(&self, progress: Progress) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.total_bytes != progress.total_bytes {
            if let Some(total) = progress.total_bytes {
                self.bar.set_length(total);
            }
            self.bar.set_style(style(progress.total_bytes.is_some()));
        }
        self.bar.set_position(progress.done_bytes);
        let ratio = ratio(progress.done_bytes, progress.stored_bytes);
        let network = bytes(progress.network_bytes);
        self.bar
            .set_prefix(format!("ratio {ratio}, network {network}"));
        *last = progress;
    }
}

impl Observer for Bar {
    fn event(&self, event: ProgressEvent) {
        match event {
            ProgressEvent::Progress(progress) => self.progress(progress),
            other => {
                if let Some(text) = message(&other) {
                    self.bar.println(format!("ckpt: {text}"));
                }
            }
        }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

fn style(total_is_known: bool) -> ProgressStyle {
    let template = if total_is_known {
        "{msg} {binary_bytes} of {binary_total_bytes}  {binary_bytes_per_sec}  {prefix}  {eta} left  {wide_bar}"
    } else {
        "{msg} {binary_bytes}  {binary_bytes_per_sec}  {prefix}  {elapsed}"
    };
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}
